//! Settings: compiled-in defaults, then a TOML file, then `SECKILL__SECTION__KEY` from the environment.
//!
//! A key that nobody knows is an error, not a silent default. Secrets have no usable default: a service that
//! starts without them says which one is missing.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

/// The defaults, which double as the reference of every key.
const DEFAULTS: &str = include_str!("config.default.toml");

/// Everything that can be set. Written out again without the secrets.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub http: Http,
    pub auth: Auth,
    pub admission: Admission,
    pub redis: Redis,
    pub postgres: Postgres,
    pub kafka: Kafka,
    pub outbox: Outbox,
    pub consumer: Consumer,
    pub reconcile: Reconcile,
    pub orders: Orders,
    pub payment: Payment,
    pub fallback: Fallback,
    pub telemetry: Telemetry,
}

/// The HTTP server of a node.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// Address to listen on. Port 0 takes a free one and logs it.
    pub bind: SocketAddr,
    /// Worker threads; 0 means one per core.
    pub workers: usize,
    /// Proxies whose `X-Forwarded-For` is believed, counted from the right.
    pub trusted_proxies: Vec<IpAddr>,
    /// How long readiness is off before the node stops accepting, so that a balancer can notice.
    pub drain_ms: u64,
    /// How long running requests may take to end after that.
    pub shutdown_timeout_s: u64,
    /// Most streams of events that the node has at once.
    pub max_event_streams: usize,
    /// How long a stream of events lasts at most. Its client connects again.
    pub event_stream_s: u64,
}

/// Who may call.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    /// Key of the HS256 tokens, at least 32 bytes.
    #[serde(skip_serializing)]
    pub jwt_secret: SecretString,
}

/// The token buckets. Rates are per node: n nodes together admit n times as much.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Admission {
    /// Purchases per second that the node admits in all, and how many may come at once.
    pub node_per_second: u32,
    pub node_burst: u32,
    /// Purchases per second of one client address (one /64 for IPv6).
    pub address_per_second: u32,
    pub address_burst: u32,
    /// Purchases per second of one user.
    pub user_per_second: u32,
    pub user_burst: u32,
    /// Most addresses, and most users, that are tracked at once. New ones beyond it are held by the node's bucket.
    pub max_tracked: usize,
    /// How often buckets that are full again are forgotten.
    pub sweep_ms: u64,
    /// Leading zero bits that a challenge asks for: each one doubles the work.
    pub challenge_bits: u8,
    /// How long a purchase token earned by a challenge is good for.
    pub challenge_ttl_s: u64,
}

/// Redis: the hot copy of the stock, and the outbox.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Redis {
    #[serde(skip_serializing)]
    pub url: SecretString,
    /// How long an answer may take. Beyond it the outcome of a purchase is unknown, not refused.
    pub response_timeout_ms: u64,
    pub connect_timeout_ms: u64,
    /// How long a sale's keys outlive its end.
    pub retention_h: u64,
}

/// PostgreSQL: the truth.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Postgres {
    #[serde(skip_serializing)]
    pub url: SecretString,
    pub max_connections: u32,
    pub acquire_timeout_ms: u64,
    /// Ends any statement that takes longer, on the server.
    pub statement_timeout_ms: u64,
}

/// Kafka: the way from the outbox to the ledger.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Kafka {
    pub brokers: String,
    pub topic: String,
    pub dead_letter_topic: String,
    pub group: String,
    /// Used when the topics are created.
    pub partitions: i32,
    pub replication: i32,
    pub delivery_timeout_ms: u64,
    pub session_timeout_ms: u64,
}

/// The relay from the outbox to Kafka.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Outbox {
    /// Most entries that are read, published and removed together.
    pub batch: usize,
    /// How long a read waits for new entries.
    pub block_ms: u64,
    /// After how long without activity the entries of another relay are taken over.
    pub claim_after_ms: u64,
}

/// The consumer from Kafka to the ledger.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Consumer {
    /// Most messages that become rows together.
    pub batch: usize,
    /// First wait after the database failed; doubles up to the second.
    pub retry_ms: u64,
    pub max_retry_ms: u64,
    /// A consumer that has not polled Kafka for so long loses its partitions. Not below
    /// `kafka.session_timeout_ms`.
    pub max_poll_ms: u64,
}

