//! What the process tells about itself: log lines on standard error, and metrics to be scraped.
//!
//! Rules:
//!
//! - A metric is a typed handle in its stage's own struct, registered once; its name reads
//!   `seckill_STAGE_WHAT_UNIT`, counters end in `_total`, times are in seconds and sizes in bytes.
//! - Labels come from lists in the code. Never a user, an order, an address or a raw path: a label with one value per
//!   buyer takes down whatever scrapes it.
//! - A refusal is counted and never logged: at the height of a sale refusals are nearly all there is.
//! - What fails for a while, such as a server that is down, is logged by [`Outage`]: not once for each call that fails.
//! - Nothing logs a secret: settings hold them in a type that prints as redacted.

pub mod http;

mod metrics;
mod outage;

#[cfg(target_os = "linux")]
mod process;

use anyhow::Context;
use prometheus::{Registry, TextEncoder};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

pub use self::outage::Outage;
use crate::config::{LogFormat, Settings, Telemetry};

/// Starts logging to standard error. Fails when the filter cannot be read. A second call changes nothing: the first
/// one won, as in a test process with several services.
pub fn init(settings: &Telemetry) -> anyhow::Result<()> {
    let logs = logs(settings, std::io::stderr)?;
    // The only way to fail is that somebody was here before.
    let _ = tracing::dispatcher::set_global_default(logs);
    Ok(())
}

fn logs<W>(settings: &Telemetry, writer: W) -> anyhow::Result<tracing::Dispatch>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_new(&settings.filter)
        .with_context(|| format!("telemetry.filter {:?} cannot be read", settings.filter))?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    Ok(match settings.format {
        // Escape codes are for people at a terminal, not for files.
        LogFormat::Text => logs.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).finish().into(),
        LogFormat::Json => logs.json().flatten_event(true).finish().into(),
    })
}

/// One line with the settings in effect (secrets redacted), and one warning for each risky pair of them.
pub fn announce(role: &str, settings: &Settings) {
    tracing::info!(role, version = env!("CARGO_PKG_VERSION"), ?settings, "starting");
    for warning in settings.warnings() {
        tracing::warn!("{warning}");
    }
}

/// The registry of one service, with the metrics of the process already in it. Made once and handed down, not a
/// global: several services in one process, as in tests, would otherwise fight over names.
pub fn registry() -> anyhow::Result<Registry> {
    let registry = Registry::new();
    // The standard collector knows no other system.
    #[cfg(target_os = "linux")]
    registry.register(Box::new(process::Process::new()))?;
    Ok(registry)
}

/// The `Content-Type` of [`render`].
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Everything in `registry`, in the text format that is scraped. Gathering reads `/proc`, so it runs on a thread that
/// may block, not on the one that answers buyers.
pub async fn scrape(registry: &Registry) -> anyhow::Result<String> {
    let registry = registry.clone();
    tokio::task::spawn_blocking(move || render(&registry)).await?
}

/// As [`scrape`], on this thread.
pub fn render(registry: &Registry) -> anyhow::Result<String> {
    TextEncoder::new().encode_to_string(&registry.gather()).context("the metrics cannot be written")
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn announced(format: LogFormat, settings: &Settings) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let telemetry = Telemetry { filter: "info".to_owned(), format, bind: None };
        let logs = logs(&telemetry, move || writer.clone()).expect("a filter");
        tracing::dispatcher::with_default(&logs, || announce("serve", settings));
        let bytes = lines.0.lock().expect("no panic").clone();
        String::from_utf8(bytes).expect("text")
    }

    fn settings() -> Settings {
        let mut settings = Settings::load(None).expect("defaults");
        settings.auth.jwt_secret = "the-jwt-secret-nobody-may-read".into();
        settings.redis.url = "redis://:the-redis-password@localhost".into();
        settings.postgres.url = "postgres://me:the-postgres-password@localhost/db".into();
        settings
    }

    #[test]
    fn effective_settings_are_logged_without_secrets() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let logged = announced(format, &settings());
            assert_eq!(logged.lines().count(), 1, "{logged}");
            assert!(logged.contains("seckill.orders.v1") && logged.contains("node_per_second"), "{logged}");
            for secret in ["the-jwt-secret", "the-redis-password", "the-postgres-password"] {
                assert!(!logged.contains(secret), "{logged}");
            }
        }
    }

    #[test]
    fn risky_pairs_are_warned_about() {
        let mut settings = settings();
        settings.reconcile.grace_ms = 0;
        let logged = announced(LogFormat::Text, &settings);
        assert_eq!(logged.lines().count(), 2, "{logged}");
        assert!(logged.contains("WARN") && logged.contains("reconcile.grace_ms"), "{logged}");
    }

    #[test]
    fn a_json_line_is_json() {
        let logged = announced(LogFormat::Json, &settings());
        let line: serde_json::Value = serde_json::from_str(&logged).expect("JSON");
        assert_eq!(line["message"], "starting");
        assert_eq!(line["role"], "serve");
    }

    #[test]
    fn logging_may_be_started_twice_and_refuses_a_bad_filter() {
        let good = Telemetry { filter: "off".to_owned(), format: LogFormat::Text, bind: None };
        assert!(init(&good).is_ok());
        assert!(init(&good).is_ok());
        let bad = Telemetry { filter: "seckill=loud".to_owned(), format: LogFormat::Text, bind: None };
        assert!(init(&bad).is_err());
    }

    #[test]
    fn two_services_of_one_process_have_a_registry_each() {
        let (one, other) = (registry().expect("a registry"), registry().expect("another"));
        assert!(http::Http::registered(&one).is_ok() && http::Http::registered(&other).is_ok());
        let text = render(&one).expect("text");
        assert!(text.contains("process_resident_memory_bytes") && text.contains("process_open_fds"), "{text}");
    }
}
