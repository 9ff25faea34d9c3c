//! What the fallback counts.

crate::metrics! {
    /// Of one node.
    pub struct Metrics {
        /// Purchases that met a Redis that could not sell, by what the reserve said: accepted, replayed, refused,
        /// exhausted, unknown, failed (the ledger did not answer), crowded (no permit was free).
        purchases: IntCounterVec["outcome"] = "seckill_fallback_purchases_total",
        /// 1 while this node keeps purchases from Redis because it does not answer.
        pub breaker_open: IntGauge = "seckill_fallback_breaker_open",
    }
}

impl Metrics {
    pub fn count(&self, outcome: &str) {
        self.purchases.with_label_values(&[outcome]).inc();
    }
}
