//! One fault from the sale's opening to its line in the report.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use anyhow::Context;
use drive::report::{Report, Setup, Verdict};
use drive::verdict::{ConfirmedViolations, Evaluation, Timeouts};
use seckill::promises::{CheckResult, Finding};
use serde::Serialize;
use tokio::time::sleep;

use super::ground::Ground;
use super::round::Round;
use super::{Fault, Figures};

/// How long the reconciler may take to repair what a fault left behind: its grace, and some rounds.
const REPAIRED_WITHIN: Duration = Duration::from_secs(30);
/// How long a loss that is excused is given to turn out to be none: the reconciler's grace, and some rounds.
const EXCUSED_AFTER: Duration = Duration::from_secs(6);
/// The figure by which a fault says how many orders only Redis knew when it lost its data.
pub const AT_RISK: &str = "known_to_redis_alone";

/// A fault's line of the report.
#[derive(Serialize)]
pub struct Entry {
    pub name: &'static str,
    /// Milliseconds from the start of the sale.
    pub injected_at: Option<u64>,
    pub promises: Vec<Finding>,
    pub excused: Vec<&'static str>,
    pub verdict: Verdict,
    pub figures: Figures,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Plays a fault to its end. What goes wrong on the way fails the fault, not the drill.
pub async fn play(ground: &mut Ground, fault: &Fault, seed: u64) -> Entry {
    let mut entry = Entry {
        name: fault.name,
        injected_at: None,
        promises: Vec::new(),
        excused: fault.excused.to_vec(),
        verdict: Verdict::Fail,
        figures: Figures::new(),
        error: None,
    };
    if let Err(error) = Box::pin(entry.fill(ground, fault, seed)).await {
        entry.error = Some(format!("{error:#}"));
        entry.verdict = Verdict::Fail;
    }
    entry
}

impl Entry {
    async fn fill(&mut self, ground: &mut Ground, fault: &Fault, seed: u64) -> anyhow::Result<()> {
        let begun = Instant::now();
        let round = Round::begin(ground, &fault.wish, seed).await.context("the sale")?;
        let sale = round.sale;
        self.injected_at = u64::try_from(round.start.elapsed().as_millis()).ok();
        let injected = (fault.inject)(ground, &round).await;
        if injected.is_ok() {
            // A part that ended by itself is a finding; what the fault ended runs again by now.
            ground.stage.check()?;
        } else {
            ground.mend().await?;
        }
        let (sale_id, plan, record) = round.end().await?;
        let evaluation = Evaluation {
            observer: &ground.stores,
            client: &ground.client,
            plan: &plan,
            sale: sale_id,
            record: &record,
            setup: Setup { nodes: 2, stock: fault.wish.stock, ..Setup::default() },
            timeouts: Timeouts { settle: REPAIRED_WITHIN, recheck: Duration::from_millis(500) },
        };
        let report = self.evaluate(&evaluation).await.context("the verdict")?;
        ground.retire(sale).await?;
        self.figures = injected?;
        self.verdict = self.verdict_on(&report);
        let mut figure = |name: &str, value: u64| self.figures.insert(name.to_owned(), value.into());
        figure("accepted", report.accepted);
        figure("refused", report.refused.values().sum());
        figure("unconfirmed", report.unconfirmed);
        figure("http_5xx", report.http_5xx);
        figure("orders", report.orders.values().sum());
        figure("lost", report.lost);
        figure("dishonoured", report.dishonoured);
        figure("gave_up", report.gave_up);
        figure("seconds", begun.elapsed().as_secs());
        self.promises = report.promises;
        ground.stage.check()
    }

    /// Looks until nothing is broken that must not be, for as long as the reconciler may need.
    async fn evaluate(&self, evaluation: &Evaluation<'_, drive::stores::Stores>) -> anyhow::Result<Report> {
        let begun = Instant::now();
        let mut confirmed = ConfirmedViolations::default();
        loop {
            let report = evaluation.evaluate().await.map(|mut report| {
                confirmed.record(&report.promises);
                confirmed.restore(&mut report.promises);
                report.add_checks([]);
                report
            });
            let patience = match &report {
                Ok(report) if report.verdict == Verdict::Pass => return Ok(report.clone()),
                Ok(report) if report.settled && self.unexcused(report).next().is_none() => EXCUSED_AFTER,
                _ => REPAIRED_WITHIN,
            };
            if begun.elapsed() > patience {
                return report;
            }
            sleep(Duration::from_millis(300)).await;
        }
    }

    fn unexcused<'a>(&'a self, report: &'a Report) -> impl Iterator<Item = &'a Finding> {
        let broken = report.promises.iter().filter(|finding| finding.holds == CheckResult::Broken);
        broken.filter(|finding| !self.excused.contains(&finding.name))
    }

    /// An excuse covers no more orders than Redis took with it.
    fn verdict_on(&self, report: &Report) -> Verdict {
        let at_risk = self.figures.get(AT_RISK).and_then(serde_json::Value::as_u64).unwrap_or(0);
        let covered = report.lost + report.dishonoured <= at_risk;
        let kept = self.unexcused(report).next().is_none();
        if kept && covered && report.settled && report.accepted > 0 { Verdict::Pass } else { Verdict::Fail }
    }
}

impl Display for Entry {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let word = if self.verdict == Verdict::Pass { "pass" } else { "FAIL" };
        write!(f, "{word}  {:<44}", self.name)?;
        for (name, value) in &self.figures {
            write!(f, " {name}={value}")?;
        }
        for finding in self.promises.iter().filter(|finding| finding.holds == CheckResult::Broken) {
            let excused = if self.excused.contains(&finding.name) { "excused" } else { "BROKEN" };
            write!(f, "\n      {excused} {}: {}", finding.name, finding.detail)?;
        }
        if let Some(error) = &self.error {
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

    fn entry(excused: &[&'static str], at_risk: u64) -> Entry {
        Entry {
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
        assert_eq!(entry(&LOSS, 3).verdict_on(&report("nothing_lost", 3)), Verdict::Pass);
        assert_eq!(entry(&LOSS, 2).verdict_on(&report("nothing_lost", 3)), Verdict::Fail);
    }

    #[test]
    fn a_broken_promise_without_an_excuse_fails() {
        assert_eq!(entry(&[], 3).verdict_on(&report("nothing_lost", 1)), Verdict::Fail);
        assert_eq!(entry(&LOSS, 3).verdict_on(&report("no_oversell", 0)), Verdict::Fail);
    }

    #[test]
    fn what_never_settles_or_sells_nothing_fails() {
        let unsettled = Report { settled: false, ..report("nothing_lost", 0) };
        assert_eq!(entry(&LOSS, 3).verdict_on(&unsettled), Verdict::Fail);
        let nothing = Report { accepted: 0, ..report("nothing_lost", 0) };
        assert_eq!(entry(&LOSS, 3).verdict_on(&nothing), Verdict::Fail);
    }
}
