//! The buyers: an open loop of clicks over real HTTP, and what a buyer does when no answer came.
//!
//! Clicks follow the plan, not the answers: a slow service meets the same crowd as a fast one, and latency counts
//! from the moment at which the click was due. A fixed number of workers take the clicks in order, so a request
//! costs no task of its own. A buyer who is left without a decision asks on (`asking`). A crowd with [`Habits`] lives on: orders are paid,
//! cancelled and forgotten (`life`), and who got nothing comes again when the sale shows units
//! (`waiting`).

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

use super::answer::{Answer, Channel};
use super::client::{Caller, Client};
use super::demand::{Click, Habits, Plan};
use super::operator::OnSale;
use super::places::Places;
use super::record::{ClientRecord, Heard, Recorder, Tally, Waiting};
use super::witness::{Outsider, Witness};
use seckill::api::problem::Code;
use seckill::domain::{OrderId, OrderStatus, Reason, SaleId};

/// Purchases at once of buyers who come again: they must not take the connections of those who click for the first time.
const AGAIN: usize = 64;
/// Payments and look-ups at once. Each needs one of the few connections that a node has to its database: many more at
/// once would wait for these until they are turned away, and come too late to pay.
const AFTERWARDS: usize = 80;

/// How many clicks are in flight at most, and how long an undecided buyer goes on asking.
#[derive(Clone, Copy, Debug)]
pub struct Temper {
    /// Bounds the workers, not the arrivals: a click that has to wait is late, and its latency says so.
    pub in_flight: usize,
    /// From the first undecided answer.
    pub patience: Duration,
    /// First pause of an undecided buyer when the service names none; doubles up to the second.
    pub pause: Duration,
    /// Closed loop: so many buyers click one after the other, each as soon as the last answer is there, and the plan's
    /// times do not count. Such a crowd waits for a slow service, and hides how slow it is.
    pub closed_loop: bool,
    /// Every first click comes over a connection of its own.
    pub fresh: bool,
}

impl Default for Temper {
    fn default() -> Self {
        Self {
            in_flight: 256,
            patience: Duration::from_secs(60),
            pause: Duration::from_millis(100),
            closed_loop: false,
            fresh: false,
        }
    }
}

/// The crowd in front of one sale.
pub struct Crowd {
    pub(super) client: Arc<Client>,
    pub(super) plan: Arc<Plan>,
    pub(super) temper: Temper,
    pub(super) habits: Option<Habits>,
    pub(super) sale: SaleId,
    purchases: Uri,
    pub(super) own_order: Uri,
    /// When the sale starts, by the service's clock as this machine sees it.
    start: Instant,
    pub recorder: Recorder,
    next: AtomicUsize,
    /// Per buyer, whether somebody already asks on its behalf: five undecided clicks make one follow-up.
    asking: Vec<AtomicBool>,
    pub(super) asked: TaskTracker,
    pub(super) places: Places,
    /// The orders that are not over yet.
    pub(super) lives: TaskTracker,
    pub(super) again: Semaphore,
    pub(super) hands: Semaphore,
    /// Orders whose buyers left before the end.
    pub(super) unfinished: AtomicU64,
    clicked: AtomicBool,
    /// Deliveries of units that are still to come.
    expected: AtomicUsize,
    /// No further click, and nobody waits for anything.
    pub(super) leaving: CancellationToken,
}

/// A purchase as it is sent.
pub(super) struct Wish {
    pub caller: Caller,
    pub body: Bytes,
    /// Of a buyer who comes again, without a key.
    pub again: bool,
}

/// An order as its buyer reads it.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Seen {
    pub order_id: OrderId,
    pub status: OrderStatus,
    pub reason: Option<Reason>,
}