/// The reconciler.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Reconcile {
    /// How often a sale is inspected.
    pub every_ms: u64,
    /// How often its claims are compared with its rows.
    pub deep_every_ms: u64,
    /// How old a claim must be before the lack of its row means anything: longer than the slowest honest way.
    pub grace_ms: u64,
    /// Most repairs of one kind in one run.
    pub max_repairs: u32,
    /// After how long without a heartbeat a relay is taken for dead, and a rebuild waits for it no longer.
    pub relay_stale_ms: u64,
    pub lock_ttl_ms: u64,
    /// Longest that one run may hold a sale's lock.
    pub max_hold_ms: u64,
    /// How long before the end of a sale the rest of its reserve goes to Redis.
    pub move_before_end_s: u64,
}

/// The life of an order.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Orders {
    /// How long a buyer has to pay, counted by the ledger's clock from the insertion of the row.
    pub pay_within_s: u64,
}

/// The payment provider.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Payment {
    /// Key of the HMAC that signs a provider's callbacks, at least 32 bytes. Empty: there are no callbacks.
    #[serde(skip_serializing)]
    pub callback_secret: SecretString,
}

/// What is sold while Redis cannot be reached.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Fallback {
    /// Share of a new sale's units that is kept from Redis for it, rounded down. 0 to 99.
    pub reserve_percent: u32,
    /// Purchases in a row that Redis leaves without an answer before this node stops asking it.
    pub failures: u32,
    /// How long it is left alone before one purchase tries again.
    pub open_ms: u64,
    /// Most purchases that this node has the ledger decide at once. Beyond it: 503.
    pub concurrency: usize,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Telemetry {
    /// A `tracing` filter, such as `info,seckill=debug`.
    pub filter: String,
    pub format: LogFormat,
    /// Where a process without the HTTP role answers `/livez` and `/metrics`; nowhere if absent.
    #[serde(default)]
    pub bind: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Text,
    Json,
}

impl Settings {
    /// Reads defaults, then `file` if there is one, then the environment.
    pub fn load(file: Option<&Path>) -> anyhow::Result<Self> {
        let mut sources = config::Config::builder().add_source(toml(DEFAULTS));
        if let Some(path) = file {
            sources = sources.add_source(config::File::from(path).format(config::FileFormat::Toml));
        }
        let environment = config::Environment::with_prefix("SECKILL")
            .prefix_separator("__")
            .separator("__")
            .list_separator(",")
            .with_list_parse_key("http.trusted_proxies")
            .try_parsing(true);
        let settings: Self = sources
            .add_source(environment)
            .build()
            .and_then(config::Config::try_deserialize)
            .context("the settings cannot be read")?;
        settings.validate()?;
        Ok(settings)
    }

    /// Refuses values with which a part would start and then do nothing, or do it wrong.
    ///
    /// # Errors
    /// Names every setting that is out of its range, not only the first.
    pub fn validate(&self) -> anyhow::Result<()> {
        let Self { http, admission, redis, postgres, kafka, outbox, consumer, orders, .. } = self;
        let (day_s, day_ms) = (86_400, 86_400_000);
        let ranges = [
            ("http.event_stream_s", http.event_stream_s, 1, day_s),
            ("admission.sweep_ms", admission.sweep_ms, 1, day_ms),
            ("admission.challenge_ttl_s", admission.challenge_ttl_s, 1, day_s),
            ("redis.response_timeout_ms", redis.response_timeout_ms, 1, day_ms),
            ("redis.connect_timeout_ms", redis.connect_timeout_ms, 1, day_ms),
            // Claims and orders on their way must outlive the sale; ten years are for ever.
            ("redis.retention_h", redis.retention_h, 1, 87_600),
            ("postgres.max_connections", postgres.max_connections.into(), 1, 10_000),
            ("postgres.acquire_timeout_ms", postgres.acquire_timeout_ms, 1, day_ms),
            // 0 would mean for ever, and a statement that waits for ever holds the hot row.
            ("postgres.statement_timeout_ms", postgres.statement_timeout_ms, 2, day_ms),
            ("kafka.partitions", u64::try_from(kafka.partitions).unwrap_or(0), 1, 10_000),
            ("kafka.replication", u64::try_from(kafka.replication).unwrap_or(0), 1, 100),
            ("kafka.delivery_timeout_ms", kafka.delivery_timeout_ms, 1, day_ms),
            ("kafka.session_timeout_ms", kafka.session_timeout_ms, 1, day_ms),
            ("outbox.batch", outbox.batch as u64, 1, 100_000),
            ("outbox.block_ms", outbox.block_ms, 1, day_ms),
            ("outbox.claim_after_ms", outbox.claim_after_ms, 1, day_ms),
            // The client fetches twenty batches ahead, and librdkafka counts to ten million.
            ("consumer.batch", consumer.batch as u64, 1, 100_000),
            ("consumer.retry_ms", consumer.retry_ms, 1, day_ms),
            ("consumer.max_retry_ms", consumer.max_retry_ms, consumer.retry_ms, day_ms),
            ("consumer.max_poll_ms", consumer.max_poll_ms, kafka.session_timeout_ms, day_ms),
            ("orders.pay_within_s", orders.pay_within_s, 1, 366 * day_s),
        ];
        let wrong = ranges.iter().filter(|(_, value, least, most)| !(least..=most).contains(&value));
        let wrong: Vec<_> = wrong.map(|(name, _, least, most)| format!("{name} is from {least} to {most}")).collect();
        anyhow::ensure!(wrong.is_empty(), "settings out of range: {}", wrong.join("; "));
        Ok(())
    }

