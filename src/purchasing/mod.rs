//! Step 4 as a whole: a purchase goes to the stock in Redis, or falls back to the reserve in the ledger.
//!
//! In: a purchase on its way to the stock. Decided: whether Redis is asked at all (a circuit breaker: while it is
//! open, only one trial call at a time goes to Redis), and whether the reserve is asked instead (a bulkhead: at most a
//! few at once, beyond which the buyer is told to come back; PostgreSQL is not made to carry a flash sale).
//! Guaranteed: the units of the reserve are not in Redis, so no order that got its 202 there loses its unit here,
//! however mistaken this node is about Redis; an unknown outcome goes on under the same order id, so it becomes one
//! order; and a fault never becomes "sold out".

mod breaker;

mod circuit;

mod metrics;

use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::Registry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config;
use crate::domain::{OrderId, Outcome, Purchase, Refusal, Sale, SaleId};
use crate::ledger::{Ledger, Reserved};
use crate::stock::{Answer, Reachability, Stock};
use breaker::Outcome as CallOutcome;
use circuit::Circuit;
use metrics::Metrics;

/// How long a buyer waits for the reserve. The limits of the server are shorter; this one is for a server that hangs.
const RESERVE_TIMEOUT: Duration = Duration::from_secs(6);

/// The way of every purchase: the stock, and the reserve where Redis cannot sell. One for the whole node.
pub struct Purchasing {
    stock: Stock,
    ledger: Ledger,
    circuit: Circuit,
    permits: Arc<Semaphore>,
    metrics: Metrics,
}

impl Purchasing {
    pub fn new(
        settings: &config::Fallback,
        stock: Stock,
        ledger: Ledger,
        registry: &Registry,
    ) -> Result<Self, prometheus::Error> {
        let circuit = Circuit::new(settings.failures, Duration::from_millis(settings.open_ms), Instant::now);
        let permits = Arc::new(Semaphore::new(settings.concurrency));
        Ok(Self { stock, ledger, circuit, permits, metrics: Metrics::registered(registry)? })
    }

    /// The answer of the stock or, where it has none, that of the reserve. `mint_spare` makes an unused order id. It is
    /// called only when the reserve is asked, which needs another id if the purchase's own was rejected before.
    pub async fn purchase(&self, sale: &Sale, purchase: Purchase, mint_spare: impl FnOnce() -> OrderId) -> Answer {
        // The node's copy of the figure is a second old at most: enough to leave PostgreSQL alone when nothing is there.
        let kept = (sale.reserve > 0).then(|| purchase.clone());
        let answer = self.ask_stock(sale.id, purchase).await;
        match kept {
            Some(purchase) if should_fall_back(&answer) => {
                let outcome = self.ask_reserve(sale.id, purchase, mint_spare(), answer.outcome).await;
                Answer { outcome, ..answer }
            }
            _ => answer,
        }
    }

    async fn ask_stock(&self, sale: SaleId, purchase: Purchase) -> Answer {
        let Some(permit) = self.circuit.try_acquire() else {
            return Answer { outcome: Outcome::NotTried, update: None, reachability: Reachability::Unreachable };
        };
        let answer = self.stock.purchase(sale, purchase).await;
        permit.record(match answer.reachability {
            Reachability::Reached => CallOutcome::Success,
            Reachability::Unreachable => CallOutcome::Failure,
            Reachability::QueueFull => CallOutcome::Ignored,
        });
        self.metrics.breaker_open.set(i64::from(!self.circuit.is_closed()));
        answer
    }

    async fn ask_reserve(&self, sale: SaleId, purchase: Purchase, spare: OrderId, first: Outcome) -> Outcome {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            self.metrics.count("crowded");
            return first;
        };
        let order = purchase.order;
        let (reserved, outcome) = match self.take(permit, sale, purchase, spare).await {
            Taken::Answered(reserved) => (name(&reserved), merge_outcomes(reserved, first)),
            Taken::Failed => ("failed", first),
            Taken::NoAnswer => ("unknown", Outcome::Unknown(order)),
        };
        self.metrics.count(reserved);
        outcome
    }

    /// The permit is held until the ledger is done, whatever becomes of the buyer who waits.
    async fn take(&self, permit: OwnedSemaphorePermit, sale: SaleId, purchase: Purchase, spare: OrderId) -> Taken {
        let ledger = self.ledger.clone();
        let work = tokio::spawn(async move {
            let reserved = ledger.reserve_purchase(sale, purchase, spare).await;
            drop(permit);
            reserved
        });
        match tokio::time::timeout(RESERVE_TIMEOUT, work).await {
            Ok(Ok(Ok(reserved))) => Taken::Answered(reserved),
            Ok(Ok(Err(error))) => {
                tracing::debug!(%sale, %error, "the reserve could not be asked");
                Taken::Failed
            }
            Ok(Err(_)) | Err(_) => Taken::NoAnswer,
        }
    }
}

