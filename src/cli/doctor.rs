//! `seckill doctor`: asks every dependency how it is, and says what to do about the answer.

use std::time::Duration;

use super::out;
use crate::admission::identity::Verifier;
use crate::app;
use crate::config::{self, Settings};
use crate::kafka;
use crate::ledger;
use crate::stock::Stock;

struct Report {
    sound: bool,
}

impl Report {
    fn good(&self, what: &str, finding: &str) {
        out::line(format_args!("ok    {what:<12} {finding}"));
    }

    fn warn(&self, what: &str, finding: &str, advice: &str) {
        out::line(format_args!("warn  {what:<12} {finding}\n      {:<12} {advice}", ""));
    }

    fn bad(&mut self, what: &str, finding: &str, advice: &str) {
        self.sound = false;
        out::line(format_args!("BAD   {what:<12} {finding}\n      {:<12} {advice}", ""));
    }
}

/// Fails if something that the service cannot do without is missing.
pub async fn run(settings: &Settings) -> anyhow::Result<()> {
    let mut report = Report { sound: true };
    for warning in settings.warnings() {
        report.warn("settings", &warning, "see src/config.default.toml");
    }
    match Verifier::new(&settings.auth.jwt_secret) {
        Ok(_) => report.good("auth", "the key of the tokens is long enough"),
        Err(error) => {
            report.bad("auth", &error.to_string(), "set SECKILL__AUTH__JWT_SECRET to 32 random bytes or more")
        }
    }
    redis(settings, &mut report).await;
    postgres(settings, &mut report).await;
    kafka(settings, &mut report).await;
    anyhow::ensure!(report.sound, "the service cannot run like this");
    Ok(())
}

async fn redis(settings: &Settings, report: &mut Report) {
    let checked = async {
        let stock = Stock::connect(&settings.redis)?;
        app::RedisHealth::read(&stock).await
    };
    let health = match checked.await {
        Ok(health) => health,
        Err(error) => return report.bad("redis", &error.to_string(), "start it, or set SECKILL__REDIS__URL"),
    };
    let version = format!("version {}, policy {}", health.version, health.eviction);
    if health.evicts() {
        report.bad("redis", &version, "set `maxmemory-policy noeviction`: an evicted key is sold units forgotten");
    } else if health.is_too_old() {
        report.bad("redis", &version, "7.0 or newer is needed");
    } else {
        report.good("redis", &version);
    }
    if health.append_only {
        report.warn(
            "redis",
            "the append-only file is on; INFO does not tell how it is synced",
            "set `appendfsync always`: anything less loses accepted orders with the machine",
        );
    } else {
        report.warn(
            "redis",
            "the append-only file is off",
            "set `appendonly yes` and `appendfsync always`: a restart loses every order that no relay had read",
        );
    }
}

async fn postgres(settings: &Settings, report: &mut Report) {
    let ledger = match app::ledger(settings).await {
        Ok(ledger) => ledger,
        Err(error) => return report.bad("postgres", &format!("{error:#}"), "start it, or set SECKILL__POSTGRES__URL"),
    };
    let schema = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM _sqlx_migrations WHERE success");
    match schema.fetch_one(ledger.pool()).await {
        Ok(count) if usize::try_from(count).is_ok_and(|count| count < ledger::migrations()) => {
            let all = ledger::migrations();
            report.bad("postgres", &format!("{count} of {all} migrations applied"), "run `seckill migrate`");
        }
        Ok(count) => report.good("postgres", &format!("{count} migrations applied")),
        Err(_) => report.bad("postgres", "there is no schema", "run `seckill migrate`"),
    }
}

async fn kafka(settings: &Settings, report: &mut Report) {
    let kafka = settings.kafka.clone();
    let dead_letters = config::Kafka { topic: kafka.dead_letter_topic.clone(), ..kafka.clone() };
    // Without a topic for them, the first message that is no order would hold up its consumer for ever.
    let ask = move || kafka::lag::check_topic(&dead_letters).and_then(|()| kafka::lag::backlog(&kafka));
    let backlog = tokio::task::spawn_blocking(ask);
    let backlog = tokio::time::timeout(Duration::from_secs(15), backlog).await;
    match backlog {
        Ok(Ok(Ok(messages))) => report.good("kafka", &format!("{messages} messages wait for the consumer")),
        Ok(Ok(Err(error))) => {
            report.bad("kafka", &error.to_string(), "start it, set SECKILL__KAFKA__BROKERS, run `seckill migrate`");
        }
        _ => report.bad("kafka", "no answer", "start it, or set SECKILL__KAFKA__BROKERS"),
    }
}
