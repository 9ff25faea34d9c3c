//! The buyers: an open loop of clicks over real HTTP, and what a buyer does when no answer came.
//!
//! Clicks follow the plan, not the answers: a slow service meets the same crowd as a fast one, and latency counts
//! from the moment at which the click was due. A fixed number of workers take the clicks in order, so a request
//! costs no task of its own. A buyer who is left without a decision asks `GET …/order`, or sends the same
//! Idempotency-Key again, until somebody decides or patience ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::{Method, Uri};
use tokio::time::{sleep, sleep_until};
use tokio_util::task::TaskTracker;

use super::answer::Answer;
use super::client::Client;
use super::demand::{Click, Plan};
use super::record::{ClientRecord, Recorder};
use crate::api::problem::Code;
use crate::domain::SaleId;

/// How many clicks are in flight at most, and how long an undecided buyer goes on asking.
#[derive(Clone, Copy, Debug)]
pub struct Temper {
    /// Bounds the workers, not the arrivals: a click that has to wait is late, and its latency says so.
    pub in_flight: usize,
    /// From the first undecided answer.
    pub patience: Duration,
    /// First pause of an undecided buyer when the service names none; doubles up to the second.
    pub pause: Duration,
}

impl Default for Temper {
    fn default() -> Self {
        Self { in_flight: 256, patience: Duration::from_secs(60), pause: Duration::from_millis(100) }
    }
}

/// The crowd in front of one sale.
pub struct Crowd {
    client: Arc<Client>,
    plan: Arc<Plan>,
    temper: Temper,
    purchases: Uri,
    own_order: Uri,
    /// When the sale starts, by the service's clock as this machine sees it.
    start: Instant,
    pub recorder: Recorder,
    next: AtomicUsize,
    /// Per buyer, whether somebody already asks on its behalf: five undecided clicks make one follow-up.
    asking: Vec<AtomicBool>,
    asked: TaskTracker,
}

impl Crowd {
    pub fn new(
        client: Arc<Client>,
        plan: Arc<Plan>,
        sale: SaleId,
        start: Instant,
        temper: Temper,
    ) -> anyhow::Result<Arc<Self>> {
        let asking = plan.buyers.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Arc::new(Self {
            purchases: format!("/api/v1/sales/{sale}/purchases").parse()?,
            own_order: format!("/api/v1/sales/{sale}/order").parse()?,
            recorder: Recorder::new(start)?,
            client,
            plan,
            temper,
            start,
            next: AtomicUsize::new(0),
            asking,
            asked: TaskTracker::new(),
        }))
    }

    /// Runs the whole plan and returns when every click is answered and every undecided buyer knows or gave up.
    pub async fn run(self: &Arc<Self>) {
        let workers = TaskTracker::new();
        for _ in 0..self.temper.in_flight.clamp(1, self.plan.clicks.len().max(1)) {
            workers.spawn(Arc::clone(self).work());
        }
        workers.close();
        workers.wait().await;
        self.asked.close();
        self.asked.wait().await;
    }

    /// What the buyers were told. `None` while somebody else still holds the crowd.
    pub fn into_record(self: Arc<Self>) -> Option<ClientRecord> {
        Arc::into_inner(self).map(|crowd| crowd.recorder.into_record())
    }

    async fn work(self: Arc<Self>) {
        while let Some(click) = self.plan.clicks.get(self.next.fetch_add(1, Relaxed)).copied() {
            let due = self.due(click);
            sleep_until(due.into()).await;
            let answer = self.purchase(click.buyer, click.nth, due).await;
            // Due after the start, and yet too soon for the service's clock: such a buyer clicks again.
            let too_soon = click.at_us >= 0 && answer == Answer::Refused(Code::SaleNotStarted.name());
            if (answer.is_open() || too_soon) && !self.asking[click.buyer as usize].swap(true, Relaxed) {
                self.asked.spawn(Arc::clone(&self).follow_up(click.buyer, click.nth, answer));
            }
        }
    }

    fn due(&self, click: Click) -> Instant {
        let distance = Duration::from_micros(click.at_us.unsigned_abs());
        let due = if click.at_us < 0 { self.start.checked_sub(distance) } else { self.start.checked_add(distance) };
        due.unwrap_or(self.start)
    }

    async fn purchase(&self, number: u32, nth: u32, due: Instant) -> Answer {
        let buyer = &self.plan.buyers[number as usize];
        let sent = self.client.send(
            number as usize + nth as usize,
            Method::POST,
            &self.purchases,
            &buyer.caller,
            buyer.body.clone(),
        );
        let answer = Answer::of(sent.await);
        self.recorder.answered(number, &answer, due.elapsed());
        answer
    }

    /// Asks until there is a decision: what a careful client does after an unknown answer.
    async fn follow_up(self: Arc<Self>, number: u32, mut nth: u32, mut answer: Answer) {
        let deadline = Instant::now() + self.temper.patience;
        let mut pause = self.temper.pause;
        loop {
            let asked_to_wait = match answer {
                Answer::Undecided { retry_after, .. } => retry_after,
                _ => None,
            };
            // Spread by buyer, so that thousands who failed together do not come back together.
            let spread = pause.mul_f64(f64::from(number % 64) / 64.0);
            sleep(asked_to_wait.unwrap_or(pause) + spread).await;
            if Instant::now() >= deadline {
                self.recorder.gave_up();
                break;
            }
            pause = (pause * 2).min(Duration::from_secs(1));
            // The next node, as a balancer would do.
            nth += 1;
            let buyer = &self.plan.buyers[number as usize];
            if buyer.key.is_none() {
                match self.own_order(number, nth).await {
                    Some(true) => {
                        self.recorder.found();
                        break;
                    }
                    Some(false) => {}
                    None => {
                        answer = Answer::Undecided { status: None, retry_after: None };
                        continue;
                    }
                }
            }
            answer = self.purchase(number, nth, Instant::now()).await;
            if !answer.is_open() {
                break;
            }
        }
        self.asking[number as usize].store(false, Relaxed);
    }

    /// Whether the buyer has an order; `None` when the service cannot say.
    async fn own_order(&self, number: u32, nth: u32) -> Option<bool> {
        let caller = &self.plan.buyers[number as usize].caller;
        let node = number as usize + nth as usize;
        match self.client.send(node, Method::GET, &self.own_order, caller, Bytes::new()).await {
            Ok(reply) if reply.status == 200 => Some(true),
            Ok(reply) if reply.status == 404 => Some(false),
            _ => None,
        }
    }
}