enum Taken {
    Answered(Reserved),
    /// Nothing was written.
    Failed,
    NoAnswer,
}

/// Whether the reserve is asked: Redis could not be reached, or answers that it may not sell, as during a rebuild.
///
/// Not when Redis sells and only this node is behind (an update of a newer generation): a second later it will not be. Nor
/// when the queue is full already: that is demand, not a fault.
const fn should_fall_back(answer: &Answer) -> bool {
    matches!(answer.outcome, Outcome::Cold | Outcome::NotTried | Outcome::Unknown(_))
        && answer.update.is_none()
        && !matches!(answer.reachability, Reachability::QueueFull)
}

/// The answer to a buyer whose purchase came to `first` in Redis.
const fn merge_outcomes(reserved: Reserved, first: Outcome) -> Outcome {
    match (reserved, first) {
        (Reserved::Accepted(accepted), _) => Outcome::Accepted(accepted),
        (Reserved::Unknown(order), _) => Outcome::Unknown(order),
        // About the buyer's order, and true whatever Redis did: an order that it took would end as already purchased.
        (Reserved::Refused(refusal @ (Refusal::AlreadyPurchased { .. } | Refusal::KeyReused)), _) => {
            Outcome::Refused(refusal)
        }
        // Redis may have taken it a moment before the sale was over: not known is not no.
        (Reserved::Refused(_) | Reserved::Exhausted, Outcome::Unknown(order)) => Outcome::Unknown(order),
        (Reserved::Refused(refusal), _) => Outcome::Refused(refusal),
        (Reserved::Exhausted, first) => first,
    }
}

const fn name(reserved: &Reserved) -> &'static str {
    match reserved {
        Reserved::Accepted(accepted) if accepted.replayed => "replayed",
        Reserved::Accepted(_) => "accepted",
        Reserved::Refused(_) => "refused",
        Reserved::Exhausted => "exhausted",
        Reserved::Unknown(_) => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Accepted;

    fn order(n: u64) -> OrderId {
        OrderId::mint(SaleId::new(1).expect("a sale id"), 0, n)
    }

    #[test]
    fn what_is_unknown_stays_unknown_unless_the_ledger_knows_of_an_order() {
        let unknown = Outcome::Unknown(order(1));
        assert_eq!(merge_outcomes(Reserved::Exhausted, unknown), unknown);
        assert_eq!(merge_outcomes(Reserved::Refused(Refusal::Ended), unknown), unknown);
        let held = Refusal::AlreadyPurchased { order: order(2) };
        assert_eq!(merge_outcomes(Reserved::Refused(held), unknown), Outcome::Refused(held));
        let accepted = Accepted { order: order(1), quantity: 1, replayed: false };
        assert_eq!(merge_outcomes(Reserved::Accepted(accepted), unknown), Outcome::Accepted(accepted));
    }

    #[test]
    fn a_full_queue_is_demand_and_no_fault_that_the_reserve_bridges() {
        let answer = |reachability| Answer { outcome: Outcome::NotTried, update: None, reachability };
        assert!(should_fall_back(&answer(Reachability::Unreachable)));
        assert!(!should_fall_back(&answer(Reachability::QueueFull)));
    }

    #[test]
    fn a_reserve_that_is_gone_is_a_fault_and_never_sold_out() {
        assert_eq!(merge_outcomes(Reserved::Exhausted, Outcome::Cold), Outcome::Cold);
        assert_eq!(merge_outcomes(Reserved::Refused(Refusal::Ended), Outcome::Cold), Outcome::Refused(Refusal::Ended));
    }
}
