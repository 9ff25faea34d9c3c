//! A lock that is held: what the job sees of it.

use std::fmt;
use std::time::Instant;

use sqlx::PgPool;
use tokio::sync::{mpsc, oneshot, watch};

use super::fence::{self, Fence};
use super::lease::Lease;
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
}

/// What the job knows of its lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Status {
    pub(super) lease: Lease,
    pub(super) lost: Option<Lost>,
}

/// A release that a guard asks for, and waits for the end of.
pub(super) type ReleaseRequest = oneshot::Sender<Released>;

/// The guard's side of a held lease. Dropping it closes `release_requests`, by which the other side notices.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) acquisition: Acquisition,
    pub(super) token: i64,
    pub(super) status: watch::Receiver<Status>,
    pub(super) release_requests: mpsc::UnboundedSender<ReleaseRequest>,
}

/// The lock, as long as it is held.
///
/// Give it back with [`Guard::release`]. Dropping it does so too, without waiting, spawning or blocking: the thread
/// that renews the lock notices, frees it when it can, and otherwise lets it expire.
#[derive(Debug)]
#[must_use = "a guard that is dropped gives the lock back"]
pub struct Guard {
    hold: Hold,
    pool: PgPool,
    metrics: Metrics,
}

impl Guard {
    pub(super) fn new(hold: Hold, pool: PgPool, metrics: Metrics) -> Self {
        Self { hold, pool, metrics }
    }

    /// The fencing token: greater than that of every earlier holder.
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

    /// Until when it is ours if it is not renewed again. Every renewal moves it.
    pub fn deadline(&self) -> Instant {
        self.hold.status.borrow().lease.deadline()
    }

    /// Gives the lock back. Waits until the last renewal has ended, so that none can follow.
    ///
    /// Without an answer from Redis it gives up after a third of the time to live or five seconds, whichever is less,
    /// and at most two calls more. Dropping the future does not stop the release.
    pub async fn release(self) -> Released {
        let (request, answer) = oneshot::channel();
        if self.hold.release_requests.send(request).is_err() {
            return Released::Lost(Lost::Unattended);
        }
        answer.await.unwrap_or(Released::Lost(Lost::Unattended))
    }
}