impl Crowd {
    pub fn new(
        client: Arc<Client>,
        plan: Arc<Plan>,
        sale: SaleId,
        start: Instant,
        temper: Temper,
    ) -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self::of_clicks(client, plan, sale, start, temper, Arc::default())?))
    }

    /// A crowd that lives on after its purchases.
    pub fn with_habits(
        client: Arc<Client>,
        plan: Arc<Plan>,
        sale: SaleId,
        start: Instant,
        temper: Temper,
        habits: Option<Habits>,
    ) -> anyhow::Result<Arc<Self>> {
        let crowd = Self::of_clicks(client, plan, sale, start, temper, Arc::default())?;
        Ok(Arc::new(Self { habits, ..crowd }))
    }

    /// As [`Crowd::with_habits`], with counters that other crowds may share.
    pub fn counted(
        client: Arc<Client>,
        plan: Arc<Plan>,
        on_sale: OnSale,
        temper: Temper,
        habits: Option<Habits>,
        tally: Arc<Tally>,
    ) -> anyhow::Result<Arc<Self>> {
        tally.clicks.fetch_add(plan.clicks.len() as u64, Relaxed);
        // The first of several starts is as good as any.
        let _ = tally.start.set(on_sale.start);
        let crowd = Self::of_clicks(client, plan, on_sale.id, on_sale.start, temper, tally)?;
        Ok(Arc::new(Self { habits, ..crowd }))
    }

    fn of_clicks(
        client: Arc<Client>,
        plan: Arc<Plan>,
        sale: SaleId,
        start: Instant,
        temper: Temper,
        tally: Arc<Tally>,
    ) -> anyhow::Result<Self> {
        let places = Places::new(plan.buyers.len());
        let asking = plan.buyers.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Self {
            purchases: format!("/api/v1/sales/{sale}/purchases").parse()?,
            own_order: format!("/api/v1/sales/{sale}/order").parse()?,
            recorder: Recorder::new(start, tally)?,
            client,
            plan,
            temper,
            start,
            next: AtomicUsize::new(0),
            asking,
            asked: TaskTracker::new(),
            places,
            lives: TaskTracker::new(),
            again: Semaphore::new(AGAIN),
            hands: Semaphore::new(AFTERWARDS),
            unfinished: AtomicU64::new(0),
            clicked: AtomicBool::new(false),
            expected: AtomicUsize::new(0),
            leaving: CancellationToken::new(),
            habits: None,
            sale,
        })
    }

    /// Runs the whole plan and returns when every click is answered and every undecided buyer knows or gave up.
    pub async fn run(self: &Arc<Self>) {
        self.run_before(&Outsider).await;
    }

    /// As [`Crowd::run`]; a crowd that lives on stays until every order of its own is over, and nothing is left or
    /// nobody wants any. `witness` says what is left, as far as it can see.
    pub async fn run_before<W: Witness>(self: &Arc<Self>, witness: &W) {
        let clicking = async {
            self.click().await;
            self.clicked.store(true, Relaxed);
        };
        let ((), end) = tokio::join!(clicking, self.wait_for_units(witness));
        self.asked.close();
        self.asked.wait().await;
        self.lives.close();
        self.lives.wait().await;
        if let Some(end) = end {
            let (wanting, unfinished) = (self.places.wanting() as u64, self.unfinished.load(Relaxed));
            self.recorder.left(Waiting { wanting, unfinished, end });
        }
    }

    /// Sends everybody away: no further click, and nobody waits any longer. What is under way is still answered.
    pub fn leave(&self) {
        self.leaving.cancel();
    }

    pub const fn leaving(&self) -> &CancellationToken {
        &self.leaving
    }

    /// So many deliveries of units are still to come: before the last of them the act is not over.
    pub fn expect(&self, deliveries: usize) {
        self.expected.store(deliveries, Relaxed);
    }

    /// Nothing will happen but by units that show up: no click is due, nobody asks, no order is open.
    pub(super) fn is_quiet(&self) -> bool {
        self.has_clicked() && self.expected.load(Relaxed) == 0 && self.asked.is_empty() && self.lives.is_empty()
    }

    pub(super) fn has_clicked(&self) -> bool {
        self.clicked.load(Relaxed)
    }

    async fn click(self: &Arc<Self>) {
        let workers = TaskTracker::new();
        for _ in 0..self.temper.in_flight.clamp(1, self.plan.clicks.len().max(1)) {
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
            let due = if self.temper.closed_loop { self.start.max(Instant::now()) } else { self.due(click) };
            if self.leaving.run_until_cancelled(sleep_until(due.into())).await.is_none() {
                break;
            }
            let answer = self.purchase(click.buyer, click.nth, due, &self.first_wish(click.buyer)).await;
            // Due after the start, and yet too soon for the service's clock: such a buyer clicks again.
            let too_soon =
                click.at_us >= 0 && matches!(&answer, Answer::Refused(refusal) if refusal.is(Code::SaleNotStarted));
            if (answer.is_open() || too_soon) && !self.asking[click.buyer as usize].swap(true, Relaxed) {
                let crowd = Arc::clone(&self);
                self.asked.spawn(async move {
                    crowd.follow_up(click.buyer, click.nth, answer, &crowd.first_wish(click.buyer)).await;
                    crowd.asking[click.buyer as usize].store(false, Relaxed);
                });
            }
        }
    }

    fn first_wish(&self, number: u32) -> Wish {
        let buyer = &self.plan.buyers[number as usize];
        Wish { caller: buyer.caller.clone(), body: buyer.body.clone(), again: false }
    }

    fn due(&self, click: Click) -> Instant {
        let distance = Duration::from_micros(click.at_us.unsigned_abs());
        let due = if click.at_us < 0 { self.start.checked_sub(distance) } else { self.start.checked_add(distance) };
        due.unwrap_or(self.start)
    }

    pub(super) async fn purchase(self: &Arc<Self>, number: u32, nth: u32, due: Instant, wish: &Wish) -> Answer {
        let node = number as usize + nth as usize;
        let sent = self.client.send_over(
            self.temper.fresh && !wish.again,
            node,
            Method::POST,
            &self.purchases,
            &wish.caller,
            wish.body.clone(),
        );
        let sent = sent.await;
        let channel = Channel::of(&sent);
        let answer = Answer::of(sent);
        let (latency, again) = (due.elapsed(), wish.again);
        self.recorder.answered(&Heard { buyer: number, answer: &answer, channel, latency, again });
        if let (Some(habits), Some(order)) = (self.habits, self.places.heard(number, &answer)) {
            self.lives.spawn(Arc::clone(self).live_on(number, order, habits));
        }
        answer
    }
}
