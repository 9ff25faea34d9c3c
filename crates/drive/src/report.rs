//! The report of a run: one JSON document, the same for the demo, the load test and the fault drill.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::distribution::Distributions;
use super::machine::Machine;
use super::timeline::Timeline;
use seckill::domain::SaleId;
use seckill::promises::{CheckResult, Finding};

/// The setup of the service under test.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The broker, such as `Apache Kafka 4.1.0`.
    pub broker: String,
    /// Redis' `appendfsync`, such as `always`.
    pub redis_fsync: String,
    pub nodes: usize,
    /// Units on sale.
    pub stock: u32,
}

/// Everything that a run found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub broker: String,
    pub redis_fsync: String,
    pub nodes: usize,
    pub stock: u32,
    /// Purchases that were sent, follow-ups and retries included.
    pub requests: u64,
    /// Distinct order ids answered 202.
    pub accepted: u64,
    /// Decided refusals by code.
    pub refused: BTreeMap<&'static str, u64>,
    /// Purchases by the HTTP status of their answer.
    pub http: BTreeMap<u16, u64>,
    /// Purchases without any answer.
    pub no_answer: NoAnswer,
    /// Answers that decide nothing: 503 and other 5xx, timeouts, resets.
    pub unconfirmed: u64,
    /// Buyers who never got a decision.
    pub gave_up: u64,
    /// Rows by state. Absent states have no row.
    pub orders: BTreeMap<&'static str, u64>,
    /// What buyers did after their purchase; all zero where they did nothing.
    pub afterwards: Afterwards,
    /// Rows that no 202 named, of buyers with an unconfirmed answer.
    pub unanswered_orders: u64,
    /// Units sold beyond the stock; null without access to the ledger.
    pub oversold: Option<i64>,
    /// Units that no live order holds; null without access to the ledger.
    pub unsold: Option<i64>,
    /// Ids, claims and keys that occur twice, and orders that no answer named; null likewise.
    pub duplicates: Option<u64>,
    pub lost: u64,
    pub dishonoured: u64,
    pub http_5xx: u64,
    /// Connections that failed before anything was sent, and answers outside the contract.
    pub client_errors: u64,
    pub rates: Rates,
    pub latency_ms: Latencies,
    pub latency_distribution: Distributions,
    pub timeline: Timeline,
    pub machine: Machine,
    pub promises: Vec<Finding>,
    /// What else was found about this run; it counts like a promise.
    pub checks: Vec<Finding>,
    /// Each sale of the run by itself, where there were several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sales: Vec<SaleReport>,
    pub verdict: Verdict,
    /// Whether nothing was in flight when the stores were read.
    #[serde(skip)]
    pub settled: bool,
}

/// One of several sales of a run.
#[derive(Clone, Debug, Serialize)]
pub struct SaleReport {
    pub name: String,
    pub sale: SaleId,
    pub stock: u32,
    pub requests: u64,
    pub accepted: u64,
    pub orders: BTreeMap<&'static str, u64>,
    pub oversold: Option<i64>,
    pub unsold: Option<i64>,
    pub promises: Vec<Finding>,
    pub checks: Vec<Finding>,
}

/// Purchases that nothing came back for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NoAnswer {
    /// No connection could be made.
    pub not_sent: u64,
    pub timeouts: u64,
    /// The connection broke after the request went out.
    pub resets: u64,
}

/// What buyers did after their purchase, as they were told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Afterwards {
    pub paid: u64,
    pub cancelled: u64,
    pub expired: u64,
    /// Retries: purchases that were sent because the sale showed units.
    pub came_again: u64,
    /// Orders that the retries got.
    pub bought_again: u64,
    /// Orders that were not final when the users stopped.
    pub unfinished: u64,
    /// Buyers who still wanted a unit when the users stopped.
    pub still_wanted: u64,
}

/// Per second, from the start of the sale, without retries.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Rates {
    /// New orders, to nine tenths of those that used up the stock of the start for the first time; of all, where it was
    /// never used up.
    pub accepted: u64,
    /// From the first refusal after the start to the last.
    pub refused: u64,
    /// Units that became rows, to nine tenths of the most that rows ever held.
    pub persisted: u64,
}

/// From the intended start of a click to its answer.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latencies {
    pub accepted: Quantiles,
    pub refused: Quantiles,
}

/// Milliseconds; all zero when there was nothing to measure.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Pass,
    #[default]
    Fail,
}

impl Quantiles {
    /// Of a histogram of microseconds.
    pub fn of(us: &Histogram<u64>) -> Self {
        // Hundredths of a millisecond: more digits would be noise.
        let ms = |quantile| (us.value_at_quantile(quantile) as f64 / 10.0).round() / 100.0;
        Self { p50: ms(0.5), p99: ms(0.99), p999: ms(0.999) }
    }
}

impl Report {
    /// Adds checks, and computes the verdict again.
    pub fn add_checks(&mut self, checks: impl IntoIterator<Item = Finding>) {
        self.checks.extend(checks);
        self.verdict = Verdict::of(self.promises.iter().chain(&self.checks), self.accepted, self.settled);
    }
}

impl Verdict {
    /// Passes when no finding is broken, nothing is in flight, and at least one purchase was accepted: where
    /// nothing was bought there is nothing to keep, and an order that never arrives is a promise not kept.
    pub fn of<'a>(findings: impl IntoIterator<Item = &'a Finding>, accepted: u64, settled: bool) -> Self {
        let broken = findings.into_iter().any(|finding| finding.holds == CheckResult::Broken);
        if broken || accepted == 0 || !settled { Self::Fail } else { Self::Pass }
    }
}
