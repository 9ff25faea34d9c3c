//! What the buyers were told: the answers that the verdict is based on.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::answer::{Answer, Transport};
use super::demand::Plan;
use super::rate::per_second;
use super::report::{Afterwards, NoAnswer};
use super::timeline::Buckets;
use seckill::api::problem::Code;
use seckill::domain::{OrderId, OrderStatus};
use seckill::promises::{AnswerFact, ClientView};

/// Unexpected answers that are kept as text.
const MAX_TEXTS: usize = 8;

/// The sum of all answers.
///
/// A request is counted once, in exactly one of `accepted`, `refused`, `unconfirmed`, `client_errors`; `http_5xx`
/// counts those of the unconfirmed ones that had a status. Reads, payments and cancellations are not counted.
#[derive(Debug)]
pub struct ClientRecord {
    /// Purchases that were sent, follow-ups and retries included.
    pub requests: u64,
    /// 202 answers, replays included.
    pub accepted_answers: u64,
    /// Every order id that was answered 202, with the buyer it was given to.
    pub accepted: HashSet<(OrderId, u32)>,
    /// Purchases by the HTTP status of their answer.
    pub http: BTreeMap<u16, u64>,
    /// Purchases without any answer.
    pub no_answer: NoAnswer,
    /// Decided refusals by code.
    pub refused: BTreeMap<&'static str, u64>,
    /// Buyers that were told to slow down.
    pub limited: HashSet<u32>,
    /// Answers that decide nothing: 5xx, timeout, reset. The purchase may have gone through.
    pub unconfirmed: u64,
    pub http_5xx: u64,
    /// Connections that could not be made (nothing was sent), and answers outside the contract.
    pub client_errors: u64,
    /// Those of them that are answers.
    pub unexpected_answers: u64,
    pub unexpected_texts: Vec<String>,
    /// Orders among `accepted` that retries got, without a key.
    pub retry_orders: HashSet<OrderId>,
    /// The final status of each order, as its buyer was told.
    pub final_statuses: HashMap<OrderId, OrderStatus>,
    /// Purchases that were sent because the sale showed units.
    pub retries: u64,
    /// How the users stopped; `None` for users who do nothing after their purchases.
    pub final_state: Option<FinalState>,
    /// Buyers with at least one unconfirmed answer.
    pub unconfirmed_buyers: HashSet<u32>,
    /// Buyers without a decision when their timeout passed, or after it.
    pub gave_up: HashSet<u32>,
    /// Microseconds from the intended start of a click to its answer.
    pub accepted_us: Histogram<u64>,
    pub refused_us: Histogram<u64>,
    /// Refusals since the start of the sale, retries not included.
    pub first_refusals: u64,
    /// When each new order was accepted, from the start of the sale, and its buyer; retries not included.
    pub accepted_at: Vec<(Duration, u32)>,
    /// When the last of `first_refusals` came, from the start of the sale.
    pub last_refused: Duration,
    /// The same answers by time.
    pub over_time: Buckets,
}

impl ClientRecord {
    fn new() -> Result<Self, hdrhistogram::CreationError> {
        // Three digits up to a minute; later answers count as a minute.
        let histogram = || Histogram::new_with_bounds(1, 60_000_000, 3);
        Ok(Self {
            requests: 0,
            accepted_answers: 0,
            accepted: HashSet::new(),
            http: BTreeMap::new(),
            no_answer: NoAnswer::default(),
            refused: BTreeMap::new(),
            limited: HashSet::new(),
            unconfirmed: 0,
            http_5xx: 0,
            client_errors: 0,
            unexpected_answers: 0,
            unexpected_texts: Vec::new(),
            retry_orders: HashSet::new(),
            final_statuses: HashMap::new(),
            retries: 0,
            final_state: None,
            unconfirmed_buyers: HashSet::new(),
            gave_up: HashSet::new(),
            accepted_us: histogram()?,
            refused_us: histogram()?,
            first_refusals: 0,
            accepted_at: Vec::new(),
            last_refused: Duration::ZERO,
            over_time: Buckets::default(),
        })
    }

    /// Whether some buyer was told that nothing is left. That happens only once the demand has used up the stock.
    fn told_sold_out(&self) -> bool {
        self.refused.contains_key(Code::SoldOut.name())
    }

    /// Whether buyers asked for at least as many units as there are; `None` if the run stopped too early to know.
    pub fn demand_reached_stock(&self, plan: &Plan, stock: u32) -> Option<bool> {
        match self.final_state {
            // A buyer who still wants a unit retried whenever the sale showed one, and a buyer who gave up was never
            // told that there is none.
            Some(state) => (state.stop_reason != StopReason::Cancelled)
                .then_some(state.still_wanting > 0 || !self.gave_up.is_empty()),
            None => Some(self.told_sold_out() || self.asked_units(plan) >= u64::from(stock)),
        }
    }

