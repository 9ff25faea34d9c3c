//! What admission counts: one counter per outcome, resolved once, so that a refusal costs one atomic addition.

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};

use super::buckets::Gauges;

/// Counters of [`super::Admission`].
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
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let admitted = IntCounter::new("seckill_admission_admitted_total", "Purchases let through to the stock")?;
        let refused = IntCounterVec::new(
            Opts::new("seckill_admission_refused_total", "Purchases refused before the stock, by what refused them"),
            &["by"],
        )?;
        let tracked = IntGaugeVec::new(
            Opts::new("seckill_admission_tracked_keys", "Token buckets held in memory, as of the last sweep"),
            &["bucket"],
        )?;
        let untracked = IntCounterVec::new(
            Opts::new(
                "seckill_admission_untracked_total",
                "Purchases that no bucket of their own held, because admission.max_tracked was reached",
            ),
            &["bucket"],
        )?;
        registry.register(Box::new(admitted.clone()))?;
        registry.register(Box::new(refused.clone()))?;
        registry.register(Box::new(tracked.clone()))?;
        registry.register(Box::new(untracked.clone()))?;
        let gauges = |bucket| Gauges {
            tracked: tracked.with_label_values(&[bucket]),
            untracked: untracked.with_label_values(&[bucket]),
        };
        let refused_by = |by| refused.with_label_values(&[by]);
        Ok(Self {
            admitted,
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
