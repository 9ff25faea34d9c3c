//! The one connection to Redis, and what its errors say about whether a command ran.

use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{ErrorKind, RedisError, ServerErrorKind};
use secrecy::ExposeSecret;

use crate::config;

/// A manager that connects at the first command and reconnects by itself.
///
/// The command that meets a broken connection still fails: whether it ran is unknown, so nothing repeats it here.
pub(super) fn open(settings: &config::Redis) -> Result<ConnectionManager, RedisError> {
    let client = redis::Client::open(settings.url.expose_secret())?;
    let manager = ConnectionManagerConfig::new()
        .set_response_timeout(Some(settings.response_timeout()))
        .set_connection_timeout(Some(settings.connect_timeout()))
        .set_min_delay(Duration::from_millis(20))
        .set_max_delay(Duration::from_millis(200))
        .set_number_of_retries(1)
        .set_pipeline_buffer_size(1024);
    ConnectionManager::new_lazy_with_config(client, manager)
}

/// Whether the server, or the lack of a connection to it, kept the command from running at all.
pub(super) fn was_not_run(error: &RedisError) -> bool {
    if error.is_connection_refusal() {
        return true;
    }
    let refused_before_the_first_write = matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
                | ServerErrorKind::NoScript
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::TryAgain
        )
    );
    // OOM and MISCONF (the append-only file cannot be written) are checked before a script's first write.
    refused_before_the_first_write || matches!(error.code(), Some("OOM" | "MISCONF" | "BUSY" | "NOAUTH" | "NOPERM"))
}