    /// Units that 202 answers promised, and units of buyers who gave up.
    fn asked_units(&self, plan: &Plan) -> u64 {
        let accepted = self.accepted.iter().map(|(_, buyer)| buyer);
        accepted.chain(&self.gave_up).map(|buyer| u64::from(plan.buyers[*buyer as usize].quantity)).sum()
    }

    /// Drops the acceptance times of orders after the first `stock` units. Those orders got units that came back, and
    /// when units come back says nothing about the speed of the service.
    pub fn drop_resold_orders(&mut self, plan: &Plan, stock: u32) {
        self.accepted_at.sort_unstable();
        let mut left = u64::from(stock);
        let first_units = self.accepted_at.iter().take_while(|(_, buyer)| {
            let any = left > 0;
            left = left.saturating_sub(plan.buyers[*buyer as usize].quantity.into());
            any
        });
        let count = first_units.count();
        self.accepted_at.truncate(count);
    }

    /// New orders per second, to nine tenths of those that are kept: the last ones may be units out of the reserve.
    pub fn accepted_per_second(&self) -> u64 {
        let most = self.accepted_at.len() * 9 / 10;
        self.accepted_at.get(most).map_or(0, |(at, _)| per_second(most as u64 + 1, *at))
    }

    /// Refusals per second, to the last of them.
    pub fn refused_per_second(&self) -> u64 {
        per_second(self.first_refusals, self.last_refused)
    }

    /// What buyers did after their purchase.
    pub fn afterwards(&self) -> Afterwards {
        let ended =
            |wanted: OrderStatus| self.final_statuses.values().filter(|status| **status == wanted).count() as u64;
        Afterwards {
            paid: ended(OrderStatus::Paid),
            cancelled: ended(OrderStatus::Cancelled),
            expired: ended(OrderStatus::Expired),
            came_again: self.retries,
            bought_again: self.retry_orders.len() as u64,
            unfinished: self.final_state.map_or(0, |state| state.unfinished),
            still_wanted: self.final_state.map_or(0, |state| state.still_wanting),
        }
    }

    /// The record in the form that the promises are checked with.
    pub fn view(&self, plan: &Plan) -> ClientView {
        let answer = |&(order, buyer): &(OrderId, u32)| {
            let buyer = &plan.buyers[buyer as usize];
            let key = buyer.key.clone().filter(|_| !self.retry_orders.contains(&order));
            AnswerFact { user: buyer.user.clone(), order, key }
        };
        ClientView {
            answers: self.accepted.iter().map(answer).collect(),
            unconfirmed: self.unconfirmed_buyers.iter().map(|b| plan.buyers[*b as usize].user.clone()).collect(),
            unreadable: Vec::new(),
        }
    }

    /// Adds the answers of another sale, as far as a report of several sales needs them.
    pub fn merge(&mut self, other: &Self) -> Result<(), hdrhistogram::AdditionError> {
        self.accepted_us.add(&other.accepted_us)?;
        self.refused_us.add(&other.refused_us)?;
        self.first_refusals += other.first_refusals;
        self.last_refused = self.last_refused.max(other.last_refused);
        self.accepted_at.extend(&other.accepted_at);
        self.accepted_at.sort_unstable();
        Ok(())
    }

    fn keep_text(&mut self, text: String) {
        if self.unexpected_texts.len() < MAX_TEXTS && !self.unexpected_texts.contains(&text) {
            self.unexpected_texts.push(text);
        }
    }
}

/// How the users of one sale stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinalState {
    /// Buyers without an order who were told last that too few units are left.
    pub still_wanting: u64,
    /// Orders that were not final.
    pub unfinished: u64,
    pub stop_reason: StopReason,
}

/// Why the users stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Every order was paid, cancelled or expired, and nothing was left or nobody wanted any.
    Completed,
    /// The timeout passed.
    TimedOut,
    /// The run was stopped.
    Cancelled,
}

/// Counters for a progress line, readable while buyers run.
#[derive(Debug, Default)]
pub struct Tally {
    /// Clicks that are planned.
    pub clicks: AtomicU64,
    /// When the first sale starts, once that is known.
    pub start: OnceLock<Instant>,
    pub requests: AtomicU64,
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    pub unconfirmed: AtomicU64,
    /// Orders that became final, as far as their buyers know.
    pub ended: AtomicU64,
    /// Those of them that were paid.
    pub paid: AtomicU64,
}

