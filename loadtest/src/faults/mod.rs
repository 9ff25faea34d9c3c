//! `loadtest faults`: the fault drill. Every fault of the list is made to happen to a sale under load, and ends in the
//! verdict on every promise and one line of figures.
//!
//! The servers are private and real, the roles of the service are processes of their own. A fault says beforehand
//! which promises it may cost; only a Redis that lost data may cost any, and what it cost is counted and printed.

mod crashes;
mod entry;
mod kafka;
mod messages;
mod orders;
mod postgres;
mod redis;
mod roles;
mod round;
mod testbed;
mod topic;

use std::path::PathBuf;

use crate::demo::say;
use anyhow::{Context, bail, ensure};
use clap::Args;
use serde::Serialize;

use drive::report::Verdict;
pub use entry::Entry;
use round::{Round, SaleSpec};
use testbed::TestBed;

use crate::report;

/// What a fault measured, in its line of the report.
pub type Figures = serde_json::Map<String, serde_json::Value>;

/// Makes a fault happen to a sale in full swing, and makes whatever it broke run again.
type Inject =
    for<'a> fn(&'a mut TestBed, &'a Round) -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<Figures>> + 'a>>;

/// One fault of the list.
#[derive(Clone, Copy)]
pub struct Fault {
    name: &'static str,
    about: &'static str,
    /// Promises that it may cost.
    excused: &'static [&'static str],
    quick: bool,
    sale: SaleSpec,
    inject: Inject,
}

impl Fault {
    const fn new(name: &'static str, about: &'static str, inject: Inject) -> Self {
        Self { name, about, excused: &[], quick: false, sale: SaleSpec::USUAL, inject }
    }

    /// Redis really loses data: what it alone knew may be gone, and nothing else.
    const fn loses_data(self) -> Self {
        // No keys: whoever repeats the key of an order that is gone gets another one, which is the same loss and would
        // be counted twice.
        Self { excused: &["nothing_lost", "honoured"], sale: SaleSpec { keyed: 0.0, ..self.sale }, ..self }
    }

    const fn quick(self) -> Self {
        Self { quick: true, ..self }
    }

    const fn with(self, sale: SaleSpec) -> Self {
        Self { sale, ..self }
    }
}

/// Faults on a private service under load, each with a verdict.
#[derive(Debug, Args)]
pub struct Faults {
    /// Writes the report as JSON to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Writes the report as one HTML page, which needs nothing beside it, to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Only the faults of this name; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Names the faults and does nothing.
    #[arg(long)]
    list: bool,
    /// A short list: about a minute.
    #[arg(long)]
    quick: bool,
}

/// The report of a drill.
#[derive(Serialize)]
struct Drill {
    faults: Vec<Entry>,
    verdict: Verdict,
}

fn all() -> Vec<Fault> {
    [roles::FAULTS, crashes::FAULTS, redis::FAULTS, kafka::FAULTS, postgres::FAULTS, messages::FAULTS, orders::FAULTS]
        .concat()
}

impl Faults {
    /// # Errors
    /// When the servers do not come up, a name is unknown, or the verdict is not "pass".
    pub async fn run(self) -> anyhow::Result<()> {
        let chosen = self.chosen()?;
        if self.list {
            return chosen.iter().try_for_each(|fault| say(format_args!("{:<44} {}", fault.name, fault.about)));
        }
        // Ctrl-C must still stop the servers and remove their folder.
        let drill = tokio::select! {
            drill = drill(&chosen) => drill?,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        };
        if let Some(file) = &self.report {
            let json = serde_json::to_string_pretty(&drill)? + "\n";
            std::fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))?;
        }
        report::write(self.html.as_deref(), || {
            let lines: Vec<_> = chosen.iter().map(|fault| fault.about).zip(&drill.faults).collect();
            report::drill_page(&lines, drill.verdict)
        })?;
        let failed = drill.faults.iter().filter(|entry| entry.verdict == Verdict::Fail).count();
        say(format_args!("\n{} faults, {failed} failed", drill.faults.len()))?;
        ensure!(drill.verdict == Verdict::Pass, "promises were not kept");
        Ok(())
    }

    fn chosen(&self) -> anyhow::Result<Vec<Fault>> {
        let all = all();
        for name in &self.only {
            ensure!(all.iter().any(|fault| fault.name == name), "no fault is called {name}; --list names them");
        }
        let wanted = |fault: &Fault| {
            (self.only.is_empty() || self.only.iter().any(|name| name == fault.name)) && (fault.quick || !self.quick)
        };
        Ok(all.into_iter().filter(wanted).collect())
    }
}

async fn drill(chosen: &[Fault]) -> anyhow::Result<Drill> {
    let mut testbed = TestBed::prepare().await?;
    say(format_args!("{} faults on two nodes, a relay, a consumer and an auditor\n", chosen.len()))?;
    let mut faults = Vec::new();
    for (number, fault) in chosen.iter().enumerate() {
        let entry = Box::pin(entry::play(&mut testbed, fault, number as u64 + 1)).await;
        say(&entry)?;
        // Whatever became of it, the next one starts on a test bed that works.
        let repaired = if entry.verdict == Verdict::Pass { testbed.repair().await } else { testbed.reset().await };
        repaired.context("the test bed cannot be repaired")?;
        faults.push(entry);
    }
    let passed = !faults.is_empty() && faults.iter().all(|entry| entry.verdict == Verdict::Pass);
    Ok(Drill { faults, verdict: if passed { Verdict::Pass } else { Verdict::Fail } })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_fault_has_a_name_of_its_own() {
        let names: HashSet<_> = all().iter().map(|fault| fault.name).collect();
        assert_eq!(names.len(), all().len());
    }

    #[test]
    fn only_the_two_promises_that_a_lost_redis_can_cost_are_ever_excused() {
        for fault in all() {
            assert!(fault.excused.iter().all(|name| ["nothing_lost", "honoured"].contains(name)), "{}", fault.name);
        }
    }
}
