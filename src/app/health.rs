//! Whether a Redis is set up so that it remembers what it sold. Asked by INFO: managed services often forbid CONFIG.

use std::collections::HashMap;

use anyhow::ensure;

use crate::stock::{Error, Stock};

/// What INFO says of a Redis.
#[derive(Clone, Debug)]
pub struct RedisHealth {
    pub version: String,
    /// `maxmemory_policy`.
    pub eviction: String,
    pub append_only: bool,
}

impl RedisHealth {
    pub async fn read(stock: &Stock) -> Result<Self, Error> {
        let (server, memory, persistence) =
            (stock.info("server").await?, stock.info("memory").await?, stock.info("persistence").await?);
        Ok(Self {
            version: field(&server, "redis_version"),
            eviction: field(&memory, "maxmemory_policy"),
            append_only: keeps_a_file(&persistence),
        })
    }

    /// Whether keys are thrown away when memory is short: claims and counters among them.
    pub fn evicts(&self) -> bool {
        self.eviction != "noeviction"
    }

    /// Consumer groups on deleted entries behave as relied upon since 7.0.
    pub fn is_too_old(&self) -> bool {
        self.version.split('.').next().and_then(|major| major.parse::<u32>().ok()).is_none_or(|major| major < 7)
    }

    /// An error where units would be forgotten by design; a warning where a restart forgets accepted orders.
    pub fn refuse_if_forgetful(&self) -> anyhow::Result<()> {
        ensure!(!self.evicts(), "redis evicts keys ({}): set `maxmemory-policy noeviction`", self.eviction);
        ensure!(!self.is_too_old(), "redis {} is too old: 7.0 or newer is needed", self.version);
        if !self.append_only {
            tracing::warn!(
                "the append-only file of redis is off: a restart loses every order that no relay had read; \
                 set appendonly yes and appendfsync always"
            );
        }
        Ok(())
    }
}

fn field(info: &HashMap<String, String>, name: &str) -> String {
    info.get(name).cloned().unwrap_or_default()
}

/// While Redis reads its append-only file it says that there is none: what it says then is not believed.
fn keeps_a_file(persistence: &HashMap<String, String>) -> bool {
    field(persistence, "aof_enabled") == "1" || field(persistence, "loading") == "1"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redis_that_is_loading_is_not_taken_for_one_without_a_file() {
        let says = |aof: &str, loading: &str| {
            let lines = [("aof_enabled", aof), ("loading", loading)];
            keeps_a_file(&lines.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
        };
        assert!(says("1", "0"));
        assert!(says("0", "1"));
        assert!(!says("0", "0"));
    }

    fn health(version: &str, eviction: &str) -> RedisHealth {
        RedisHealth { version: version.to_owned(), eviction: eviction.to_owned(), append_only: true }
    }

    #[test]
    fn a_redis_that_evicts_or_is_old_is_refused() {
        assert!(health("7.0.15", "noeviction").refuse_if_forgetful().is_ok());
        assert!(health("7.0.15", "allkeys-lru").refuse_if_forgetful().is_err());
        assert!(health("6.2.1", "noeviction").refuse_if_forgetful().is_err());
    }
}
