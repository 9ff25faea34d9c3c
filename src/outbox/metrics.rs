//! What the relay counts.

crate::metrics! {
    /// Shared by all sales of a process; only the backlog is told apart by sale.
    pub struct Metrics {
        /// Orders that Kafka has confirmed.
        pub published: IntCounter = "seckill_outbox_published_total",
        /// Orders sent to Kafka once more after a failed delivery.
        pub retried: IntCounter = "seckill_outbox_retried_total",
        /// Entries that are not orders and went to the dead letters.
        pub dead_lettered: IntCounter = "seckill_outbox_dead_lettered_total",
        /// Entries taken over from a relay that went silent.
        pub claimed: IntCounter = "seckill_outbox_claimed_total",
        /// Entries still unconfirmed when a relay stopped; they stay in the stream.
        pub left: IntCounter = "seckill_outbox_left_total",
        /// Failed commands on the outbox.
        pub redis_errors: IntCounter = "seckill_outbox_redis_errors_total",
        /// Accepted orders of a sale that Kafka has not confirmed.
        pub backlog: IntGaugeVec["sale"] = "seckill_outbox_backlog_entries",
        /// Time to remove a batch of confirmed entries.
        pub ack_seconds: Histogram(&[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0])
            = "seckill_outbox_ack_seconds",
    }
}
