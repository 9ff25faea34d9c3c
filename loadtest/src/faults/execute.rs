//! Runs one fault: opens a sale, injects the fault, checks the promises and fills in the result.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use anyhow::Context;
use drive::report::{Report, Setup, Verdict};
use drive::verdict::{ConfirmedViolations, Evaluation, Timeouts};
use seckill::promises::{CheckResult, Finding};
use tokio::time::sleep;

use super::fault::{Fault, Figures};
use super::round::Round;
use super::testbed::TestBed;
use crate::report::FaultResult;

/// How long the reconciler may take to repair what a fault left behind: its grace, and some rounds.
const REPAIRED_WITHIN: Duration = Duration::from_secs(30);
/// How long an excused loss may take to turn out to be no loss: the reconciler's grace, and some rounds.
const EXCUSED_AFTER: Duration = Duration::from_secs(6);
/// The figure that counts the orders that only Redis knew when it lost its data.
pub const AT_RISK: &str = "known_to_redis_alone";

/// Runs a fault. An error on the way fails the fault, not the drill.
pub async fn execute(testbed: &mut TestBed, fault: &Fault, seed: u64) -> FaultResult {
    let mut result = FaultResult {
        name: fault.name,
        injected_at: None,
        promises: Vec::new(),
        excused: fault.excused.to_vec(),
        verdict: Verdict::Fail,
        figures: Figures::new(),
        error: None,
    };
    if let Err(error) = Box::pin(fill(&mut result, testbed, fault, seed)).await {
        result.error = Some(format!("{error:#}"));
        result.verdict = Verdict::Fail;
    }
    result
}

async fn fill(result: &mut FaultResult, testbed: &mut TestBed, fault: &Fault, seed: u64) -> anyhow::Result<()> {
    let begun = Instant::now();
    let round = Round::begin(testbed, &fault.sale, seed).await.context("the sale")?;
    let sale = round.sale;
    result.injected_at = u64::try_from(round.start.elapsed().as_millis()).ok();
    let injected = (fault.inject)(testbed, &round).await;
    if injected.is_ok() {
        // A part that ended by itself is a finding; what the fault ended runs again by now.
        testbed.cluster.check()?;
    } else {
        testbed.repair().await?;
    }
    let (sale_id, plan, record) = round.end().await?;
    let evaluation = Evaluation {
        observer: &testbed.stores,
        client: &testbed.client,
        plan: &plan,
        sale: sale_id,
        record: &record,
        setup: Setup { nodes: 2, stock: fault.sale.stock, ..Setup::default() },
        timeouts: Timeouts { settle: REPAIRED_WITHIN, recheck: Duration::from_millis(500) },
    };
    let report = evaluate(result, &evaluation).await.context("the verdict")?;
    testbed.close_sale(sale).await?;
    result.figures = injected?;
    result.verdict = verdict_on(result, &report);
    let mut figure = |name: &str, value: u64| result.figures.insert(name.to_owned(), value.into());
    figure("accepted", report.accepted);
    figure("refused", report.refused.values().sum());
    figure("unconfirmed", report.unconfirmed);
    figure("http_5xx", report.http_5xx);
    figure("orders", report.orders.values().sum());
    figure("lost", report.lost);
    figure("dishonoured", report.dishonoured);
    figure("gave_up", report.gave_up);
    figure("seconds", begun.elapsed().as_secs());
    result.promises = report.promises;
    testbed.cluster.check()
}

/// Checks until no promise is broken that must hold, for as long as the reconciler may need.
async fn evaluate(result: &FaultResult, evaluation: &Evaluation<'_, drive::stores::Stores>) -> anyhow::Result<Report> {
    let begun = Instant::now();
    let mut confirmed = ConfirmedViolations::default();
    loop {
        let report = evaluation.evaluate().await.map(|mut report| {
            confirmed.record(&report.promises);
            confirmed.restore(&mut report.promises);
            report.add_checks([]);
            report
        });
        let timeout = match &report {
            Ok(report) if report.verdict == Verdict::Pass => return Ok(report.clone()),
            Ok(report) if report.settled && unexcused(result, report).next().is_none() => EXCUSED_AFTER,
            _ => REPAIRED_WITHIN,
        };
        if begun.elapsed() > timeout {
            return report;
        }
        sleep(Duration::from_millis(300)).await;
    }
}

