//! The watchdog: renews a lock that is held, says when it is lost, and gives it back.

use std::time::{Duration, Instant};

use redis::aio::ConnectionManager;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::guard::{Hold, Lost, ReleaseRequest, Released, Status};
use super::lease::{Lease, Moment, call_timeout, retry_backoff};
use super::metrics::{Metrics, Renewal};
use super::script::{Acquisition, ReleaseCode, RenewCode};

/// A job that gives a lock back does not wait longer than this for a Redis that does not answer.
const RELEASE_WITHIN: Duration = Duration::from_secs(5);

/// The lock thread's side of a [`Hold`].
pub(super) struct HeldLease {
    acquisition: Acquisition,
    token: i64,
    lease: Lease,
    since: Instant,
    max_hold_at: Instant,
    redis: ConnectionManager,
    metrics: Metrics,
    closing: CancellationToken,
    status: watch::Sender<Status>,
    release_requests: mpsc::UnboundedReceiver<ReleaseRequest>,
}

impl HeldLease {
    pub(super) fn new(
        acquisition: Acquisition,
        token: i64,
        lease: Lease,
        max_hold_at: Instant,
        redis: ConnectionManager,
        metrics: Metrics,
        closing: CancellationToken,
    ) -> (Hold, Self) {
        let (status, watched) = watch::channel(Status { lease, lost: None });
        let (sender, release_requests) = mpsc::unbounded_channel();
        let hold = Hold { acquisition: acquisition.clone(), token, status: watched, release_requests: sender };
        let since = lease.sent();
        let held =
            Self { acquisition, token, lease, since, max_hold_at, redis, metrics, closing, status, release_requests };
        (hold, held)
    }
}

/// Renews the lock until its guard releases or drops it, and gives it back. After a loss it only waits for that.
pub(super) async fn hold_until_released(mut held: HeldLease) {
    let request = match held.renew_until_released().await {
        Ok(request) => request,
        Err(why) => {
            held.lose(why);
            held.release_requests.recv().await
        }
    };
    if request.is_none() {
        held.metrics.dropped.inc();
        warn!(name = %held.acquisition.name, token = held.token, "a lock was dropped instead of released");
    }
    let released = held.give_back().await;
    held.metrics.released(released, held.since.elapsed());
    if let Some(request) = request {
        let _ = request.send(released);
    }
}

impl HeldLease {
    /// Returns when the guard asks for the release, or (`None`) was dropped.
    async fn renew_until_released(&mut self) -> Result<Option<ReleaseRequest>, Lost> {
        let mut backoff = retry_backoff(self.acquisition.ttl);
        let mut due = self.lease.renew_at();
        loop {
            let wake = due.min(self.lease.deadline()).min(self.max_hold_at);
            tokio::select! {
                biased;
                request = self.release_requests.recv() => return Ok(request),
                () = self.closing.cancelled() => return Err(Lost::Closing),
                () = sleep_until(wake.into()) => {}
            }
            let now = Moment::now();
            if self.lease.has_ended(now) {
                return Err(Lost::Deadline);
            }
            if now.steady >= self.max_hold_at {
                return Err(Lost::MaxHold);
            }
            if now.steady < due {
                continue;
            }
            if self.renew().await? {
                backoff.reset();
                due = self.lease.renew_at();
            } else {
                due = Instant::now() + backoff.next_pause();
            }
        }
    }

    /// One try. `false`: no answer, or none that says whose the lock is; there may be time for another.
    async fn renew(&mut self) -> Result<bool, Lost> {
        let sent = Moment::now();
        // The deadline comes whether Redis answers or not.
        let limit = call_timeout(self.acquisition.ttl).min(self.lease.remaining(sent));
        let refusal = match timeout(limit, self.acquisition.renew(&mut self.redis)).await {
            Ok(Ok(RenewCode::Renewed)) => {
                let lease = Lease::new(sent, self.acquisition.ttl);
                if lease.has_ended(Moment::now()) {
                    return Err(Lost::Deadline);
                }
                self.lease = lease;
                self.status.send_modify(|status| status.lease = lease);
                self.metrics.renewal(Renewal::Renewed);
                return Ok(true);
            }
            Ok(Ok(RenewCode::Missing)) => Lost::Missing,
            Ok(Ok(RenewCode::Foreign)) => Lost::Foreign,
            failed => {
                let cause = failed.map_or_else(|_| "no answer".to_owned(), |answer| format!("{answer:?}"));
                self.metrics.renewal(Renewal::Failed);
                let left = self.lease.remaining(Moment::now());
                warn!(name = %self.acquisition.name, token = self.token, cause, ?left, "a lock was not renewed");
                return Ok(false);
            }
        };
        self.metrics.renewal(Renewal::Refused);
        Err(refusal)
    }

    /// Final: nothing ever takes the loss back, for somebody else may have held the lock in between.
    fn lose(&mut self, why: Lost) {
        let (name, token, held) = (&self.acquisition.name, self.token, self.since.elapsed());
        if why == Lost::Closing {
            debug!(%name, token, "a lock is closed: the process is going down");
        } else {
            error!(%name, token, reason = why.label(), ?held, "a lock was lost while its job was running");
            self.metrics.lost(why);
        }
        // Last: a job that sees the loss finds all other fields set.
        self.status.send_modify(|status| status.lost = Some(why));
    }

    /// Frees the lock if it is still ours. What another holds is left alone, whatever was lost before.
    async fn give_back(&mut self) -> Released {
        let lost = self.status.borrow().lost;
        let until = Instant::now() + (self.acquisition.ttl / 3).min(RELEASE_WITHIN);
        let mut backoff = retry_backoff(self.acquisition.ttl);
        loop {
            let call = self.acquisition.release(&mut self.redis);
            let code = match timeout(call_timeout(self.acquisition.ttl), call).await {
                Ok(Ok(code)) => code,
                failed => {
                    let cause = failed.map_or_else(|_| "no answer".to_owned(), |answer| format!("{answer:?}"));
                    let pause = backoff.next_pause();
                    if Instant::now() + pause < until {
                        sleep(pause).await;
                        continue;
                    }
                    warn!(name = %self.acquisition.name, token = self.token, cause, "a release was not confirmed");
                    return lost.map_or(Released::Unconfirmed, Released::Lost);
                }
            };
            let found = match code {
                ReleaseCode::Released => lost.map_or(Released::Released, Released::Lost),
                ReleaseCode::Already => lost.map_or(Released::AlreadyReleased, Released::Lost),
                ReleaseCode::Missing => Released::Lost(lost.unwrap_or(Lost::Missing)),
                ReleaseCode::Foreign => Released::Lost(lost.unwrap_or(Lost::Foreign)),
            };
            if let (Released::Lost(why), None) = (found, lost) {
                self.lose(why);
            }
            return found;
        }
    }
}
