//! A lock that is held: what the job sees of it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgPool;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::fence::{self, Fence};
use super::lease::{Lease, Moment};
use super::metrics::Metrics;
use super::script::Acquisition;

/// Why a lock is not ours any more. Final: somebody else may have held it since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Redis does not know the lock: it expired, was removed, or Redis lost its memory.
    Missing,
    /// Somebody else holds it.
    Foreign,
    /// It could not be renewed in time.
    Deadline,
    /// It was held for as long as a job may hold it.
    MaxHold,
    /// The process is going down.
    Closing,
    /// The thread that renews it has ended.
    Unattended,
}

impl Lost {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Foreign => "foreign",
            Self::Deadline => "deadline",
            Self::MaxHold => "max_hold",
            Self::Closing => "closing",
            Self::Unattended => "unattended",
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl std::error::Error for Lost {}

/// How a release ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a lock that was lost before its release did not protect the job"]
pub enum Released {
    /// It was ours until now, and is free.
    Released,
    /// An earlier try had freed it, and its answer was lost.
    AlreadyReleased,
    /// It was not ours any more. What another holds is untouched.
    Lost(Lost),
    /// Redis did not say. The lock expires by itself.
    Unconfirmed,
    /// Another guard of the same hold is still there: the lock stays.
    Kept,
}

/// What the job knows of its lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Status {
    pub(super) lease: Lease,
    pub(super) lost: Option<Lost>,
}

/// Somebody who waits for the end of a release.
pub(super) type Ask = oneshot::Sender<Released>;

/// One hold, shared by the guards that re-entered it. Dropping it closes `asks`, by which the keeper notices.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) acquisition: Acquisition,
    pub(super) token: i64,
    pub(super) status: watch::Receiver<Status>,
    pub(super) asks: mpsc::UnboundedSender<Ask>,
    pub(super) over: CancellationToken,
}

/// The lock, as long as it is held.
///
/// Give it back with [`Guard::release`]. Dropping it does so too, without waiting, spawning or blocking: the thread
/// that renews the lock notices, frees it when it can, and otherwise lets it expire.
#[derive(Debug)]
#[must_use = "a guard that is dropped gives the lock back"]
pub struct Guard {
    hold: Arc<Hold>,
    pool: PgPool,
    metrics: Metrics,
}

impl Guard {
    pub(super) fn new(hold: Hold, pool: PgPool, metrics: Metrics) -> Self {
        Self { hold: Arc::new(hold), pool, metrics }
    }

    /// The fencing token: greater than that of every earlier holder. Re-entry does not change it.
    pub fn token(&self) -> i64 {
        self.hold.token
    }

    /// Unique to this acquisition.
    pub fn holder(&self) -> String {
        self.hold.acquisition.id.to_string()
    }

    /// Claims the locked resource in PostgreSQL, once, before the first write of the job.
    ///
    /// # Errors
    /// [`fence::Error::Overtaken`]: somebody claimed it without the lock since the token was minted. The next
    /// acquisition starts above theirs.
    pub async fn claim(&self) -> Result<Fence, fence::Error> {
        let resource = self.hold.acquisition.name.to_string();
        Fence::claim(&self.pool, resource, self.token(), self.holder(), self.metrics.fence_rejected.clone()).await
    }

    /// Resolves when the lock is lost. A job races its work against this and stops without writing.
    pub async fn lost(&self) -> Lost {
        let mut status = self.hold.status.clone();
        match status.wait_for(|status| status.lost.is_some()).await {
            Ok(status) => status.lost.unwrap_or(Lost::Unattended),
            Err(_) => Lost::Unattended,
        }
    }

    /// Cancelled when the hold is over, by loss or by release: for what the job starts besides itself.
    pub fn over(&self) -> CancellationToken {
        self.hold.over.child_token()
    }

    /// Whether the lock is still ours, by our own clock: for the loops of a job.
    ///
    /// # Errors
    /// Why it is not.
    pub fn check(&self) -> Result<(), Lost> {
        let status = *self.hold.status.borrow();
        match status.lost {
            Some(why) => Err(why),
            None if status.lease.has_ended(Moment::now()) => Err(Lost::Deadline),
            None => Ok(()),
        }
    }

    /// Until when it is ours if it is not renewed again. Every renewal moves it.
    pub fn deadline(&self) -> Instant {
        self.hold.status.borrow().lease.deadline()
    }

    /// Time left until [`Guard::deadline`]; zero for a lost lock.
    pub fn remaining(&self) -> Duration {
        let status = *self.hold.status.borrow();
        if status.lost.is_some() { Duration::ZERO } else { status.lease.remaining(Moment::now()) }
    }

    /// A second guard of the same hold, for code that needs the lock and is called with it held. The lock is given
    /// back with the last of them.
    ///
    /// # Errors
    /// When the lock is not held any more: re-entry never takes it afresh.
    pub fn reenter(&self) -> Result<Self, Lost> {
        self.check()?;
        Ok(Self { hold: self.hold.clone(), pool: self.pool.clone(), metrics: self.metrics.clone() })
    }

    /// Gives the lock back. Waits until the last renewal has ended, so that none can follow.
    ///
    /// Without an answer from Redis it gives up after a third of the time to live or five seconds, whichever is less,
    /// and at most two calls more. Dropping the future does not stop the release.
    pub async fn release(self) -> Released {
        // Exactly one of several guards gets the hold.
        let Some(hold) = Arc::into_inner(self.hold) else { return Released::Kept };
        let (ask, answer) = oneshot::channel();
        if hold.asks.send(ask).is_err() {
            return Released::Lost(Lost::Unattended);
        }
        answer.await.unwrap_or(Released::Lost(Lost::Unattended))
    }
}