fn unexcused<'a>(result: &'a FaultResult, report: &'a Report) -> impl Iterator<Item = &'a Finding> {
    let broken = report.promises.iter().filter(|finding| finding.holds == CheckResult::Broken);
    broken.filter(|finding| !result.excused.contains(&finding.name))
}

/// An excuse covers no more orders than only Redis knew.
fn verdict_on(result: &FaultResult, report: &Report) -> Verdict {
    let at_risk = result.figures.get(AT_RISK).and_then(serde_json::Value::as_u64).unwrap_or(0);
    let covered = report.lost + report.dishonoured <= at_risk;
    let kept = unexcused(result, report).next().is_none();
    if kept && covered && report.settled && report.accepted > 0 { Verdict::Pass } else { Verdict::Fail }
}

/// A result as the drill prints it.
pub struct Line<'a>(pub &'a FaultResult);

impl Display for Line<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(result) = self;
        let word = if result.verdict == Verdict::Pass { "pass" } else { "FAIL" };
        write!(f, "{word}  {:<44}", result.name)?;
        for (name, value) in &result.figures {
            write!(f, " {name}={value}")?;
        }
        for finding in result.promises.iter().filter(|finding| finding.holds == CheckResult::Broken) {
            let excused = if result.excused.contains(&finding.name) { "excused" } else { "BROKEN" };
            write!(f, "\n      {excused} {}: {}", finding.name, finding.detail)?;
        }
        if let Some(error) = &result.error {
            write!(f, "\n      error: {error}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use drive::distribution::Distributions;
    use drive::machine::Machine;
    use drive::report::{Latencies, Quantiles, Rates};
    use drive::timeline::Timeline;

    use super::*;

    fn result(excused: &[&'static str], at_risk: u64) -> FaultResult {
        FaultResult {
            name: "a fault",
            injected_at: Some(1),
            promises: Vec::new(),
            excused: excused.to_vec(),
            verdict: Verdict::Fail,
            figures: Figures::from_iter([(AT_RISK.to_owned(), at_risk.into())]),
            error: None,
        }
    }

    fn report(broken: &'static str, lost: u64) -> Report {
        let none = Quantiles { p50: 0.0, p99: 0.0, p999: 0.0 };
        Report {
            broker: String::new(),
            redis_fsync: String::new(),
            nodes: 2,
            stock: 10,
            requests: 10,
            accepted: 10,
            refused: BTreeMap::new(),
            unconfirmed: 0,
            orders: BTreeMap::new(),
            oversold: Some(0),
            unsold: None,
            duplicates: Some(0),
            lost,
            dishonoured: 0,
            http_5xx: 0,
            client_errors: 0,
            rates: Rates::default(),
            latency_ms: Latencies { accepted: none, refused: none },
            latency_distribution: Distributions::default(),
            timeline: Timeline::default(),
            machine: Machine::default(),
            promises: vec![Finding { name: broken, holds: CheckResult::Broken, detail: String::new() }],
            verdict: Verdict::Fail,
            settled: true,
            ..Report::default()
        }
    }

    const LOSS: [&str; 2] = ["nothing_lost", "honoured"];

    #[test]
    fn an_excused_loss_passes_up_to_what_redis_took_with_it() {
        assert_eq!(verdict_on(&result(&LOSS, 3), &report("nothing_lost", 3)), Verdict::Pass);
        assert_eq!(verdict_on(&result(&LOSS, 2), &report("nothing_lost", 3)), Verdict::Fail);
    }

    #[test]
    fn a_broken_promise_without_an_excuse_fails() {
        assert_eq!(verdict_on(&result(&[], 3), &report("nothing_lost", 1)), Verdict::Fail);
        assert_eq!(verdict_on(&result(&LOSS, 3), &report("no_oversell", 0)), Verdict::Fail);
    }

    #[test]
    fn what_never_settles_or_sells_nothing_fails() {
        let unsettled = Report { settled: false, ..report("nothing_lost", 0) };
        assert_eq!(verdict_on(&result(&LOSS, 3), &unsettled), Verdict::Fail);
        let nothing = Report { accepted: 0, ..report("nothing_lost", 0) };
        assert_eq!(verdict_on(&result(&LOSS, 3), &nothing), Verdict::Fail);
    }
}
