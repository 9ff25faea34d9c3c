//! The buyers: an open loop of clicks over real HTTP, and what a buyer does when no answer came.
//!
//! Clicks follow the plan, not the answers: a slow service meets the same crowd as a fast one, and latency counts
//! from the moment at which the click was due. A fixed number of workers take the clicks in order, so a request
//! costs no task of its own. A buyer who is left without a decision asks on (`follow_up`). A crowd with [`PostPurchase`] lives on: orders are paid,
//! cancelled and forgotten (`lifecycle`), and who got nothing comes again when the sale shows units
//! (`retry`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::{Method, Uri};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::admin_client::OpenSale;
use super::answer::{Answer, Transport};
use super::buyer_states::BuyerStates;
use super::client::{Caller, Client};
use super::demand::{Click, Plan, PostPurchase};
use super::observer::{NoAccess, StoreObserver};
use super::record::{ClientRecord, FinalState, Recorder, Sample, Tally};
use seckill::api::problem::Code;
use seckill::domain::{OrderId, OrderStatus, Rejection, SaleId};

/// Purchases at once of buyers who come again: they must not take the connections of those who click for the first time.
const RETRIES_AT_ONCE: usize = 64;
/// Payments and look-ups at once. Each needs one of the few connections that a node has to its database: many more at
/// once would wait for these until they are turned away, and come too late to pay.
const ORDER_CALLS_AT_ONCE: usize = 80;

/// How many clicks are in flight at most, and how long an undecided buyer goes on asking.
#[derive(Clone, Copy, Debug)]
pub struct Pacing {
    /// Bounds the workers, not the arrivals: a click that has to wait is late, and its latency says so.
    pub in_flight: usize,
    /// From the first undecided answer.
    pub follow_up_timeout: Duration,
    /// First pause of an undecided buyer when the service names none; doubles up to the second.
    pub follow_up_pause: Duration,
    /// Closed loop: so many buyers click one after the other, each as soon as the last answer is there, and the plan's
    /// times do not count. Such a crowd waits for a slow service, and hides how slow it is.
    pub closed_loop: bool,
    /// Every first click comes over a connection of its own.
    pub fresh_connections: bool,
}

impl Default for Pacing {
    fn default() -> Self {
        Self {
            in_flight: 256,
            follow_up_timeout: Duration::from_secs(60),
            follow_up_pause: Duration::from_millis(100),
            closed_loop: false,
            fresh_connections: false,
        }
    }
}

/// The crowd in front of one sale.
pub struct VirtualUsers {
    pub(super) client: Arc<Client>,
    pub(super) plan: Arc<Plan>,
    pub(super) pacing: Pacing,
    pub(super) post_purchase: Option<PostPurchase>,
    pub(super) sale: SaleId,
    purchases: Uri,
    pub(super) own_order: Uri,
    /// When the sale starts, by the service's clock as this machine sees it.
    start: Instant,
    pub recorder: Recorder,
    next: AtomicUsize,
    /// Per buyer, whether somebody already asks on its behalf: five undecided clicks make one follow-up.
    has_follow_up: Vec<AtomicBool>,
    pub(super) follow_ups: TaskTracker,
    pub(super) states: BuyerStates,
    /// The orders that are not over yet.
    pub(super) lifecycles: TaskTracker,
    pub(super) retry_permits: Semaphore,
    pub(super) order_permits: Semaphore,
    /// Orders whose buyers left before the end.
    pub(super) unfinished: AtomicU64,
    sent_all: AtomicBool,
    /// Deliveries of units that are still to come.
    expected: AtomicUsize,
    /// No further click, and nobody waits for anything.
    pub(super) stopping: CancellationToken,
}

/// A purchase as it is sent.
pub(super) struct PurchaseRequest {
    pub caller: Caller,
    pub body: Bytes,
    /// Of a buyer who comes again, without a key.
    pub again: bool,
}

