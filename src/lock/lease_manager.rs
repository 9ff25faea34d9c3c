//! The thread that speaks with Redis for all locks of a process, and one acquisition on it, from first to last.
//!
//! Its own thread, so that a job which blocks every worker still has its lock renewed. One task per acquisition, from
//! the first try to the release: nothing can renew a lock after its release, since the same task does both. A caller
//! that goes away just drops its end of a channel; the task notices and cleans up.

use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{IntoConnectionInfo, RedisError};
use secrecy::ExposeSecret;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::guard::Hold;
use super::held_lease::{HeldLease, hold_until_released};
use super::lease::{Lease, Moment, call_timeout, waiting_backoff};
use super::metrics::Metrics;
use super::script::{AbortCode, AcquireCode, Acquisition};
use super::{AcquireError, Error, Unavailable};
use crate::backoff::Backoff;
use crate::config;

/// A connection on which data stays unacknowledged for so long is dead, and another one is made.
const DEAD_AFTER: Duration = Duration::from_secs(5);

/// A request for a lock.
pub(super) struct Request {
    pub(super) acquisition: Acquisition,
    pub(super) floor: i64,
    pub(super) wait_at_most: Duration,
    pub(super) max_hold: Duration,
    pub(super) answer: oneshot::Sender<Result<Hold, AcquireError>>,
}

/// A handle on the thread. The thread ends when the last handle is gone and the last lock was given back.
#[derive(Clone, Debug)]
pub(super) struct LeaseManager {
    requests: mpsc::UnboundedSender<Request>,
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl LeaseManager {
    pub(super) fn start(settings: &config::Redis, metrics: Metrics) -> Result<Self, Error> {
        let info = settings.url.expose_secret().into_connection_info()?;
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true).set_user_timeout(DEAD_AFTER));
        let client = redis::Client::open(info)?;
        // Each call has a limit of its own, from its lease.
        let manager = ConnectionManagerConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(Some(settings.connect_timeout()))
            .set_min_delay(Duration::from_millis(20))
            .set_max_delay(Duration::from_millis(200))
            .set_number_of_retries(1);

        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let redis = {
            let _entered = runtime.enter();
            ConnectionManager::new_lazy_with_config(client, manager)?
        };
        let (requests, incoming) = mpsc::unbounded_channel();
        let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
        let work = run(incoming, redis, metrics, tasks.clone(), closing.clone());
        std::thread::Builder::new().name("lock".to_owned()).spawn(move || runtime.block_on(work))?;
        Ok(Self { requests, tasks, closing })
    }

    /// Fails when the thread has ended or takes nothing more.
    pub(super) fn send(&self, request: Request) -> Result<(), Unavailable> {
        if self.closing.is_cancelled() {
            return Err(Unavailable::Closed);
        }
        self.requests.send(request).map_err(|_| Unavailable::Closed)
    }

    /// Tells every holder that its lock is lost, takes nothing more, and waits until all are given back.
    pub(super) async fn close(&self, within: Duration) -> bool {
        self.closing.cancel();
        self.tasks.close();
        timeout(within, self.tasks.wait()).await.is_ok()
    }
}

async fn run(
    mut incoming: mpsc::UnboundedReceiver<Request>,
    redis: ConnectionManager,
    metrics: Metrics,
    tasks: TaskTracker,
    closing: CancellationToken,
) {
    while let Some(request) = incoming.recv().await {
        if !closing.is_cancelled() {
            tasks.spawn(serve(request, redis.clone(), metrics.clone(), closing.clone()));
        }
    }
    tasks.close();
    tasks.wait().await;
}

