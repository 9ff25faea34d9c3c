//! Closing an order: first in the ledger, then in Redis.
//!
//! In: an order to be cancelled or to expire. Decided by the ledger alone: whether it may, once however often it is
//! asked. Guaranteed: Redis is updated only after the commit, and by the order's id, so what is free in Redis is free
//! in the ledger, and a late repeat frees nothing that the same buyer has bought since.
//!
//! After the ledger's yes the answer is yes. A Redis that cannot be reached then keeps a claim of a closed order: its
//! unit is not sold again until somebody repeats the release, which asking for the same closing also does.

use std::sync::Arc;

use crate::domain::{Order, OrderId, OrderStatus};
use crate::ledger::{self, Ledger, Moved, run_detached};
use crate::stock::Stock;
use crate::stock::script::ReleaseCode;
use crate::telemetry::Outage;

/// Closes orders. Clones share what they have said in the log.
#[derive(Clone)]
pub struct Closing {
    ledger: Ledger,
    stock: Stock,
    outage: Arc<Outage>,
}

impl Closing {
    pub fn new(ledger: Ledger, stock: Stock) -> Self {
        Self { ledger, stock, outage: Arc::default() }
    }

    /// Ends an unpaid order as `cancelled` or `expired`, and gives its units back. Harmless to repeat.
    ///
    /// Runs to its end even if nobody waits for it any more: a buyer who hangs up must not leave a unit behind.
    ///
    /// # Errors
    /// Those of the ledger, and then nothing was changed, or it is not known whether it was: ask again. Never those
    /// of Redis.
    pub async fn close(&self, id: OrderId, how: OrderStatus) -> Result<Moved, ledger::Error> {
        let closing = self.clone();
        run_detached(async move {
            let moved = closing.ledger.close(id, how).await?;
            // Also where it was closed before, and whichever way: this completes what a crash cut off.
            let closed =
                moved.order().filter(|order| matches!(order.status, OrderStatus::Cancelled | OrderStatus::Expired));
            if let Some(order) = closed {
                closing.release(order).await;
            }
            Ok(moved)
        })
        .await
    }

    async fn release(&self, order: &Order) {
        match self.stock.release(order.sale, &order.user, order.id).await {
            Ok(ReleaseCode::Overfull) => {
                tracing::error!(order = %order.id, sale = %order.sale, "a release would exceed the total: not done");
            }
            Ok(ReleaseCode::Released | ReleaseCode::NotHeld | ReleaseCode::Cold) => {
                self.outage.recovered(|| tracing::info!("Redis is told of closed orders again"));
            }
            Err(error) => {
                self.outage.failed(&error, |error| {
                    tracing::warn!(order = %order.id, %error, "an order is closed and Redis could not be told");
                });
            }
        }
    }
}
