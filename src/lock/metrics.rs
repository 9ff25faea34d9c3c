//! What the lock counts. A loss or a refused write means that exclusion failed and was noticed: both should page.

use std::time::Duration;

use super::{AcquireError, Lost, Released};

crate::metrics! {
    /// Of all locks of a process.
    pub struct Metrics {
        /// Attempts to acquire a lock, by their result.
        acquire: IntCounterVec["result"] = "seckill_lock_acquire_total",
        /// Renewals by their result; failed ones are repeated.
        renew: IntCounterVec["result"] = "seckill_lock_renew_total",
        /// Locks lost while they were held, by the reason. Page.
        lost: IntCounterVec["reason"] = "seckill_lock_lost_total",
        /// Releases by their outcome. Page on lost.
        release: IntCounterVec["outcome"] = "seckill_lock_release_total",
        /// Locks that were dropped instead of released.
        pub(super) dropped: IntCounter = "seckill_lock_dropped_total",
        /// Claims and writes that a greater fencing token refused: two held a lock, and it was caught. Page.
        pub(super) fence_rejected: IntCounter = "seckill_lock_fence_rejected_total",
        /// Time until a lock was acquired or given up.
        wait_seconds: Histogram = "seckill_lock_wait_seconds",
        /// Time for which a lock was held.
        hold_seconds: Histogram = "seckill_lock_hold_seconds",
    }
}

/// How a renewal ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Renewal {
    Renewed,
    Refused,
    Failed,
}

impl Metrics {
    pub(super) fn acquired<T>(&self, result: &Result<T, AcquireError>, after: Duration) {
        let label = match result {
            Ok(_) => "taken",
            Err(AcquireError::Busy { .. }) => "busy",
            Err(AcquireError::TimedOut) => "timed_out",
            Err(AcquireError::Unavailable(_)) => "unavailable",
        };
        self.acquire.with_label_values(&[label]).inc();
        self.wait_seconds.observe(after.as_secs_f64());
    }

    pub(super) fn renewal(&self, result: Renewal) {
        let label = match result {
            Renewal::Renewed => "renewed",
            Renewal::Refused => "refused",
            Renewal::Failed => "failed",
        };
        self.renew.with_label_values(&[label]).inc();
    }

    pub(super) fn lost(&self, why: Lost) {
        self.lost.with_label_values(&[why.label()]).inc();
    }

    pub(super) fn released(&self, outcome: Released, held: Duration) {
        let label = match outcome {
            Released::Released => "released",
            Released::AlreadyReleased => "already_released",
            Released::Lost(Lost::Closing) => "closing",
            Released::Lost(_) => "lost",
            Released::Unconfirmed => "unconfirmed",
        };
        self.release.with_label_values(&[label]).inc();
        self.hold_seconds.observe(held.as_secs_f64());
    }
}