/// One acquisition: its tries, its hold and its release, or its undoing.
async fn serve(mut request: Request, mut redis: ConnectionManager, metrics: Metrics, closing: CancellationToken) {
    let tried = attempt(&mut request, &mut redis, &closing).await;
    let Request { acquisition, max_hold, answer, .. } = request;
    let may_hold = match tried {
        Ok((token, lease)) => {
            let max_hold_at = lease.sent() + max_hold;
            let (hold, held) =
                HeldLease::new(acquisition.clone(), token, lease, max_hold_at, redis.clone(), metrics, closing);
            match answer.send(Ok(hold)) {
                Ok(()) => return hold_until_released(held).await,
                // The caller gave up in the moment of success.
                Err(_) => true,
            }
        }
        Err(Failed { error, may_hold }) => {
            let _ = answer.send(Err(error));
            may_hold
        }
    };
    if may_hold {
        give_up(&acquisition, &mut redis).await;
    }
}

struct Failed {
    error: AcquireError,
    /// The lock may be held in our name, or may still be taken in it.
    may_hold: bool,
}

/// Tries until the lock is acquired or the time is up. Every try carries the same id, so that a try after a lost answer
/// finds what the one before has done.
async fn attempt(
    request: &mut Request,
    redis: &mut ConnectionManager,
    closing: &CancellationToken,
) -> Result<(i64, Lease), Failed> {
    let Request { acquisition, floor, wait_at_most, answer, .. } = request;
    let until = Instant::now() + *wait_at_most;
    let mut backoff = waiting_backoff();
    let mut may_hold = false;
    loop {
        let sent = Moment::now();
        let answered = timeout(call_timeout(acquisition.ttl), acquisition.take(*floor, redis)).await;
        let error = match answered {
            Ok(Ok((AcquireCode::Taken | AcquireCode::Mine, token))) => {
                let lease = Lease::new(sent, acquisition.ttl);
                if lease.has_ended(Moment::now()) {
                    return Err(Failed { error: Unavailable::TooLate.into(), may_hold: true });
                }
                return Ok((token, lease));
            }
            Ok(Ok((AcquireCode::Busy, ttl))) => {
                AcquireError::Busy { retry_after: Duration::from_millis(ttl.try_into().unwrap_or(0)) }
            }
            Ok(Ok((AcquireCode::Gone, _))) => return Err(Failed { error: Unavailable::TooLate.into(), may_hold }),
            Ok(Err(error)) => {
                may_hold |= !error.is_connection_refusal();
                let final_word = !may_pass(&error);
                let error = Unavailable::Redis(error).into();
                if final_word {
                    return Err(Failed { error, may_hold });
                }
                error
            }
            Err(_) => {
                may_hold = true;
                Unavailable::NoAnswer.into()
            }
        };

        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let waited = matches!(error, AcquireError::Busy { .. }) && !wait_at_most.is_zero();
            return Err(Failed { error: if waited { AcquireError::TimedOut } else { error }, may_hold });
        }
        let mut pause = backoff.next_pause().min(left);
        if let AcquireError::Busy { retry_after } = error {
            // Not to sleep through the moment in which it expires.
            pause = pause.min(retry_after + Duration::from_millis(2));
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = answer.closed() => return Err(Failed { error: AcquireError::TimedOut, may_hold }),
            () = closing.cancelled() => return Err(Failed { error: Unavailable::Closed.into(), may_hold }),
        }
    }
}

/// Whether the next try may fare better: the connection failed, not the command.
fn may_pass(error: &RedisError) -> bool {
    error.is_io_error() || error.is_timeout() || error.is_connection_dropped() || error.is_connection_refusal()
}

/// Undoes an acquisition whose outcome is unknown, also one that Redis has yet to receive.
async fn give_up(acquisition: &Acquisition, redis: &mut ConnectionManager) {
    let until = Instant::now() + acquisition.gone_kept();
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
    let name = &acquisition.name;
    while Instant::now() < until {
        match timeout(call_timeout(acquisition.ttl), acquisition.abort(redis)).await {
            Ok(Ok(AbortCode::Removed)) => return info!(%name, "an acquisition that was given up had taken the lock"),
            Ok(Ok(AbortCode::Nothing)) => return,
            Ok(Err(error)) if !may_pass(&error) => return warn!(%name, %error, "an acquisition was not undone"),
            Ok(Err(_)) | Err(_) => sleep(backoff.next_pause()).await,
        }
    }
    warn!(%name, "an acquisition could not be undone; what it took, if anything, expires by itself");
}
