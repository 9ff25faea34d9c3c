//! What the ledger counts.

use std::time::Duration;

use super::Recorded;

crate::metrics! {
    /// Of one ledger, for all of its users.
    pub struct Metrics {
        /// Messages by their outcome: created, skipped (a redelivery), or the reason of their rejection. sold_out means
        /// that a 202 was broken.
        orders: IntCounterVec["outcome"] = "seckill_ledger_orders_total",
        /// Writes that found another stock or other orders than they had assumed, and were decided again.
        pub(super) lost_races: IntCounter = "seckill_ledger_lost_races_total",
        /// Batches that lost too many races and were written under a lock on the stock row.
        pub(super) row_locks: IntCounter = "seckill_ledger_row_locks_total",
        /// Time to turn a batch into rows.
        batch_seconds: Histogram = "seckill_ledger_batch_seconds",
    }
}

impl Metrics {
    pub(super) fn count(&self, recorded: &Recorded) {
        let outcomes = [
            ("created", recorded.created),
            ("sold_out", recorded.sold_out),
            ("already_purchased", recorded.already_purchased),
            ("superseded", recorded.superseded),
            ("skipped", recorded.skipped),
        ];
        for (outcome, messages) in outcomes {
            self.orders.with_label_values(&[outcome]).inc_by(messages);
        }
    }

    pub(super) fn took(&self, time: Duration) {
        self.batch_seconds.observe(time.as_secs_f64());
    }
}
