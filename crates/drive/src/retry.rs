//! Who got nothing watches the sale and comes again when it shows units: cancelled, expired, or moved out of the reserve.
//!
//! In: what `GET /api/v1/sales/{id}` shows, five times a second. Decided: who comes again, and when the act is over.
//! Guaranteed: it ends only when every order of the crowd has ended and nothing is left or nobody wants any; or when
//! patience ends or the crowd is sent away, and then the record says so.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::{Method, Uri};
use serde::Deserialize;
use tokio::time::{MissedTickBehavior, interval};

use super::client::Caller;
use super::observer::StoreObserver;
use super::record::StopReason;
use super::virtual_users::VirtualUsers;

const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// For how long nothing must show before an onlooker believes that nothing is left: the auditor looks twice a second,
/// and compares claims with rows every five seconds.
const NOTHING_FOR: Duration = Duration::from_secs(7);
/// Not everybody looks at the same moment: how many come for each unit that shows, and for units of an unknown number.
const FOR_EACH: usize = 2;
const FOR_SOME: usize = 16;
const MOST: usize = 400;

/// What the page of a sale says. `remaining` is null while the node does not know.
#[derive(Deserialize)]
struct Page {
    remaining: Option<u32>,
}

impl VirtualUsers {
    /// Until the end of the act, then sends everybody away. Returns at once for a crowd without a post-purchase profile.
    pub(super) async fn retry_until_done<W: StoreObserver>(self: &Arc<Self>, observer: &W) -> Option<StopReason> {
        let end = self.watch(observer, self.post_purchase?.timeout).await;
        // Whoever is still at it has waited long enough.
        self.stop();
        Some(end)
    }

    async fn watch<W: StoreObserver>(self: &Arc<Self>, observer: &W, patience: Duration) -> StopReason {
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Paid orders stay, so what patience counts from cannot move for ever.
        let (mut paid, mut moved) = (0, None);
        let mut nothing_since = None;
        let mut look = 0;
        loop {
            if self.stopping().run_until_cancelled(ticks.tick()).await.is_none() {
                return StopReason::Cancelled;
            }
            look += 1;
            // Before anything is read: only this loop could break the quiet.
            let quiet = self.is_quiet();
            let shown = self.look(look).await;
            let unsold = observer.unsold(self.sale).await.ok().flatten();
            match (quiet, shown) {
                (true, Some(Some(0))) => nothing_since = nothing_since.or_else(|| Some(Instant::now())),
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
                let so_far = self.recorder.tally.paid.load(Relaxed);
                if so_far > paid {
                    (paid, moved) = (so_far, None);
                }
                if moved.get_or_insert_with(Instant::now).elapsed() >= patience {
                    return StopReason::TimedOut;
                }
            }
            self.start_retries(shown.flatten(), shown.is_some());
        }
    }

    fn start_retries(self: &Arc<Self>, shown: Option<u32>, page: bool) {
        let most = match shown {
            Some(units) => (units as usize).saturating_mul(FOR_EACH).min(MOST),
            None if page => FOR_SOME,
            None => 0,
        };
        // `remaining` is what an order may ask for; of an unknown number, one is a start.
        let at_most = shown.unwrap_or(1);
        for buyer in self.states.start_retries(most) {
            self.follow_ups.spawn(Arc::clone(self).retry(buyer, at_most));
        }
    }

    /// What the sale's page shows; `None` without an answer.
    async fn look(&self, nth: usize) -> Option<Option<u32>> {
        let path: Uri = format!("/api/v1/sales/{}", self.sale).parse().ok()?;
        let reply = self.client.send(nth, Method::GET, &path, &Caller::default(), Bytes::new()).await.ok()?;
        serde_json::from_slice::<Page>(&reply.body).ok().filter(|_| reply.status == 200).map(|page| page.remaining)
    }
}