/// An order as its buyer reads it.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct OwnOrder {
    pub order_id: OrderId,
    pub status: OrderStatus,
    pub reason: Option<Rejection>,
}

impl VirtualUsers {
    pub fn new(
        client: Arc<Client>,
        plan: Arc<Plan>,
        sale: SaleId,
        start: Instant,
        pacing: Pacing,
    ) -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self::build(client, plan, sale, start, pacing, Arc::default())?))
    }

    /// A crowd that lives on after its purchases.
    pub fn with_post_purchase(
        client: Arc<Client>,
        plan: Arc<Plan>,
        sale: SaleId,
        start: Instant,
        pacing: Pacing,
        post_purchase: Option<PostPurchase>,
    ) -> anyhow::Result<Arc<Self>> {
        let crowd = Self::build(client, plan, sale, start, pacing, Arc::default())?;
        Ok(Arc::new(Self { post_purchase, ..crowd }))
    }

    /// As [`VirtualUsers::with_post_purchase`], with counters that other crowds may share.
    pub fn with_tally(
        client: Arc<Client>,
        plan: Arc<Plan>,
        open_sale: OpenSale,
        pacing: Pacing,
        post_purchase: Option<PostPurchase>,
        tally: Arc<Tally>,
    ) -> anyhow::Result<Arc<Self>> {
        tally.clicks.fetch_add(plan.clicks.len() as u64, Relaxed);
        // The first of several starts is as good as any.
        let _ = tally.start.set(open_sale.start);
        let crowd = Self::build(client, plan, open_sale.id, open_sale.start, pacing, tally)?;
        Ok(Arc::new(Self { post_purchase, ..crowd }))
    }

    fn build(
        client: Arc<Client>,
        plan: Arc<Plan>,
        sale: SaleId,
        start: Instant,
        pacing: Pacing,
        tally: Arc<Tally>,
    ) -> anyhow::Result<Self> {
        let states = BuyerStates::new(plan.buyers.len());
        let has_follow_up = plan.buyers.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Self {
            purchases: format!("/api/v1/sales/{sale}/purchases").parse()?,
            own_order: format!("/api/v1/sales/{sale}/order").parse()?,
            recorder: Recorder::new(start, tally)?,
            client,
            plan,
            pacing,
            start,
            next: AtomicUsize::new(0),
            has_follow_up,
            follow_ups: TaskTracker::new(),
            states,
            lifecycles: TaskTracker::new(),
            retry_permits: Semaphore::new(RETRIES_AT_ONCE),
            order_permits: Semaphore::new(ORDER_CALLS_AT_ONCE),
            unfinished: AtomicU64::new(0),
            sent_all: AtomicBool::new(false),
            expected: AtomicUsize::new(0),
            stopping: CancellationToken::new(),
            post_purchase: None,
            sale,
        })
    }

    /// Runs the whole plan and returns when every click is answered and every undecided buyer knows or gave up.
    pub async fn run(self: &Arc<Self>) {
        self.run_observed(&NoAccess).await;
    }

    /// As [`VirtualUsers::run`]; a crowd that lifecycles on stays until every order of its own is over, and nothing is left or
    /// nobody wants any. `observer` says what is left, as far as it can see.
    pub async fn run_observed<W: StoreObserver>(self: &Arc<Self>, observer: &W) {
        let clicking = async {
            self.click().await;
            self.sent_all.store(true, Relaxed);
        };
        let ((), end) = tokio::join!(clicking, self.retry_until_done(observer));
        self.follow_ups.close();
        self.follow_ups.wait().await;
        self.lifecycles.close();
        self.lifecycles.wait().await;
        if let Some(end) = end {
            let (wanting, unfinished) = (self.states.wanting() as u64, self.unfinished.load(Relaxed));
            self.recorder.stopped(FinalState { wanting, unfinished, end });
        }
    }

    /// Sends everybody away: no further click, and nobody waits any longer. What is under way is still answered.
    pub fn stop(&self) {
        self.stopping.cancel();
    }

    pub const fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// So many deliveries of units are still to come: before the last of them the act is not over.
    pub fn expect_deliveries(&self, deliveries: usize) {
        self.expected.store(deliveries, Relaxed);
    }

    /// Nothing will happen but by units that show up: no click is due, nobody asks, no order is open.
    pub(super) fn is_quiet(&self) -> bool {
        self.has_sent_all()
            && self.expected.load(Relaxed) == 0
            && self.follow_ups.is_empty()
            && self.lifecycles.is_empty()
    }

    pub(super) fn has_sent_all(&self) -> bool {
        self.sent_all.load(Relaxed)
    }

    async fn click(self: &Arc<Self>) {
        let workers = TaskTracker::new();
        for _ in 0..self.pacing.in_flight.clamp(1, self.plan.clicks.len().max(1)) {
            workers.spawn(Arc::clone(self).work());
        }
        workers.close();
        workers.wait().await;
    }

    /// What the buyers were told. `None` while somebody else still holds the crowd.
    pub fn into_record(self: Arc<Self>) -> Option<ClientRecord> {
        Arc::into_inner(self).map(|crowd| crowd.recorder.into_record())
    }

    async fn work(self: Arc<Self>) {
        while let Some(click) = self.plan.clicks.get(self.next.fetch_add(1, Relaxed)).copied() {
            let due = if self.pacing.closed_loop { self.start.max(Instant::now()) } else { self.due(click) };
            if self.stopping.run_until_cancelled(sleep_until(due.into())).await.is_none() {
                break;
            }
            let answer = self.purchase(click.buyer, click.nth, due, &self.first_request(click.buyer)).await;
            // Due after the start, and yet too soon for the service's clock: such a buyer clicks again.
            let too_soon =
                click.at_us >= 0 && matches!(&answer, Answer::Refused(refusal) if refusal.is(Code::SaleNotStarted));
            if (answer.is_open() || too_soon) && !self.has_follow_up[click.buyer as usize].swap(true, Relaxed) {
                let crowd = Arc::clone(&self);
                self.follow_ups.spawn(async move {
                    crowd.follow_up(click.buyer, click.nth, answer, &crowd.first_request(click.buyer)).await;
                    crowd.has_follow_up[click.buyer as usize].store(false, Relaxed);
                });
            }
        }
    }

    fn first_request(&self, number: u32) -> PurchaseRequest {
        let buyer = &self.plan.buyers[number as usize];
        PurchaseRequest { caller: buyer.caller.clone(), body: buyer.body.clone(), again: false }
    }

    fn due(&self, click: Click) -> Instant {
        let distance = Duration::from_micros(click.at_us.unsigned_abs());
        let due = if click.at_us < 0 { self.start.checked_sub(distance) } else { self.start.checked_add(distance) };
        due.unwrap_or(self.start)
    }

    pub(super) async fn purchase(
        self: &Arc<Self>,
        number: u32,
        nth: u32,
        due: Instant,
        request: &PurchaseRequest,
    ) -> Answer {
        let node = number as usize + nth as usize;
        let sent = self.client.send_over(
            self.pacing.fresh_connections && !request.again,
            node,
            Method::POST,
            &self.purchases,
            &request.caller,
            request.body.clone(),
        );
        let sent = sent.await;
        let channel = Transport::of(&sent);
        let answer = Answer::of(sent);
        let (latency, again) = (due.elapsed(), request.again);
        self.recorder.record_answer(&Sample { buyer: number, answer: &answer, channel, latency, again });
        if let (Some(post_purchase), Some(order)) = (self.post_purchase, self.states.record_answer(number, &answer)) {
            self.lifecycles.spawn(Arc::clone(self).follow_order(number, order, post_purchase));
        }
        answer
    }
}
