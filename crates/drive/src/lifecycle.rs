//! The lifecycle of an order after its 202: its buyer pays, cancels, or forgets it until it expires.
//!
//! In: an order and its buyer's profile. Guaranteed: the buyer asks about it until it is final or the users stop, the
//! record keeps the last status that the buyer was told, and some buyers want another unit once their order is closed.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Method, Uri};
use serde::Deserialize;
use tokio::time::sleep;

use super::client::Reply;
use super::demand::{Intent, PostPurchase};
use super::virtual_users::{OwnOrder, VirtualUsers};
use seckill::domain::{OrderId, OrderStatus};

/// Between two requests about an order.
const PAUSE: Duration = Duration::from_millis(500);

/// Why a transition is refused: the order has another status.
#[derive(Deserialize)]
struct IllegalTransition {
    order_status: OrderStatus,
}

impl VirtualUsers {
    /// Follows one order until it is final or the users stop.
    pub(super) async fn follow_order(self: Arc<Self>, number: u32, mut order: OrderId, post_purchase: PostPurchase) {
        let profile = self.plan.buyers[number as usize].profile;
        loop {
            // A buyer with a second order pays it.
            let intent = if self.states.mark_served(number) { Intent::Pay } else { profile.intent };
            let final_status = async {
                sleep(profile.think_time).await;
                if intent == Intent::Forget {
                    sleep(post_purchase.pay_within).await;
                }
                self.wait_until_final(number, order, intent).await
            };
            let Some(status) = self.stopping().run_until_cancelled(final_status).await else {
                self.unfinished.fetch_add(1, Relaxed);
                return;
            };
            self.recorder.ended(order, status);
            match status {
                OrderStatus::Paid => return self.states.order_paid(number),
                OrderStatus::Rejected => {}
                // A buyer who wanted to pay and came too late still wants a unit.
                _ => return self.states.order_closed(number, order, profile.wants_another || intent == Intent::Pay),
            }
            // Rejected because the buyer has another order: follow that one.
            self.states.order_closed(number, order, false);
            let other = self.own_order(number, 0).await.flatten().filter(|other| *other != order);
            match other.and_then(|other| self.states.record_order(number, other)) {
                Some(other) => order = other,
                None => return,
            }
        }
    }

    /// Repeats what the buyer intends until the order is final.
    async fn wait_until_final(&self, number: u32, order: OrderId, intent: Intent) -> OrderStatus {
        let (method, action) = match intent {
            Intent::Pay => (Method::POST, "/pay"),
            Intent::Cancel => (Method::POST, "/cancel"),
            Intent::Forget => (Method::GET, ""),
        };
        let caller = &self.plan.buyers[number as usize].caller;
        let mut node = number as usize;
        loop {
            let mut pause = PAUSE;
            if let (Ok(_permit), Ok(path)) =
                (self.order_permits.acquire().await, format!("/api/v1/orders/{order}{action}").parse::<Uri>())
                && let Ok(reply) = self.client.send(node, method.clone(), &path, caller, Bytes::new()).await
            {
                match status(&reply) {
                    Some(status) if status.is_final() => return status,
                    _ => pause = reply.retry_after.unwrap_or(PAUSE),
                }
            }
            node += 1;
            sleep(pause).await;
        }
    }
}

/// The status of the order by this answer; `None` when it does not say.
fn status(reply: &Reply) -> Option<OrderStatus> {
    match reply.status {
        200 => serde_json::from_slice::<OwnOrder>(&reply.body).ok().map(|own| own.status),
        409 => serde_json::from_slice::<IllegalTransition>(&reply.body).ok().map(|illegal| illegal.order_status),
        _ => None,
    }
}
