//! What the buyers were told: the evidence that the verdict judges by.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::answer::Answer;
use super::demand::Plan;
use super::timeline::Buckets;
use crate::api::problem::Code;
use crate::domain::OrderId;
use crate::promises::{AnswerFact, ClientView};

/// Samples of odd answers that are kept as text.
const SAMPLES: usize = 8;

/// The sum of all answers.
///
/// A request is counted once, in exactly one of `accepted`, `refused`, `unconfirmed`, `client_errors`; `http_5xx`
/// counts those of the unconfirmed ones that had a status. Reads and checks are not counted.
#[derive(Debug)]
pub struct ClientRecord {
    /// Purchases that were sent, retries included.
    pub requests: u64,
    /// 202 answers, replays included.
    pub accepted_answers: u64,
    /// Every order id that was answered 202, with the buyer it was given to.
    pub accepted: HashSet<(OrderId, u32)>,
    /// Decided refusals by code.
    pub refused: BTreeMap<&'static str, u64>,
    /// Answers that decide nothing: 5xx, timeout, reset. The purchase may have gone through.
    pub unconfirmed: u64,
    pub http_5xx: u64,
    /// Connections that could not be made (nothing was sent), and answers outside the contract.
    pub client_errors: u64,
    pub samples: Vec<String>,
    /// Buyers with at least one unconfirmed answer.
    pub unconfirmed_buyers: HashSet<u32>,
    /// Buyers that asked after an unknown answer and found an order.
    pub found: u64,
    /// Buyers that still knew nothing when their patience ended.
    pub gave_up: u64,
    /// Microseconds from the intended start of a click to its answer.
    pub accepted_us: Histogram<u64>,
    pub refused_us: Histogram<u64>,
    /// When the last new order was accepted, from the start of the sale.
    pub last_accepted: Duration,
    /// When the last refusal came, from the start of the sale.
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
            refused: BTreeMap::new(),
            unconfirmed: 0,
            http_5xx: 0,
            client_errors: 0,
            samples: Vec::new(),
            unconfirmed_buyers: HashSet::new(),
            found: 0,
            gave_up: 0,
            accepted_us: histogram()?,
            refused_us: histogram()?,
            last_accepted: Duration::ZERO,
            last_refused: Duration::ZERO,
            over_time: Buckets::default(),
        })
    }

    /// Whether some buyer was told that nothing is left, which is true only once the demand has used up the stock.
    pub fn told_sold_out(&self) -> bool {
        self.refused.contains_key(Code::SoldOut.name())
    }

    /// Units that 202 answers promised.
    pub fn accepted_units(&self, plan: &Plan) -> u64 {
        self.accepted.iter().map(|(_, buyer)| u64::from(plan.buyers[*buyer as usize].quantity)).sum()
    }

    /// The record as the promises look at it.
    pub fn view(&self, plan: &Plan) -> ClientView {
        let answer = |&(order, buyer): &(OrderId, u32)| {
            let buyer = &plan.buyers[buyer as usize];
            AnswerFact { user: buyer.user.clone(), order, key: buyer.key.clone() }
        };
        ClientView {
            answers: self.accepted.iter().map(answer).collect(),
            unconfirmed: self.unconfirmed_buyers.iter().map(|b| plan.buyers[*b as usize].user.clone()).collect(),
            unreadable: Vec::new(),
        }
    }

    fn note(&mut self, text: String) {
        if self.samples.len() < SAMPLES && !self.samples.contains(&text) {
            self.samples.push(text);
        }
    }
}

/// Counters for a progress line, readable while buyers run.
#[derive(Debug, Default)]
pub struct Tally {
    pub requests: AtomicU64,
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    pub unconfirmed: AtomicU64,
}

/// Collects answers from all buyers.
pub struct Recorder {
    /// When the sale starts.
    start: Instant,
    pub tally: Tally,
    record: Mutex<ClientRecord>,
}

impl Recorder {
    pub fn new(start: Instant) -> anyhow::Result<Self> {
        Ok(Self { start, tally: Tally::default(), record: Mutex::new(ClientRecord::new()?) })
    }

    /// One answer to one purchase. `latency` counts from the intended start of the click.
    pub fn answered(&self, buyer: u32, answer: &Answer, latency: Duration) {
        let now = Instant::now();
        let since_start = now.saturating_duration_since(self.start);
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.tally.requests.fetch_add(1, Relaxed);
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.requests += 1;
        record.over_time.count(self.start, now, answer);
        match answer {
            Answer::Accepted(order) => {
                self.tally.accepted.fetch_add(1, Relaxed);
                record.accepted_answers += 1;
                record.accepted_us.saturating_record(us);
                // A replay is an answer, but no sale.
                if record.accepted.insert((*order, buyer)) {
                    record.last_accepted = since_start;
                }
            }
            Answer::Refused(code) => {
                self.tally.refused.fetch_add(1, Relaxed);
                *record.refused.entry(code).or_default() += 1;
                record.refused_us.saturating_record(us);
                record.last_refused = since_start;
            }
            Answer::Undecided { status, .. } => {
                self.tally.unconfirmed.fetch_add(1, Relaxed);
                record.unconfirmed += 1;
                record.http_5xx += u64::from(status.is_some());
                record.unconfirmed_buyers.insert(buyer);
            }
            Answer::NotSent(why) | Answer::Foreign(why) => {
                record.client_errors += 1;
                record.note(why.clone());
            }
        }
    }

    /// A buyer asked after an unknown answer and found an order.
    pub fn found(&self) {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).found += 1;
    }

    /// A buyer's patience ended without a decision.
    pub fn gave_up(&self) {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).gave_up += 1;
    }

    pub fn into_record(self) -> ClientRecord {
        self.record.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
