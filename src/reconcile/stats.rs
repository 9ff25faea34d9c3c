//! What the jobs have found and done, for metrics, logs and reports.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Job {
    /// Unpaid orders beyond their time are closed.
    Expire,
    /// A ledger that is older than Redis learns of the generation there. The rebuild follows with the next run.
    CatchUp,
    /// The whole sale is filled into Redis again.
    Rebuild,
    /// Live orders without a claim have one again, by a rebuild.
    Restore,
    /// Claims of closed orders are released.
    Release,
    /// Claims without a row are published again.
    Republish,
    /// Redis learns of units that the ledger has given to it.
    Total,
    /// The reserve is given to Redis to sell.
    ReleaseReserve,
}

impl Job {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expire => "expire",
            Self::CatchUp => "catch-up",
            Self::Rebuild => "rebuild",
            Self::Restore => "restore",
            Self::Release => "release",
            Self::Republish => "republish",
            Self::Total => "total",
            Self::ReleaseReserve => "move",
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Of one job in one run, in the things that it is about: sales, orders or claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Inspected.
    pub checked: u64,
    /// Not as it should be. At most the limit of repairs for one run.
    pub found: u64,
    pub repaired: u64,
}

/// Of all jobs in one run. Jobs that did not run are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobStats(pub BTreeMap<Job, JobCounts>);

impl JobStats {
    pub(super) fn checked(&mut self, job: Job, checked: usize, found: usize) {
        let counts = self.0.entry(job).or_default();
        counts.checked += checked as u64;
        counts.found += found as u64;
    }

    pub(super) fn repaired(&mut self, job: Job, count: u64) {
        if count > 0 {
            self.0.entry(job).or_default().repaired += count;
        }
    }

    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.0.values().all(|counts| counts.found == 0)
    }

    /// What one job has done.
    pub fn of(&self, job: Job) -> JobCounts {
        self.0.get(&job).copied().unwrap_or_default()
    }
}

crate::metrics! {
    /// Counters of the reconciler.
    pub struct Metrics {
        /// Sales, orders and claims that were checked.
        checked: IntCounterVec["job"] = "seckill_reconcile_checked_total",
        /// Things to be repaired, each run they are seen in.
        found: IntCounterVec["job"] = "seckill_reconcile_found_total",
        /// Things repaired.
        repaired: IntCounterVec["job"] = "seckill_reconcile_repaired_total",
        /// Time from the freeze of a sale until it sells again.
        rebuild_seconds: Histogram = "seckill_reconcile_rebuild_seconds",
    }
}

impl Metrics {
    pub(super) fn inspected(&self, stats: &JobStats) {
        for (job, counts) in &stats.0 {
            self.checked.with_label_values(&[job.as_str()]).inc_by(counts.checked);
            self.found.with_label_values(&[job.as_str()]).inc_by(counts.found);
        }
    }

    pub(super) fn repaired(&self, stats: &JobStats) {
        for (job, counts) in &stats.0 {
            self.repaired.with_label_values(&[job.as_str()]).inc_by(counts.repaired);
        }
    }

    pub(super) fn rebuilt(&self, took: Duration) {
        self.rebuild_seconds.observe(took.as_secs_f64());
    }
}
