//! Virtual users: they send the clicks of a plan over real HTTP, in an open loop.
//!
//! Clicks follow the plan, not the answers: a slow service meets the same load as a fast one, and latency counts
//! from the moment at which the click was due. A fixed number of workers take the clicks in order, so a request
//! costs no task of its own. A buyer whose answer decided nothing asks again (`follow_up`). With [`PostPurchase`],
//! buyers pay, cancel or forget their orders (`lifecycle`), and buyers without a unit buy again when the sale shows
//! units (`retry`).

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

/// Retries at once: they must not take the connections of the first clicks.
const RETRIES_AT_ONCE: usize = 64;
/// Payments, cancellations and reads at once. Each needs one of the few connections that a node has to its database:
/// many more would wait until the node rejects them, and come too late to pay.
const ORDER_CALLS_AT_ONCE: usize = 80;

/// How many clicks are in flight at most, and how long an undecided buyer asks again.
#[derive(Clone, Copy, Debug)]
pub struct Pacing {
    /// Bounds the workers, not the arrivals: a click that has to wait is late, and its latency says so.
    pub in_flight: usize,
    /// From the first undecided answer.
    pub follow_up_timeout: Duration,
    /// First pause of an undecided buyer when the service names none; doubles up to the second.
    pub follow_up_pause: Duration,
    /// Closed loop: so many buyers click one after the other, each as soon as the last answer is there, and the plan's
    /// times do not count. Such users wait for a slow service, and hide how slow it is.
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

/// The virtual users of one sale.
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
    /// Per buyer, whether a follow-up is running: five undecided clicks make one follow-up.
    has_follow_up: Vec<AtomicBool>,
    pub(super) follow_ups: TaskTracker,
    pub(super) states: BuyerStates,
    /// The orders that are not final yet.
    pub(super) lifecycles: TaskTracker,
    pub(super) retry_permits: Semaphore,
    pub(super) order_permits: Semaphore,
    /// Orders that were not final when the users stopped.
    pub(super) unfinished: AtomicU64,
    sent_all: AtomicBool,
    /// Deliveries of units that are still to come.
    expected: AtomicUsize,
    /// Cancelled: no further click, and no further wait.
    pub(super) stopping: CancellationToken,
}

/// A purchase as it is sent.
pub(super) struct PurchaseRequest {
    pub caller: Caller,
    pub body: Bytes,
    /// Sent because the sale showed units; without a key.
    pub is_retry: bool,
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

    /// Users who go on after their purchases.
    pub fn with_post_purchase(
        client: Arc<Client>,
        plan: Arc<Plan>,
        sale: SaleId,
        start: Instant,
        pacing: Pacing,
        post_purchase: Option<PostPurchase>,
    ) -> anyhow::Result<Arc<Self>> {
        let users = Self::build(client, plan, sale, start, pacing, Arc::default())?;
        Ok(Arc::new(Self { post_purchase, ..users }))
    }

    /// As [`VirtualUsers::with_post_purchase`], with counters that the users of other sales may share.
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
        let users = Self::build(client, plan, open_sale.id, open_sale.start, pacing, tally)?;
        Ok(Arc::new(Self { post_purchase, ..users }))
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

    /// As [`VirtualUsers::run`]; with [`PostPurchase`], it goes on until every order is final, and nothing is left or
    /// nobody wants a unit. `observer` says what is left, as far as it can see.
    pub async fn run_observed<W: StoreObserver>(self: &Arc<Self>, observer: &W) {
        let clicking = async {
            self.send_clicks().await;
            self.sent_all.store(true, Relaxed);
        };
        let ((), stop_reason) = tokio::join!(clicking, self.retry_until_done(observer));
        self.follow_ups.close();
        self.follow_ups.wait().await;
        self.lifecycles.close();
        self.lifecycles.wait().await;
        if let Some(stop_reason) = stop_reason {
            let (still_wanting, unfinished) = (self.states.wanting() as u64, self.unfinished.load(Relaxed));
            self.recorder.stopped(FinalState { still_wanting, unfinished, stop_reason });
        }
    }

    /// Stops early: no further click, and no further wait. Requests in flight still get their answers.
    pub fn stop(&self) {
        self.stopping.cancel();
    }

    pub const fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// So many deliveries of units are still to come: the users do not stop before the last of them.
    pub fn expect_deliveries(&self, deliveries: usize) {
        self.expected.store(deliveries, Relaxed);
    }

    /// Only units that show up could cause another request: no click is due, no follow-up runs, no order is open.
    pub(super) fn is_quiet(&self) -> bool {
        self.has_sent_all()
            && self.expected.load(Relaxed) == 0
            && self.follow_ups.is_empty()
            && self.lifecycles.is_empty()
    }

    pub(super) fn has_sent_all(&self) -> bool {
        self.sent_all.load(Relaxed)
    }

    async fn send_clicks(self: &Arc<Self>) {
        let workers = TaskTracker::new();
        for _ in 0..self.pacing.in_flight.clamp(1, self.plan.clicks.len().max(1)) {
            workers.spawn(Arc::clone(self).work());
        }
        workers.close();
        workers.wait().await;
    }

    /// What the buyers were told. `None` while somebody else still holds the users.
    pub fn into_record(self: Arc<Self>) -> Option<ClientRecord> {
        Arc::into_inner(self).map(|users| users.recorder.into_record())
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
                let users = Arc::clone(&self);
                self.follow_ups.spawn(async move {
                    users.follow_up(click.buyer, click.nth, answer, &users.first_request(click.buyer)).await;
                    users.has_follow_up[click.buyer as usize].store(false, Relaxed);
                });
            }
        }
    }

    fn first_request(&self, number: u32) -> PurchaseRequest {
        let buyer = &self.plan.buyers[number as usize];
        PurchaseRequest { caller: buyer.caller.clone(), body: buyer.body.clone(), is_retry: false }
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
            self.pacing.fresh_connections && !request.is_retry,
            node,
            Method::POST,
            &self.purchases,
            &request.caller,
            request.body.clone(),
        );
        let sent = sent.await;
        let transport = Transport::of(&sent);
        let answer = Answer::of(sent);
        let (latency, is_retry) = (due.elapsed(), request.is_retry);
        self.recorder.record_answer(&Sample { buyer: number, answer: &answer, transport, latency, is_retry });
        if let (Some(post_purchase), Some(order)) = (self.post_purchase, self.states.record_answer(number, &answer)) {
            self.lifecycles.spawn(Arc::clone(self).follow_order(number, order, post_purchase));
        }
        answer
    }
}
