//! Retries: buyers without a unit buy again when the sale shows units that were cancelled, expired, delivered, or moved
//! out of the reserve.
//!
//! In: `GET /api/v1/sales/{id}`, polled five times a second. Decided: who buys again, and when the users stop.
//! Guaranteed: they stop once every order is final, and nothing is left or nobody wants a unit. They stop earlier at
//! the timeout or when the run is stopped, and the record says which.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::{Method, Uri};
use serde::Deserialize;
use tokio::time::{MissedTickBehavior, interval};

use super::client::Caller;
use super::demand::body_for;
use super::observer::StoreObserver;
use super::record::StopReason;
use super::virtual_users::{PurchaseRequest, VirtualUsers};

const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Without access to the ledger: the sale must show nothing for so long before nothing counts as left. The reconciler
/// runs twice a second, and compares claims with rows every five seconds.
const NOTHING_FOR: Duration = Duration::from_secs(7);
/// Real buyers do not all retry at the same moment: retries for each unit that shows, for an unknown number of units,
/// and at most at one poll.
const FOR_EACH: usize = 2;
const FOR_SOME: usize = 16;
const MOST: usize = 400;

/// What the page of a sale says. `remaining` is null while the node does not know.
#[derive(Deserialize)]
struct Page {
    remaining: Option<u32>,
}

impl VirtualUsers {
    /// Starts retries until nothing is left to do, then stops the users. Returns at once without [`PostPurchase`].
    ///
    /// [`PostPurchase`]: super::demand::PostPurchase
    pub(super) async fn retry_until_done<W: StoreObserver>(self: &Arc<Self>, observer: &W) -> Option<StopReason> {
        let reason = self.poll_sale(observer, self.post_purchase?.timeout).await;
        // Follow-ups and orders that are still open have waited long enough.
        self.stop();
        Some(reason)
    }

    async fn poll_sale<W: StoreObserver>(self: &Arc<Self>, observer: &W, timeout: Duration) -> StopReason {
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Each payment restarts the timeout. Paid orders stay paid, so there is an end to that.
        let (mut paid, mut waiting_since) = (0, None);
        let mut nothing_since = None;
        let mut poll = 0;
        loop {
            if self.stopping().run_until_cancelled(ticks.tick()).await.is_none() {
                return StopReason::Cancelled;
            }
            poll += 1;
            // Read first: after this, only this loop could start a request.
            let quiet = self.is_quiet();
            let page = self.sale_page(poll).await;
            let unsold = observer.unsold(self.sale).await.ok().flatten();
            match (quiet, &page) {
                (true, Some(Page { remaining: Some(0) })) => {
                    nothing_since = nothing_since.or_else(|| Some(Instant::now()));
                }
                _ => nothing_since = None,
            }
            let nothing_left = match unsold {
                Some(units) => units <= 0,
                None => nothing_since.is_some_and(|since| since.elapsed() >= NOTHING_FOR),
            };
            if quiet && (nothing_left || self.states.waiting() == 0) {
                return StopReason::Completed;
            }
            if self.has_sent_all() {
                let paid_now = self.recorder.tally.paid.load(Relaxed);
                if paid_now > paid {
                    (paid, waiting_since) = (paid_now, None);
                }
                if waiting_since.get_or_insert_with(Instant::now).elapsed() >= timeout {
                    return StopReason::TimedOut;
                }
            }
            if let Some(page) = page {
                self.start_retries(page.remaining);
            }
        }
    }

    /// Starts retries for units that the sale shows; `None`: it sells, and how many are left is unknown.
    fn start_retries(self: &Arc<Self>, remaining: Option<u32>) {
        let most = match remaining {
            Some(units) => (units as usize).saturating_mul(FOR_EACH).min(MOST),
            None => FOR_SOME,
        };
        // An order may ask for `remaining` units at most; if that is unknown, it asks for one.
        let at_most = remaining.unwrap_or(1);
        for buyer in self.states.start_retries(most) {
            self.follow_ups.spawn(Arc::clone(self).retry(buyer, at_most));
        }
    }

    /// Buys again, at most `at_most` units, and asks until there is a decision.
    async fn retry(self: Arc<Self>, number: u32, at_most: u32) {
        let Ok(permit) = self.retry_permits.acquire().await else { return };
        let buyer = &self.plan.buyers[number as usize];
        let caller = Caller { idempotency_key: None, ..buyer.caller.clone() };
        let request = PurchaseRequest { caller, body: body_for(buyer.quantity.min(at_most).max(1)), is_retry: true };
        let answer = self.purchase(number, 1, Instant::now(), &request).await;
        // A long follow-up must not keep others from their retries.
        drop(permit);
        if answer.is_open() {
            self.follow_up(number, 1, answer, &request).await;
        }
        self.states.end_retry(number);
    }

    /// The sale's page; `None` without an answer.
    async fn sale_page(&self, nth: usize) -> Option<Page> {
        let path: Uri = format!("/api/v1/sales/{}", self.sale).parse().ok()?;
        let reply = self.client.send(nth, Method::GET, &path, &Caller::default(), Bytes::new()).await.ok()?;
        serde_json::from_slice::<Page>(&reply.body).ok().filter(|_| reply.status == 200)
    }
}