/// One answer to one purchase of one buyer.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    pub buyer: u32,
    pub answer: &'a Answer,
    pub transport: Transport,
    /// From the intended start of the click.
    pub latency: Duration,
    /// Of a retry, without a key.
    pub is_retry: bool,
}

/// Collects answers from all buyers.
pub struct Recorder {
    /// When the sale starts.
    start: Instant,
    /// May be shared with the recorders of other sales.
    pub tally: Arc<Tally>,
    record: Mutex<ClientRecord>,
}

impl Recorder {
    pub fn new(start: Instant, tally: Arc<Tally>) -> anyhow::Result<Self> {
        Ok(Self { start, tally, record: Mutex::new(ClientRecord::new()?) })
    }

    /// One answer to one purchase.
    pub fn record_answer(&self, sample: &Sample) {
        let Sample { buyer, answer, transport, latency, is_retry } = *sample;
        let now = Instant::now();
        let since_start = now.saturating_duration_since(self.start);
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.tally.requests.fetch_add(1, Relaxed);
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.requests += 1;
        record.retries += u64::from(is_retry);
        match transport {
            Transport::Status(status) => *record.http.entry(status).or_default() += 1,
            Transport::NotSent => record.no_answer.not_sent += 1,
            Transport::Timeout => record.no_answer.timeouts += 1,
            Transport::Reset => record.no_answer.resets += 1,
        }
        record.over_time.count(self.start, now, answer);
        if matches!(answer, Answer::Accepted(_) | Answer::Refused(_)) {
            record.gave_up.remove(&buyer);
        }
        match answer {
            Answer::Accepted(order) => {
                self.tally.accepted.fetch_add(1, Relaxed);
                record.accepted_answers += 1;
                record.accepted_us.saturating_record(us);
                // A replay is an answer, but no new order.
                if record.accepted.insert((*order, buyer)) {
                    if is_retry {
                        record.retry_orders.insert(*order);
                    } else {
                        record.accepted_at.push((since_start, buyer));
                    }
                }
            }
            Answer::Refused(refusal) => {
                self.tally.refused.fetch_add(1, Relaxed);
                *record.refused.entry(refusal.code).or_default() += 1;
                record.refused_us.saturating_record(us);
                if refusal.is(Code::RateLimited) {
                    record.limited.insert(buyer);
                }
                // Refusals before the start are not part of a rate that counts from the start.
                if !is_retry && now >= self.start {
                    record.first_refusals += 1;
                    record.last_refused = since_start;
                }
            }
            Answer::Undecided { status, .. } => {
                self.tally.unconfirmed.fetch_add(1, Relaxed);
                record.unconfirmed += 1;
                record.http_5xx += u64::from(status.is_some());
                record.unconfirmed_buyers.insert(buyer);
            }
            Answer::NotSent(why) | Answer::Unexpected(why) => {
                record.client_errors += 1;
                record.unexpected_answers += u64::from(matches!(answer, Answer::Unexpected(_)));
                record.keep_text(why.clone());
            }
        }
    }

    /// A follow-up found an order.
    pub fn found(&self, buyer: u32) {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).gave_up.remove(&buyer);
    }

    /// A follow-up timed out without a decision.
    pub fn gave_up(&self, buyer: u32) {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).gave_up.insert(buyer);
    }

    /// A buyer learned how an order ended.
    pub fn ended(&self, order: OrderId, status: OrderStatus) {
        self.tally.ended.fetch_add(1, Relaxed);
        self.tally.paid.fetch_add(u64::from(status == OrderStatus::Paid), Relaxed);
        self.record.lock().unwrap_or_else(PoisonError::into_inner).final_statuses.insert(order, status);
    }

    /// The users stopped.
    pub fn stopped(&self, state: FinalState) {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).final_state = Some(state);
    }

    pub fn into_record(self) -> ClientRecord {
        self.record.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Refusal;

    #[test]
    fn refusals_from_before_the_start_are_counted_but_are_no_part_of_the_rate() {
        let refused = |start: Instant| {
            let recorder = Recorder::new(start, Arc::default()).expect("a recorder");
            let answer = Answer::Refused(Refusal { code: Code::SaleNotStarted.name(), order: None });
            let (transport, latency) = (Transport::Status(409), Duration::ZERO);
            recorder.record_answer(&Sample { buyer: 0, answer: &answer, transport, latency, is_retry: false });
            let record = recorder.into_record();
            (record.refused.values().sum::<u64>(), record.first_refusals)
        };
        assert_eq!(refused(Instant::now() + Duration::from_secs(60)), (1, 0));
        assert_eq!(refused(Instant::now()), (1, 1));
    }
}
