//! The service's settings for a sandbox, and as environment variables, so that a child process gets exactly what its
//! parent has in hand.

use std::net::{Ipv4Addr, SocketAddr};

use sandbox::{Kafka, Sandbox};
use seckill::config::Settings;
use secrecy::ExposeSecret;
use serde_json::Value;

/// The key of the tokens in every sandbox. It is public: never use it elsewhere.
pub const JWT_SECRET: &str = "a sandbox's secret is no secret at all";

/// What the servers of a sandbox mean for the service's settings.
pub trait SandboxSettings {
    /// Complete settings for the service `name`: an empty database, a Redis database number, topics and a group of its
    /// own. The same name gets the same settings again.
    ///
    /// # Errors
    /// When the database cannot be created, or the environment holds settings that cannot be read.
    fn settings(&self, name: &str) -> impl Future<Output = anyhow::Result<Settings>> + Send;

    /// The same settings with every private server reached through its proxy.
    fn proxied(&self, settings: &Settings) -> Settings;

    /// The same settings with Redis reached through its second proxy.
    fn via_second_redis_proxy(&self, settings: &Settings) -> Settings;
}

impl SandboxSettings for Sandbox {
    async fn settings(&self, name: &str) -> anyhow::Result<Settings> {
        let namespace = self.namespace(name).await?;
        let mut settings = Settings::load(None)?;
        settings.http.bind = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        settings.auth.jwt_secret = JWT_SECRET.into();
        settings.redis.url = namespace.redis_url.into();
        settings.postgres.url = namespace.postgres_url.into();
        settings.kafka.brokers = namespace.kafka_brokers;
        for name in [&mut settings.kafka.topic, &mut settings.kafka.dead_letter_topic, &mut settings.kafka.group] {
            *name = format!("{name}.{}", namespace.suffix);
        }
        if let Some(kafka) = self.kafka_if_started() {
            kafka.create_topic(&settings.kafka.topic, settings.kafka.partitions)?;
            kafka.create_topic(&settings.kafka.dead_letter_topic, 1)?;
        }
        Ok(settings)
    }

    fn proxied(&self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        settings.redis.url = self.via_proxy(settings.redis.url.expose_secret()).into();
        settings.postgres.url = self.via_proxy(settings.postgres.url.expose_secret()).into();
        if let Some(Ok(brokers)) = self.kafka_if_started().map(Kafka::proxied_brokers) {
            settings.kafka.brokers = brokers;
        }
        settings
    }

    fn via_second_redis_proxy(&self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        settings.redis.url = self.via_second_proxy(settings.redis.url.expose_secret()).into();
        settings
    }
}

/// Every setting as `SECKILL__SECTION__KEY` and its value, secrets included.
///
/// All of them, not only those that differ from the defaults: a variable that the child inherits must not win.
/// An empty list has no spelling in a variable and is left out; it is the default of every list.
pub fn env_for(settings: &Settings) -> Vec<(String, String)> {
    let mut variables = vec![
        (variable("auth", "jwt_secret"), settings.auth.jwt_secret.expose_secret().to_owned()),
        (variable("payment", "callback_secret"), settings.payment.callback_secret.expose_secret().to_owned()),
        (variable("redis", "url"), settings.redis.url.expose_secret().to_owned()),
        (variable("postgres", "url"), settings.postgres.url.expose_secret().to_owned()),
    ];
    // Settings are plain data in two levels: writing them as JSON cannot fail.
    let sections = serde_json::to_value(settings).unwrap_or_default();
    for (section, keys) in sections.as_object().into_iter().flatten() {
        for (key, value) in keys.as_object().into_iter().flatten() {
            variables.extend(text(value).map(|text| (variable(section, key), text)));
        }
    }
    variables
}

fn variable(section: &str, key: &str) -> String {
    format!("SECKILL__{}__{}", section.to_uppercase(), key.to_uppercase())
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(items) if items.is_empty() => None,
        Value::Array(items) => Some(items.iter().filter_map(text).collect::<Vec<_>>().join(",")),
        other => Some(other.to_string()),
    }
}
