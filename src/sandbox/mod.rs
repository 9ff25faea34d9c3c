//! Private servers on one machine, with nothing running beforehand: Redis, PostgreSQL and Kafka as child processes on
//! free loopback ports in a temporary folder.
//!
//! Comes in: which servers are wanted. Decided: how each is run so that it keeps what it acknowledged. Guaranteed:
//! servers are the real ones; each can be killed, paused, restarted on its data and cut off; nothing of it outlives this
//! program.
//!
//! A server whose address the environment gives (`SECKILL__REDIS__URL`, `SECKILL__POSTGRES__URL`,
//! `SECKILL__KAFKA__BROKERS`) is used instead of a private one, and never hurt. What is created on it stays there.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Mutex;

mod environment;
mod folder;
mod kafka;
mod mock;
mod nursery;
mod options;
mod ports;
mod postgres;
mod process;
mod proxy;
mod redis;
mod server;
mod shared;
mod trap;
mod tree;

pub use environment::env_for;
pub use kafka::Kafka;
pub use options::Options;
pub use ports::free_port;
pub use postgres::Postgres;
pub use process::Process;
pub use proxy::Proxy;
pub use redis::{Fsync, Redis, RedisOptions};
pub use shared::shared;
pub use trap::{Held, Moment, Set, Spot};

use crate::config::Settings;
use folder::Folder;

/// The key of the tokens in every sandbox. It is public: never use it elsewhere.
pub const JWT_SECRET: &str = "a sandbox's secret is no secret at all";
/// Where the settings point to when a sandbox was started without that server: nobody listens there.
const NOWHERE: &str = "127.0.0.1:1";

/// The servers of one program. Dropping it stops them and removes their folder.
pub struct Sandbox {
    // Before the folder: servers end first, then what they wrote is removed.
    redis: Option<Redis>,
    postgres: Option<Postgres>,
    kafka: Option<Kafka>,
    services: Mutex<HashMap<String, Settings>>,
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
        Ok(Self { redis, postgres, kafka, services: Mutex::default(), folder })
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

    /// Which broker runs: `apache-kafka`, or `librdkafka-mock` where there is no Java or no Kafka.
    pub fn broker_kind(&self) -> &'static str {
        self.kafka.as_ref().map_or("none", Kafka::name)
    }

    /// The sandbox's folder, with the logs. It goes with the sandbox.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Complete settings for the service `name`: an empty database, a Redis database number, topics and a group of its
    /// own. The same name gets the same settings again.
    ///
    /// # Errors
    /// When the database cannot be created, or the environment holds settings that cannot be read.
    pub async fn settings(&self, name: &str) -> anyhow::Result<Settings> {
        let mut services = self.services.lock().await;
        if let Some(settings) = services.get(name) {
            return Ok(settings.clone());
        }
        let index = u32::try_from(services.len())?;
        let settings = self.make_settings(name, index).await.with_context(|| format!("no settings for {name}"))?;
        services.insert(name.to_owned(), settings.clone());
        Ok(settings)
    }

    async fn make_settings(&self, name: &str, index: u32) -> anyhow::Result<Settings> {
        let own = self.unique(name);
        let mut settings = Settings::load(None)?;
        settings.http.bind = server::local(0);
        settings.auth.jwt_secret = JWT_SECRET.into();
        settings.redis.url = match &self.redis {
            Some(redis) => redis.database_url(index)?.into(),
            None => format!("redis://{NOWHERE}").into(),
        };
        settings.postgres.url = match &self.postgres {
            Some(postgres) => postgres.create_database(&own).await?.into(),
            None => format!("postgres://{NOWHERE}/none").into(),
        };
        settings.kafka.topic = format!("{}.{own}", settings.kafka.topic);
        settings.kafka.dead_letter_topic = format!("{}.{own}", settings.kafka.dead_letter_topic);
        settings.kafka.group = format!("{}.{own}", settings.kafka.group);
        settings.kafka.brokers = NOWHERE.to_owned();
        if let Some(kafka) = &self.kafka {
            kafka.brokers().clone_into(&mut settings.kafka.brokers);
            kafka.create_topic(&settings.kafka.topic, settings.kafka.partitions)?;
            kafka.create_topic(&settings.kafka.dead_letter_topic, 1)?;
        }
        Ok(settings)
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

    /// The same settings with every private server reached through its proxy.
    pub fn proxied(&self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        if let Some(server) = self.redis.as_ref().and_then(|redis| redis.owned().ok()) {
            settings.redis.url = detour(&settings.redis.url, server.port(), server.proxy().port());
        }
        if let Some(server) = self.postgres.as_ref().and_then(|postgres| postgres.owned().ok()) {
            settings.postgres.url = detour(&settings.postgres.url, server.port(), server.proxy().port());
        }
        if let Some(Ok(brokers)) = self.kafka.as_ref().map(Kafka::proxied_brokers) {
            settings.kafka.brokers = brokers;
        }
        settings
    }

    /// The same settings with Redis reached through its other proxy.
    pub fn by_the_side(&self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        if let Some((server, side)) =
            self.redis.as_ref().and_then(|redis| redis.owned().ok().zip(redis.side_proxy().ok()))
        {
            settings.redis.url = detour(&settings.redis.url, server.port(), side.port());
        }
        settings
    }

    /// Starts a program with `settings` in its environment, such as a role of our own binary. Its log is `name.log` in
    /// the sandbox's folder; it dies with the returned handle, and with this program.
    ///
    /// # Errors
    /// When the program cannot be executed.
    pub fn spawn(&self, name: &str, program: &Path, args: &[&str], settings: &Settings) -> anyhow::Result<Process> {
        let mut command = Command::new(program);
        command.args(args).envs(env_for(settings));
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

fn detour(url: &SecretString, port: u16, proxy: u16) -> SecretString {
    url.expose_secret().replacen(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{proxy}"), 1).into()
}
