//! The life of an order after its 202: its buyer pays, cancels, or forgets it until it expires.
//!
//! In: an order and its buyer's character. Guaranteed: it is asked about until it is final or the crowd leaves; what
//! the buyer was told last is what the record keeps; and units that come back are wanted again by some.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Method, Uri};
use serde::Deserialize;
use tokio::time::sleep;

use super::buyers::{Crowd, Seen};
use super::client::Reply;
use super::demand::{Habits, Intent};
use seckill::domain::{OrderId, OrderStatus};

/// Between two questions about an order.
const PAUSE: Duration = Duration::from_millis(500);

/// Why a move is refused: the order stands elsewhere.
#[derive(Deserialize)]
struct Standing {
    order_status: OrderStatus,
}

impl Crowd {
    /// Sees one order to its end, or until the crowd leaves.
    pub(super) async fn live_on(self: Arc<Self>, number: u32, mut order: OrderId, habits: Habits) {
        let character = self.plan.buyers[number as usize].character;
        loop {
            // Who comes a second time knows what for.
            let intent = if self.places.mark_served(number) { Intent::Pay } else { character.intent };
            let end = async {
                sleep(character.hesitates).await;
                if intent == Intent::Forget {
                    sleep(habits.pay_within).await;
                }
                self.end_of(number, order, intent).await
            };
            let Some(status) = self.leaving().run_until_cancelled(end).await else {
                self.unfinished.fetch_add(1, Relaxed);
                return;
            };
            self.recorder.ended(order, status);
            match status {
                OrderStatus::Paid => return self.places.paid(number),
                OrderStatus::Rejected => {}
                // Who wanted to pay and came too late still wants a unit.
                _ => return self.places.closed(number, order, character.regrets || intent == Intent::Pay),
            }
            // Rejected for another one of the same buyer: that one lives on.
            self.places.closed(number, order, false);
            let other = self.own_order(number, 0).await.flatten().filter(|other| *other != order);
            match other.and_then(|other| self.places.holds(number, other)) {
                Some(other) => order = other,
                None => return,
            }
        }
    }

    /// Does what the buyer intends, until the order has ended one way or another.
    async fn end_of(&self, number: u32, order: OrderId, intent: Intent) -> OrderStatus {
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
                (self.hands.acquire().await, format!("/api/v1/orders/{order}{what}").parse::<Uri>())
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
        200 => serde_json::from_slice::<Seen>(&reply.body).ok().map(|seen| seen.status),
        409 => serde_json::from_slice::<Standing>(&reply.body).ok().map(|standing| standing.order_status),
        _ => None,
    }
}
