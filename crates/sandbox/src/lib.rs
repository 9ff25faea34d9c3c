//! Private servers on one machine, with nothing running beforehand: Redis, PostgreSQL and Kafka as child processes on
//! free loopback ports in a temporary folder.
//!
//! The servers are the real ones, configured to keep what they acknowledge. Each can be killed, paused, restarted on
//! its data and cut off. Nothing of a sandbox outlives the program that started it. See the README for an example.
//!
//! A server whose address the environment gives (`SECKILL__REDIS__URL`, `SECKILL__POSTGRES__URL`,
//! `SECKILL__KAFKA__BROKERS`) is used instead of a private one. No fault is injected into it, and what is created on it
//! stays there.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use tokio::sync::Mutex;

mod breakpoint;
mod folder;
mod kafka;
mod leftovers;
mod mock;
mod options;
mod ports;
mod postgres;
mod process;
mod proxy;
mod redis;
mod server;
mod shared;
mod spawner;
mod tree;
mod wait;

pub use breakpoint::{BreakAt, Breakpoint, PausedConnection, Timing};
pub use kafka::Kafka;
pub use options::Options;
pub use ports::free_port;
pub use postgres::Postgres;
pub use process::Process;
pub use proxy::Proxy;
pub use redis::{Fsync, Redis, RedisOptions};
pub use shared::shared;
pub use wait::wait_until;

use folder::Folder;

/// Nobody listens there.
const UNREACHABLE: &str = "127.0.0.1:1";

/// Where one of several services finds what is its own on the servers that they share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    pub redis_url: String,
    pub postgres_url: String,
    pub kafka_brokers: String,
    /// Made from the name; what topics and consumer groups end with.
    pub suffix: String,
}

/// The servers of one program. Dropping it stops them and removes their folder.
pub struct Sandbox {
    // Before the folder: servers end first, then what they wrote is removed.
    redis: Option<Redis>,
    postgres: Option<Postgres>,
    kafka: Option<Kafka>,
    namespaces: Mutex<HashMap<String, Namespace>>,
    folder: Arc<Folder>,
}

impl Sandbox {
    /// Starts the servers side by side, and returns when all of them answer.
    ///
    /// # Errors
    /// When one is not installed or does not come up; the message ends with the tail of its log.
    pub async fn start(options: Options) -> anyhow::Result<Self> {
        let folder = Arc::new(Folder::create()?);
        let (redis, postgres, kafka) = tokio::try_join!(
            async {
                match (options.redis, given("SECKILL__REDIS__URL")) {
                    (None, _) => Ok(None),
                    (Some(_), Some(url)) => Ok(Some(Redis::given(url))),
                    (Some(options), None) => Redis::start(folder.clone(), options).await.map(Some),
                }
            },
            async {
                match given("SECKILL__POSTGRES__URL") {
                    _ if !options.postgres => Ok(None),
                    Some(url) => Ok(Some(Postgres::given(url))),
                    None => Postgres::start(folder.clone()).await.map(Some),
                }
            },
            async {
                match given("SECKILL__KAFKA__BROKERS") {
                    _ if !options.kafka => Ok(None),
                    Some(brokers) => Ok(Some(Kafka::given(brokers))),
                    None => Kafka::start(folder.clone()).await.map(Some),
                }
            },
        )?;
        Ok(Self { redis, postgres, kafka, namespaces: Mutex::default(), folder })
    }

    /// # Panics
    /// When the sandbox was started without it, which is a mistake of the caller.
    pub fn redis(&self) -> &Redis {
        self.redis.as_ref().expect("this sandbox was started without Redis")
    }

    /// # Panics
    /// When the sandbox was started without it, which is a mistake of the caller.
    pub fn postgres(&self) -> &Postgres {
        self.postgres.as_ref().expect("this sandbox was started without PostgreSQL")
    }

    /// # Panics
    /// When the sandbox was started without it, which is a mistake of the caller.
    pub fn kafka(&self) -> &Kafka {
        self.kafka.as_ref().expect("this sandbox was started without Kafka")
    }

    /// Kafka, unless the sandbox was started without it.
    pub const fn kafka_if_started(&self) -> Option<&Kafka> {
        self.kafka.as_ref()
    }

