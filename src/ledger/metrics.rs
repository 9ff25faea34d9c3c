//! What the ledger counts.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

use super::Recorded;

#[derive(Clone, Debug)]
pub struct Metrics {
    orders: IntCounterVec,
    pub(super) lost_races: IntCounter,
    pub(super) row_locks: IntCounter,
    batch_seconds: Histogram,
}

impl Metrics {
    /// Counters that nobody collects until `register` is called.
    pub(super) fn new() -> Self {
        let orders = Opts::new(
            "seckill_ledger_orders_total",
            "Messages by what became of them: created, skipped (a redelivery), or the reason of their rejection. \
             sold_out means that a 202 was broken.",
        );
        let lost_races =
            "Writes that found the ledger other than it was read or presumed to be, and were decided again.";
        let row_locks = "Batches that lost too many races and were written under a lock on the stock row.";
        let batch_seconds = HistogramOpts::new("seckill_ledger_batch_seconds", "Time to turn a batch into rows.");
        Self {
            orders: IntCounterVec::new(orders, &["outcome"]).expect("a valid metric"),
            lost_races: IntCounter::new("seckill_ledger_lost_races_total", lost_races).expect("a valid metric"),
            row_locks: IntCounter::new("seckill_ledger_row_locks_total", row_locks).expect("a valid metric"),
            batch_seconds: Histogram::with_opts(batch_seconds).expect("a valid metric"),
        }
    }

    /// Shows the counters under `registry`. Fails if another ledger already did.
    pub fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.orders.clone()))?;
        registry.register(Box::new(self.lost_races.clone()))?;
        registry.register(Box::new(self.row_locks.clone()))?;
        registry.register(Box::new(self.batch_seconds.clone()))
    }

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
