//! What the consumer counts.

use prometheus::{IntCounter, IntGauge, Registry};

#[derive(Clone)]
pub struct Metrics {
    pub messages: IntCounter,
    pub batches: IntCounter,
    pub retries: IntCounter,
    pub dead_lettered: IntCounter,
    pub commit_failures: IntCounter,
    pub rebalances: IntCounter,
    pub lag: IntGauge,
    pub paused: IntGauge,
}

impl Metrics {
    /// # Errors
    /// When `registry` has metrics of these names already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| -> Result<IntCounter, prometheus::Error> {
            let counter = IntCounter::new(format!("seckill_consumer_{name}_total"), help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let gauge = |name: &str, help: &str| -> Result<IntGauge, prometheus::Error> {
            let gauge = IntGauge::new(format!("seckill_consumer_{name}"), help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        Ok(Self {
            messages: counter("messages", "Messages that became rows or dead letters.")?,
            batches: counter("batches", "Batches of messages that were written.")?,
            retries: counter("retries", "Batches tried once more because the ledger could not take them.")?,
            dead_lettered: counter("dead_lettered", "Messages that were no orders.")?,
            commit_failures: counter("commit_failures", "Offset commits that Kafka refused.")?,
            rebalances: counter("rebalances", "Times that partitions were taken away.")?,
            lag: gauge("lag_messages", "Messages of this consumer's partitions that are not committed.")?,
            paused: gauge("paused", "1 while reading is paused because the ledger is slow or away.")?,
        })
    }
}
