//! The life of an order after its 202: its buyer pays, cancels, or forgets it until it expires.
//!
//! In: an order and its buyer's profile. Guaranteed: it is asked about until it is final or the crowd leaves; what
//! the buyer was told last is what the record keeps; and units that come back are wanted again by some.

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

/// Between two questions about an order.
const PAUSE: Duration = Duration::from_millis(500);

/// Why a move is refused: the order stands elsewhere.
#[derive(Deserialize)]
struct Standing {
    order_status: OrderStatus,
}

impl VirtualUsers {
    /// Sees one order to its end, or until the crowd leaves.
    pub(super) async fn follow_order(self: Arc<Self>, number: u32, mut order: OrderId, post_purchase: PostPurchase) {
        let profile = self.plan.buyers[number as usize].profile;
        loop {
            // Who comes a second time knows what for.
            let intent = if self.states.mark_served(number) { Intent::Pay } else { profile.intent };
            let end = async {
                sleep(profile.think_time).await;
                if intent == Intent::Forget {
                    sleep(post_purchase.pay_within).await;
                }
                self.wait_until_final(number, order, intent).await
            };
            let Some(status) = self.stopping().run_until_cancelled(end).await else {
                self.unfinished.fetch_add(1, Relaxed);
                return;
            };
            self.recorder.ended(order, status);
            match status {
                OrderStatus::Paid => return self.states.order_paid(number),
                OrderStatus::Rejected => {}
                // Who wanted to pay and came too late still wants a unit.
                _ => return self.states.order_closed(number, order, profile.wants_another || intent == Intent::Pay),
            }
            // Rejected for another one of the same buyer: that one lives on.
            self.states.order_closed(number, order, false);
            let other = self.own_order(number, 0).await.flatten().filter(|other| *other != order);
            match other.and_then(|other| self.states.record_order(number, other)) {
                Some(other) => order = other,
                None => return,
            }
        }
    }

    /// Does what the buyer intends, until the order has ended one way or another.
    async fn wait_until_final(&self, number: u32, order: OrderId, intent: Intent) -> OrderStatus {
        let (method, what) = match intent {
            Intent::Pay => (Method::POST, "/pay"),
            Intent::Cancel => (Method::POST, "/cancel"),
            Intent::Forget => (Method::GET, ""),
        };
        let caller = &self.plan.buyers[number as usize].caller;
        let mut node = number as usize;
        loop {
            let mut pause = PAUSE;
            if let (Ok(_hand), Ok(path)) =
                (self.order_permits.acquire().await, format!("/api/v1/orders/{order}{what}").parse::<Uri>())
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

/// How the order stands by this answer; `None` when it does not say.
fn status(reply: &Reply) -> Option<OrderStatus> {
    match reply.status {
        200 => serde_json::from_slice::<OwnOrder>(&reply.body).ok().map(|seen| seen.status),
        409 => serde_json::from_slice::<Standing>(&reply.body).ok().map(|standing| standing.order_status),
        _ => None,
    }
}
