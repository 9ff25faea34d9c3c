//! Group commit: while one batch of a sale is in flight, the next one gathers.
//!
//! No timer and no added wait: an idle sale sends a purchase at once, alone. Under load the batch grows by itself
//! to whatever arrived during one round trip, which is also one write of the append-only file for all of them.

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::{Answer, MAX_BATCH, Reachability, Stock};
use crate::domain::{Purchase, SaleId};
use crate::telemetry::Outage;

/// Purchases that may wait for one sale on one node. Beyond it Redis is slower than the demand by seconds, and
/// an honest "try again" is better than a place in a queue that will time out.
const MAX_WAITING: usize = 16 * MAX_BATCH;

struct Waiting {
    purchase: Purchase,
    answer: oneshot::Sender<Answer>,
}

/// The way into the queue of one sale.
#[derive(Clone)]
pub(super) struct Batcher {
    queue: mpsc::Sender<Waiting>,
}

impl Batcher {
    pub(super) fn start(stock: Stock, sale: SaleId, runtime: &Handle) -> Self {
        let (queue, waiting) = mpsc::channel(MAX_WAITING);
        runtime.spawn(run(stock, sale, waiting));
        Self { queue }
    }

    pub(super) async fn purchase(&self, purchase: Purchase) -> Answer {
        let order = purchase.order;
        let (answer, answered) = oneshot::channel();
        match self.queue.try_send(Waiting { purchase, answer }) {
            Ok(()) => answered.await.unwrap_or_else(|_| Answer::unknown(order)),
            // Not sent, so certainly not bought.
            Err(_) => Answer::not_tried(Reachability::QueueFull),
        }
    }
}

async fn run(stock: Stock, sale: SaleId, mut queue: mpsc::Receiver<Waiting>) {
    let mut gathered: Vec<Waiting> = Vec::with_capacity(MAX_BATCH);
    let outage = Outage::default();
    while queue.recv_many(&mut gathered, MAX_BATCH).await > 0 {
        // A buyer who hung up while waiting gets no order: nothing was sent for it.
        gathered.retain(|waiting| !waiting.answer.is_closed());
        if gathered.is_empty() {
            continue;
        }
        let (batch, answers): (Vec<_>, Vec<_>) = gathered.drain(..).map(|w| (w.purchase, w.answer)).unzip();
        match stock.purchase_batch(sale, &batch).await {
            Ok(answered) => {
                outage.recovered(|| tracing::info!(%sale, "purchases are answered again"));
                for (answer, outcome) in answers.into_iter().zip(answered.outcomes) {
                    // A buyer who has gone away is no error: the order stands, and can be asked for.
                    let _ =
                        answer.send(Answer { outcome, update: answered.update, reachability: Reachability::Reached });
                }
            }
            Err(error) => {
                let certain = error.wrote_nothing();
                outage.failed(&error, |error| {
                    tracing::warn!(%sale, certain, %error, "no answer to a batch of purchases: check Redis");
                });
                tracing::debug!(%sale, purchases = batch.len(), certain, %error, "no answer");
                for (answer, purchase) in answers.into_iter().zip(batch) {
                    let unanswered = if certain {
                        Answer::not_tried(Reachability::Unreachable)
                    } else {
                        Answer::unknown(purchase.order)
                    };
                    let _ = answer.send(unanswered);
                }
            }
        }
    }
}
