//! What the relay counts.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntGaugeVec, Opts, Registry};

/// Shared by all sales of a process; only the backlog is told apart by sale.
#[derive(Clone)]
pub struct Metrics {
    pub published: IntCounter,
    pub retried: IntCounter,
    pub dead_lettered: IntCounter,
    pub claimed: IntCounter,
    pub left: IntCounter,
    pub redis_errors: IntCounter,
    pub backlog: IntGaugeVec,
    pub ack_seconds: Histogram,
}

impl Metrics {
    /// # Errors
    /// When `registry` has metrics of these names already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| -> Result<IntCounter, prometheus::Error> {
            let counter = IntCounter::new(format!("seckill_outbox_{name}_total"), help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let backlog = IntGaugeVec::new(
            Opts::new("seckill_outbox_backlog_entries", "Accepted orders of a sale that Kafka has not confirmed."),
            &["sale"],
        )?;
        registry.register(Box::new(backlog.clone()))?;
        let ack_seconds = Histogram::with_opts(
            HistogramOpts::new("seckill_outbox_ack_seconds", "Time to remove a batch of confirmed entries.")
                .buckets(vec![0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0]),
        )?;
        registry.register(Box::new(ack_seconds.clone()))?;
        Ok(Self {
            published: counter("published", "Orders that Kafka has confirmed.")?,
            retried: counter("retried", "Orders sent to Kafka once more after a failed delivery.")?,
            dead_lettered: counter("dead_lettered", "Entries that were no orders.")?,
            claimed: counter("claimed", "Entries taken over from a relay that went silent.")?,
            left: counter("left", "Entries still unconfirmed when a relay stopped; they stay in the stream.")?,
            redis_errors: counter("redis_errors", "Failed commands on the outbox.")?,
            backlog,
            ack_seconds,
        })
    }
}
