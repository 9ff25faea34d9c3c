//! What the consumer counts.

crate::metrics! {
    /// Of one consumer process.
    pub struct Metrics {
        /// Messages that became rows or dead letters.
        pub messages: IntCounter = "seckill_consumer_messages_total",
        /// Batches of messages that were written.
        pub batches: IntCounter = "seckill_consumer_batches_total",
        /// Batches tried once more because the ledger could not take them.
        pub retries: IntCounter = "seckill_consumer_retries_total",
        /// Messages that are not orders and went to the dead letters.
        pub dead_lettered: IntCounter = "seckill_consumer_dead_lettered_total",
        /// Offset commits that Kafka refused.
        pub commit_failures: IntCounter = "seckill_consumer_commit_failures_total",
        /// Rebalances in which partitions were revoked.
        pub rebalances: IntCounter = "seckill_consumer_rebalances_total",
        /// Messages of this consumer's partitions that are not committed.
        pub lag: IntGauge = "seckill_consumer_lag_messages",
        /// 1 while reading is paused because the ledger is slow or away.
        pub paused: IntGauge = "seckill_consumer_paused",
    }
}
