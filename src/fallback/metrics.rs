//! What the fallback counts.

use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

pub struct Metrics {
    purchases: IntCounterVec,
    pub breaker_open: IntGauge,
}

impl Metrics {
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let purchases = Opts::new(
            "seckill_fallback_purchases_total",
            "Purchases that met a Redis that could not sell, by what the reserve said: accepted, replayed, refused, \
             exhausted, unknown, failed (the ledger did not answer), crowded (no seat was free).",
        );
        let breaker_open = "1 while this node keeps purchases from Redis because it does not answer.";
        let metrics = Self {
            purchases: IntCounterVec::new(purchases, &["outcome"])?,
            breaker_open: IntGauge::new("seckill_fallback_breaker_open", breaker_open)?,
        };
        registry.register(Box::new(metrics.purchases.clone()))?;
        registry.register(Box::new(metrics.breaker_open.clone()))?;
        Ok(metrics)
    }

    pub fn count(&self, outcome: &str) {
        self.purchases.with_label_values(&[outcome]).inc();
    }
}
