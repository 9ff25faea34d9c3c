//! The lock's Lua scripts, their replies, and one function to call each.
//!
//! A script's comment table and the enum here say the same; a test compares the two. Every script may be repeated
//! with the same acquisition id, so an answer that was lost costs a second call and nothing else.

use std::sync::LazyLock;
use std::time::Duration;

use redis::RedisError;
use redis::aio::ConnectionLike;
use uuid::Uuid;

use super::keys::{self, Name};
use crate::redis_script::{Script, codes};

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../lua/lock_acquire.lua")));
static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../lua/lock_renew.lua")));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../lua/lock_release.lua")));
static ABORT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../lua/lock_abort.lua")));

/// How long the counter of tokens outlives its last use. Afterwards the floor from PostgreSQL takes over.
const TOKENS_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// No copy of an acquire is on its way for longer than this.
const GONE_KEPT: Duration = Duration::from_secs(60);

codes! {
    /// Replies of `lock_acquire.lua`.
    AcquireCode { Busy = 0 as "BUSY", Taken = 1 as "TAKEN", Mine = 2 as "MINE", Gone = 3 as "GONE" }
}

codes! {
    /// Replies of `lock_renew.lua`.
    RenewCode { Missing = 0 as "MISSING", Renewed = 1 as "RENEWED", Foreign = 2 as "FOREIGN" }
}

codes! {
    /// Replies of `lock_release.lua`.
    ReleaseCode { Missing = 0 as "MISSING", Released = 1 as "RELEASED", Foreign = 2 as "FOREIGN", Already = 3 as "ALREADY" }
}

codes! {
    /// Replies of `lock_abort.lua`.
    AbortCode { Nothing = 0 as "NOTHING", Removed = 1 as "REMOVED" }
}

fn unexpected(code: i64) -> RedisError {
    (redis::ErrorKind::UnexpectedReturnType, "a lock script answered what it should not", code.to_string()).into()
}

/// One acquisition of one lock: the identity that every script checks. Never used for a second acquisition, so that
/// an old holder cannot renew or delete its successor's lock.
#[derive(Clone, Debug)]
pub struct Acquisition {
    pub name: Name,
    pub id: Uuid,
    pub ttl: Duration,
}

impl Acquisition {
    pub fn new(name: Name, ttl: Duration) -> Self {
        Self { name, id: Uuid::new_v4(), ttl }
    }

    /// Takes the lock under a token above `floor`. The number is the token, or for [`AcquireCode::Busy`] the
    /// milliseconds that the other's lock still lives.
    pub async fn take(&self, floor: i64, redis: &mut impl ConnectionLike) -> Result<(AcquireCode, i64), RedisError> {
        let keys = [keys::lock(&self.name), keys::tokens(&self.name), self.gone()];
        let mut call = ACQUIRE.call(&keys);
        call.arg(self.id.to_string()).arg(ms(self.ttl)).arg(floor).arg(ms(TOKENS_KEPT));
        let (code, number): (i64, i64) = call.run(redis).await?;
        Ok((AcquireCode::from_code(code).ok_or_else(|| unexpected(code))?, number))
    }

    pub async fn renew(&self, redis: &mut impl ConnectionLike) -> Result<RenewCode, RedisError> {
        let mut call = RENEW.call(&[keys::lock(&self.name)]);
        call.arg(self.id.to_string()).arg(ms(self.ttl));
        let (code,): (i64,) = call.run(redis).await?;
        RenewCode::from_code(code).ok_or_else(|| unexpected(code))
    }

    pub async fn release(&self, redis: &mut impl ConnectionLike) -> Result<ReleaseCode, RedisError> {
        let mut call = RELEASE.call(&[keys::lock(&self.name), self.gone()]);
        call.arg(self.id.to_string()).arg(ms(self.gone_kept()));
        let (code,): (i64,) = call.run(redis).await?;
        ReleaseCode::from_code(code).ok_or_else(|| unexpected(code))
    }

    pub async fn abort(&self, redis: &mut impl ConnectionLike) -> Result<AbortCode, RedisError> {
        let mut call = ABORT.call(&[keys::lock(&self.name), self.gone()]);
        call.arg(self.id.to_string()).arg(ms(self.gone_kept()));
        let (code,): (i64,) = call.run(redis).await?;
        AbortCode::from_code(code).ok_or_else(|| unexpected(code))
    }

    /// How long nothing of this acquisition can still be on its way.
    pub fn gone_kept(&self) -> Duration {
        GONE_KEPT.max(self.ttl.saturating_mul(2))
    }

    fn gone(&self) -> String {
        keys::gone(&self.name, self.id)
    }
}

fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis_script::documented;

    #[test]
    fn the_comment_tables_and_the_enums_say_the_same() {
        let scripts: [(&str, &[(i64, &str)]); 4] = [
            (include_str!("../../lua/lock_acquire.lua"), AcquireCode::TABLE),
            (include_str!("../../lua/lock_renew.lua"), RenewCode::TABLE),
            (include_str!("../../lua/lock_release.lua"), ReleaseCode::TABLE),
            (include_str!("../../lua/lock_abort.lua"), AbortCode::TABLE),
        ];
        for (script, table) in scripts {
            assert_eq!(documented(script), table);
        }
    }

    #[test]
    fn two_acquisitions_never_share_an_id() {
        let name = Name::new("a").expect("a name");
        let ids: std::collections::HashSet<_> =
            (0..1000).map(|_| Acquisition::new(name.clone(), Duration::from_secs(1)).id).collect();
        assert_eq!(ids.len(), 1000);
    }
}
