//! Buyers who ask once more: after an answer that decided nothing, or because the sale shows units.
//!
//! Guaranteed: who is left without a decision asks until there is one, patience ends or the crowd leaves; with an
//! Idempotency-Key by the same purchase, without one by `GET …/order` first, so that no order is made twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use hyper::body::Bytes;
use tokio::time::sleep;

use super::answer::Answer;
use super::client::Caller;
use super::demand::body_for;
use super::virtual_users::{OwnOrder, PurchaseRequest, VirtualUsers};
use seckill::domain::{OrderId, OrderStatus};

impl VirtualUsers {
    /// A buyer who was told of units comes for at most so many of them, and asks until there is a decision.
    pub(super) async fn retry(self: Arc<Self>, number: u32, at_most: u32) {
        let Ok(turn) = self.retry_permits.acquire().await else { return };
        let buyer = &self.plan.buyers[number as usize];
        let caller = Caller { idempotency_key: None, ..buyer.caller.clone() };
        let request = PurchaseRequest { caller, body: body_for(buyer.quantity.min(at_most).max(1)), again: true };
        let answer = self.purchase(number, 1, Instant::now(), &request).await;
        // Who has to ask again and again must not keep others from coming.
        drop(turn);
        if answer.is_open() {
            self.follow_up(number, 1, answer, &request).await;
        }
        self.states.end_retry(number);
    }

    /// Asks until there is a decision: what a careful client does after an unknown answer.
    pub(super) async fn follow_up(
        self: &Arc<Self>,
        number: u32,
        mut nth: u32,
        mut answer: Answer,
        request: &PurchaseRequest,
    ) {
        let deadline = Instant::now() + self.pacing.follow_up_timeout;
        let mut pause = self.pacing.follow_up_pause;
        loop {
            let asked_to_wait = match answer {
                Answer::Undecided { retry_after, .. } => retry_after,
                _ => None,
            };
            // Spread by buyer, so that thousands who failed together do not come back together.
            let spread = pause.mul_f64(f64::from(number % 64) / 64.0);
            let wait = sleep(asked_to_wait.unwrap_or(pause) + spread);
            if self.stopping.run_until_cancelled(wait).await.is_none() || Instant::now() >= deadline {
                // Who holds an order by another click knows.
                if !self.states.is_decided(number) {
                    self.recorder.gave_up(number);
                }
                return;
            }
            pause = (pause * 2).min(Duration::from_secs(1));
            // The next node, as a balancer would do.
            nth += 1;
            if request.caller.idempotency_key.is_none() {
                match self.own_order(number, nth).await {
                    Some(Some(order)) => {
                        self.recorder.found(number);
                        if let (Some(post_purchase), Some(order)) =
                            (self.post_purchase, self.states.record_order(number, order))
                        {
                            self.lifecycles.spawn(Arc::clone(self).follow_order(number, order, post_purchase));
                        }
                        return;
                    }
                    Some(None) => {}
                    None => {
                        answer = Answer::Undecided { status: None, retry_after: None };
                        continue;
                    }
                }
            }
            answer = self.purchase(number, nth, Instant::now(), request).await;
            if !answer.is_open() {
                return;
            }
        }
    }

    /// The order that the buyer has, if it is not closed; `None` when the service cannot say.
    pub(super) async fn own_order(&self, number: u32, nth: u32) -> Option<Option<OrderId>> {
        let caller = &self.plan.buyers[number as usize].caller;
        let node = number as usize + nth as usize;
        let reply = self.client.send(node, Method::GET, &self.own_order, caller, Bytes::new()).await.ok()?;
        match reply.status {
            200 => {
                let seen: OwnOrder = serde_json::from_slice(&reply.body).ok()?;
                let open = matches!(seen.status, OrderStatus::Queued | OrderStatus::Created | OrderStatus::Paid);
                Some(open.then_some(seen.order_id))
            }
            404 => Some(None),
            _ => None,
        }
    }
}
