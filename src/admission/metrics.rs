//! What admission counts: one counter per outcome, resolved once, so that a refusal costs one atomic addition.

use prometheus::{IntCounter, Registry};

use super::buckets::Gauges;

crate::metrics! {
    /// As they are shown.
    struct All {
        /// Purchases let through to the stock.
        admitted: IntCounter = "seckill_admission_admitted_total",
        /// Purchases refused before the stock, by what refused them.
        refused: IntCounterVec["by"] = "seckill_admission_refused_total",
        /// Token buckets held in memory, as of the last sweep.
        tracked: IntGaugeVec["bucket"] = "seckill_admission_tracked_keys",
        /// Purchases that no bucket of their own held, because admission.max_tracked was reached.
        untracked: IntCounterVec["bucket"] = "seckill_admission_untracked_total",
    }
}

/// Counters of [`super::Admission`], each resolved once.
pub(super) struct Metrics {
    pub admitted: IntCounter,
    pub blocked: IntCounter,
    pub user: IntCounter,
    pub address: IntCounter,
    pub challenge: IntCounter,
    pub node: IntCounter,
    pub users: Gauges,
    pub addresses: Gauges,
}

impl Metrics {
    pub fn registered(registry: &Registry) -> Result<Self, prometheus::Error> {
        let all = All::registered(registry)?;
        let gauges = |bucket| Gauges {
            tracked: all.tracked.with_label_values(&[bucket]),
            untracked: all.untracked.with_label_values(&[bucket]),
        };
        let refused_by = |by| all.refused.with_label_values(&[by]);
        Ok(Self {
            admitted: all.admitted.clone(),
            blocked: refused_by("blacklist"),
            user: refused_by("user_bucket"),
            address: refused_by("address_bucket"),
            challenge: refused_by("challenge"),
            node: refused_by("node_bucket"),
            users: gauges("user"),
            addresses: gauges("address"),
        })
    }
}
