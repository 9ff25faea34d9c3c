//! `loadtest faults`: the fault drill. It injects each fault into a sale under load, checks every promise afterwards
//! and prints one line of figures.
//!
//! The servers are private and real, and each role of the service runs in its own process. A fault declares beforehand
//! which promises it may break. Only faults in which Redis loses data may break any; the drill counts and prints the
//! loss.

mod crashes;
mod execute;
mod fault;
mod kafka;
mod messages;
mod orders;
mod postgres;
mod redis;
mod repair;
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
use execute::Line;
use fault::Fault;
use testbed::TestBed;

use crate::report::{self, FaultResult};

/// Options of the fault drill.
#[derive(Debug, Args)]
pub struct Faults {
    /// Write the report as JSON to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the report as a self-contained HTML page to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Run only this fault; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// List the faults and exit.
    #[arg(long)]
    list: bool,
    /// Run a short list of faults, about a minute.
    #[arg(long)]
    quick: bool,
}

/// The JSON report of a drill.
#[derive(Serialize)]
struct Drill {
    faults: Vec<FaultResult>,
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
        let failed = drill.faults.iter().filter(|result| result.verdict == Verdict::Fail).count();
        say(format_args!("\n{} faults, {failed} failed", drill.faults.len()))?;
        ensure!(drill.verdict == Verdict::Pass, "at least one fault failed");
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
    say(format_args!("{} faults on two nodes, a relay, a consumer and a reconciler\n", chosen.len()))?;
    let mut faults = Vec::new();
    for (number, fault) in chosen.iter().enumerate() {
        let result = Box::pin(execute::execute(&mut testbed, fault, number as u64 + 1)).await;
        say(Line(&result))?;
        // Whatever became of it, the next one starts on a test bed that works.
        let repaired = if result.verdict == Verdict::Pass { testbed.repair().await } else { testbed.reset().await };
        repaired.context("the test bed cannot be repaired")?;
        faults.push(result);
    }
    let passed = !faults.is_empty() && faults.iter().all(|result| result.verdict == Verdict::Pass);
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