    /// Which broker runs: `apache-kafka`, or `librdkafka-mock` where there is no Java or no Kafka.
    pub fn broker_kind(&self) -> &'static str {
        self.kafka.as_ref().map_or("none", Kafka::name)
    }

    /// The sandbox's folder, with the logs. It goes with the sandbox.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Addresses for a service that shares these servers with others: an empty database, a Redis database number and a
    /// suffix for topics and groups, all of its own. The same name gets the same addresses again. A server that this
    /// sandbox was started without is at an address where nobody listens.
    ///
    /// # Errors
    /// When the database cannot be created.
    pub async fn namespace(&self, name: &str) -> anyhow::Result<Namespace> {
        let mut namespaces = self.namespaces.lock().await;
        if let Some(namespace) = namespaces.get(name) {
            return Ok(namespace.clone());
        }
        let index = u32::try_from(namespaces.len())?;
        let namespace = self.new_namespace(name, index).await.with_context(|| format!("no addresses for {name}"))?;
        namespaces.insert(name.to_owned(), namespace.clone());
        Ok(namespace)
    }

    async fn new_namespace(&self, name: &str, index: u32) -> anyhow::Result<Namespace> {
        let suffix = self.unique(name);
        let redis_url = match &self.redis {
            Some(redis) => redis.database_url(index)?,
            None => format!("redis://{UNREACHABLE}"),
        };
        let postgres_url = match &self.postgres {
            Some(postgres) => postgres.create_database(&suffix).await?,
            None => format!("postgres://{UNREACHABLE}/none"),
        };
        let kafka_brokers = self.kafka.as_ref().map_or(UNREACHABLE, Kafka::brokers).to_owned();
        Ok(Namespace { redis_url, postgres_url, kafka_brokers, suffix })
    }

    /// A name that databases and topics accept; on a given server also one that earlier runs did not use.
    fn unique(&self, name: &str) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        // PostgreSQL cuts names at 63 bytes.
        let mut own: String = name.chars().map(plain).take(40).collect();
        if self.postgres.as_ref().is_some_and(|postgres| postgres.owned().is_err())
            || self.kafka.as_ref().is_some_and(Kafka::is_given)
        {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            own = format!("{own}_{:x}_{:x}", std::process::id(), now.as_millis());
        }
        own
    }

    /// The same address of a private Redis or PostgreSQL, reached through that server's proxy. Any other address stays
    /// as it is.
    pub fn via_proxy(&self, url: &str) -> String {
        let redis = self.redis.as_ref().and_then(|redis| redis.owned().ok());
        let postgres = self.postgres.as_ref().and_then(|postgres| postgres.owned().ok());
        let servers = redis.into_iter().chain(postgres);
        servers.fold(url.to_owned(), |url, server| with_port(&url, server.port(), server.proxy().port()))
    }

    /// The same address of a private Redis, reached through its second proxy.
    pub fn via_second_proxy(&self, url: &str) -> String {
        let redis = self.redis.as_ref().and_then(|redis| redis.owned().ok().zip(redis.second_proxy().ok()));
        redis.map_or_else(|| url.to_owned(), |(server, proxy)| with_port(url, server.port(), proxy.port()))
    }

    /// Starts a program with these variables in its environment. Its log is `name.log` in the sandbox's folder; it dies
    /// with the returned handle, and with this program.
    ///
    /// # Errors
    /// When the program cannot be executed.
    pub fn spawn(
        &self,
        name: &str,
        program: &Path,
        args: &[&str],
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> anyhow::Result<Process> {
        let mut command = Command::new(program);
        command.args(args).envs(variables);
        let process = Process::spawn(name, command, &self.folder.path().join(format!("{name}.log")))?;
        self.folder.note(process.pid())?;
        Ok(process)
    }

    /// Stops everything and removes the folder, for a sandbox that nobody will drop.
    fn end(&self) {
        self.redis.as_ref().map(Redis::end);
        self.postgres.as_ref().map(Postgres::end);
        self.kafka.as_ref().map(Kafka::end);
        self.folder.remove();
    }
}

fn given(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}

fn with_port(url: &str, port: u16, other: u16) -> String {
    url.replacen(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{other}"), 1)
}