    /// Pairs of settings that are legal and probably not meant, each with its reason.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.outbox.claim_after_ms <= self.outbox.block_ms {
            warnings.push("outbox.claim_after_ms is not above outbox.block_ms: idle relays rob each other".to_owned());
        }
        if self.redis.response_timeout_ms >= self.http.shutdown_timeout_s * 1000 {
            warnings.push(
                "redis.response_timeout_ms is not below http.shutdown_timeout_s: a stop cuts purchases off".to_owned(),
            );
        }
        if self.reconcile.grace_ms <= self.kafka.delivery_timeout_ms {
            warnings.push(
                "reconcile.grace_ms is not above kafka.delivery_timeout_ms: orders on their way are published twice"
                    .to_owned(),
            );
        }
        if self.reconcile.relay_stale_ms <= self.kafka.delivery_timeout_ms {
            warnings.push(
                "reconcile.relay_stale_ms is not above kafka.delivery_timeout_ms: a rebuild may overtake a relay"
                    .to_owned(),
            );
        }
        if self.fallback.concurrency >= self.postgres.max_connections as usize {
            warnings.push(
                "fallback.concurrency is not below postgres.max_connections: while Redis is away nothing else gets a \
                 connection"
                    .to_owned(),
            );
        }
        warnings
    }
}

impl Redis {
    pub const fn response_timeout(&self) -> Duration {
        Duration::from_millis(self.response_timeout_ms)
    }

    pub const fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    pub const fn retention(&self) -> Duration {
        Duration::from_secs(self.retention_h * 3600)
    }
}

fn toml(text: &str) -> config::File<config::FileSourceString, config::FileFormat> {
    config::File::from_str(text, config::FileFormat::Toml)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_an_error() {
        let text = format!("{DEFAULTS}\n[surprise]\nkey = 1\n");
        let built = config::Config::builder().add_source(toml(&text)).build().expect("valid TOML");
        assert!(built.try_deserialize::<Settings>().is_err());
    }

    #[test]
    fn settings_that_would_disable_a_part_are_refused_all_by_name() {
        let built = config::Config::builder().add_source(toml(DEFAULTS)).build().expect("valid TOML");
        let mut settings: Settings = built.try_deserialize().expect("complete defaults");
        settings.validate().expect("the defaults are in range");
        settings.redis.retention_h = 0;
        settings.outbox.batch = 0;
        settings.kafka.partitions = -1;
        settings.consumer.batch = 600_000;
        settings.consumer.max_poll_ms = settings.kafka.session_timeout_ms - 1;
        let said = settings.validate().expect_err("out of range").to_string();
        for name in ["redis.retention_h", "outbox.batch", "kafka.partitions", "consumer.batch", "consumer.max_poll_ms"]
        {
            assert!(said.contains(name), "{name} is not in: {said}");
        }
        assert!(!said.contains("postgres"), "{said}");
    }

    #[test]
    fn the_defaults_are_complete_and_raise_no_warning() {
        let built = config::Config::builder().add_source(toml(DEFAULTS)).build().expect("valid TOML");
        let settings: Settings = built.try_deserialize().expect("complete defaults");
        assert_eq!(settings.warnings(), Vec::<String>::new());
    }
}
