//! The one connection to Redis, and what its errors say about whether a command ran.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult, ServerErrorKind, Value};
use secrecy::ExposeSecret;

use crate::config;

/// A connection that is made at the first command, and replaced by itself when it breaks or falls silent.
///
/// The command that meets a broken connection still fails: whether it ran is unknown, so nothing repeats it here.
#[derive(Clone)]
pub(super) struct RedisConnection(Arc<Shared>);

struct Shared {
    client: Client,
    config: ConnectionManagerConfig,
    current: ArcSwap<ConnectionManager>,
}

impl RedisConnection {
    pub(super) fn open(settings: &config::Redis) -> Result<Self, RedisError> {
        let client = Client::open(settings.url.expose_secret())?;
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(settings.response_timeout()))
            .set_connection_timeout(Some(settings.connect_timeout()))
            .set_min_delay(Duration::from_millis(20))
            .set_max_delay(Duration::from_millis(200))
            .set_number_of_retries(1)
            .set_pipeline_buffer_size(1024);
        let current = ConnectionManager::new_lazy_with_config(client.clone(), config.clone())?;
        Ok(Self(Arc::new(Shared { client, config, current: ArcSwap::from_pointee(current) })))
    }

    /// The manager reconnects after an end, not after a silence: behind a firewall that forgot the connection, or a
    /// balancer whose server died, it would wait for the kernel to give up, which takes a quarter of an hour or for
    /// ever. So a late answer costs its connection. Commands that wait on the old one still get their answers.
    fn replace_if_timed_out<T>(&self, used: &Arc<ConnectionManager>, answer: RedisResult<T>) -> RedisResult<T> {
        if answer.as_ref().is_err_and(RedisError::is_timeout) {
            let fresh = ConnectionManager::new_lazy_with_config(self.0.client.clone(), self.0.config.clone())?;
            self.0.current.compare_and_swap(used, Arc::new(fresh));
        }
        answer
    }
}

impl ConnectionLike for RedisConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        let used = self.0.current.load_full();
        Box::pin(async move {
            let answer = ConnectionManager::clone(&used).req_packed_command(command).await;
            self.replace_if_timed_out(&used, answer)
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let used = self.0.current.load_full();
        Box::pin(async move {
            let answer = ConnectionManager::clone(&used).req_packed_commands(pipeline, offset, count).await;
            self.replace_if_timed_out(&used, answer)
        })
    }

    fn get_db(&self) -> i64 {
        self.0.current.load().get_db()
    }
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
