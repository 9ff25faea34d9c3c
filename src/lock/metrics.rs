//! What the lock counts. A loss or a refused write means that exclusion failed and was noticed: both should page.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

use super::{AcquireError, Lost, Released};

#[derive(Clone, Debug)]
pub struct Metrics {
    acquire: IntCounterVec,
    renew: IntCounterVec,
    lost: IntCounterVec,
    release: IntCounterVec,
    pub(super) dropped: IntCounter,
    pub(super) fence_rejected: IntCounter,
    wait_seconds: Histogram,
    hold_seconds: Histogram,
}

/// How a renewal ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Renewal {
    Renewed,
    Refused,
    Failed,
}

impl Metrics {
    /// Counters that nobody collects until `register` is called.
    pub(super) fn new() -> Self {
        let vec = |name: &str, help: &str, label: &str| {
            IntCounterVec::new(Opts::new(name, help), &[label]).expect("a valid metric")
        };
        let counter = |name: &str, help: &str| IntCounter::new(name, help).expect("a valid metric");
        let seconds =
            |name: &str, help: &str| Histogram::with_opts(HistogramOpts::new(name, help)).expect("a valid metric");
        Self {
            acquire: vec("seckill_lock_acquire_total", "Attempts to get a lock, by their result.", "result"),
            renew: vec("seckill_lock_renew_total", "Renewals by their result; failed ones are repeated.", "result"),
            lost: vec("seckill_lock_lost_total", "Locks lost while they were held, by the reason. Page.", "reason"),
            release: vec("seckill_lock_release_total", "Releases by their outcome. Page on lost.", "outcome"),
            dropped: counter("seckill_lock_dropped_total", "Locks that were dropped instead of released."),
            fence_rejected: counter(
                "seckill_lock_fence_rejected_total",
                "Claims and writes that a greater fencing token refused: two held a lock, and it was caught. Page.",
            ),
            wait_seconds: seconds("seckill_lock_wait_seconds", "Time until a lock was had or given up."),
            hold_seconds: seconds("seckill_lock_hold_seconds", "Time for which a lock was held."),
        }
    }

    /// Shows the counters under `registry`. Fails if another lock already did.
    pub fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        for counters in [&self.acquire, &self.renew, &self.lost, &self.release] {
            registry.register(Box::new(counters.clone()))?;
        }
        registry.register(Box::new(self.dropped.clone()))?;
        registry.register(Box::new(self.fence_rejected.clone()))?;
        registry.register(Box::new(self.wait_seconds.clone()))?;
        registry.register(Box::new(self.hold_seconds.clone()))
    }

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
            Released::Kept => return,
        };
        self.release.with_label_values(&[label]).inc();
        self.hold_seconds.observe(held.as_secs_f64());
    }
}
