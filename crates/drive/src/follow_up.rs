//! Follow-ups: a buyer whose answer decided nothing asks again.
//!
//! Guaranteed: the buyer asks until there is a decision, the timeout passes or the users stop. A buyer with an
//! Idempotency-Key repeats the purchase; one without reads `GET …/order` first, so that no order is made twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use hyper::body::Bytes;
use tokio::time::sleep;

use super::answer::Answer;
use super::virtual_users::{OwnOrder, PurchaseRequest, VirtualUsers};
use seckill::domain::{OrderId, OrderStatus};

impl VirtualUsers {
    /// Asks until there is a decision, as a careful client does after an unknown answer.
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
            let retry_after = match answer {
                Answer::Undecided { retry_after, .. } => retry_after,
                _ => None,
            };
            // Spread by buyer, so that thousands who failed together do not come back together.
            let spread = pause.mul_f64(f64::from(number % 64) / 64.0);
            let wait = sleep(retry_after.unwrap_or(pause) + spread);
            if self.stopping.run_until_cancelled(wait).await.is_none() || Instant::now() >= deadline {
                // A buyer with an order from another click has a decision.
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
                let own: OwnOrder = serde_json::from_slice(&reply.body).ok()?;
                let open = matches!(own.status, OrderStatus::Queued | OrderStatus::Created | OrderStatus::Paid);
                Some(open.then_some(own.order_id))
            }
            404 => Some(None),
            _ => None,
        }
    }
}
