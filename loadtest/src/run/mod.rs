//! `loadtest run SCENARIO`: opens sales, runs buyers against them, and checks every promise of the service.
//!
//! In: a scenario by name or path, sizes that replace its own, and a service. Out: the report as text, JSON and HTML,
//! and an exit code that follows the verdict. The first Ctrl-C stops the buyers; the answers so far are still checked
//! and reported. A second Ctrl-C aborts.

mod execute;
mod target;

use std::path::PathBuf;

use crate::demo::{say, write};
use anyhow::{bail, ensure};
use clap::Args;
use drive::report::{Report, Verdict};
use drive::text_report::TextReport;
use tokio_util::sync::CancellationToken;

use crate::naive::{self, Strategy};
use crate::report::{self, Heading};
use crate::scenario::overrides::Overrides;
use crate::scenario::{SHIPPED, Sale, Scenario};
use target::Target;

/// Options of a run.
#[derive(Debug, Args)]
pub struct Run {
    /// The name of a scenario (`loadtest scenarios` lists them), or a file.
    scenario: String,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    overrides: Overrides,
    /// Replace the service by a counter that is wrong on purpose, on private servers: the verdict must fail.
    #[arg(long, conflicts_with = "url")]
    strategy: Option<Strategy>,
    /// Also write the report as JSON to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Also write the report as a self-contained HTML page to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Lists the scenarios that are compiled in.
///
/// # Errors
/// When standard output cannot be written.
pub fn list() -> anyhow::Result<()> {
    for (name, _) in SHIPPED {
        say(format_args!("{name:<10} {}", Scenario::load(name)?.about))?;
    }
    Ok(())
}

impl Run {
    /// # Errors
    /// When the scenario cannot be read or run, or the verdict is not "pass".
    pub async fn run(self) -> anyhow::Result<()> {
        let mut scenario = Scenario::load(&self.scenario)?;
        self.overrides.apply(&mut scenario)?;
        let mut heading = Heading { name: scenario.name.clone(), about: sizes(&scenario) };
        if let Some(strategy) = self.strategy {
            heading.name = format!("{} against {}", heading.name, strategy.name());
            heading.about = format!("{}. This counter is wrong on purpose: {}", heading.about, strategy.mistake());
        }
        say(format_args!("{}: {}\n  {}", heading.name, scenario.about, heading.about))?;
        let stop = CancellationToken::new();
        let report = tokio::select! {
            report = self.execute(&scenario, &stop) => report?,
            // Returning here still stops the private servers and removes their folder.
            () = second_ctrl_c(&stop) => bail!("interrupted"),
        };
        self.publish(&report, &heading)?;
        ensure!(report.verdict == Verdict::Pass, "the verdict is not pass");
        Ok(())
    }

    async fn execute(&self, scenario: &Scenario, stop: &CancellationToken) -> anyhow::Result<Report> {
        match self.strategy {
            Some(strategy) => Box::pin(naive::run(strategy, scenario, &self.overrides, stop)).await,
            None => self.target.run(scenario, &self.overrides, stop).await,
        }
    }

    /// Prints the report, and writes the files that were asked for.
    fn publish(&self, report: &Report, heading: &Heading) -> anyhow::Result<()> {
        say(TextReport(report))?;
        write(self.report.as_deref(), report)?;
        report::write(self.html.as_deref(), || report::page(report, heading))
    }
}

/// Stops the buyers at the first Ctrl-C; returns at the second.
async fn second_ctrl_c(stop: &CancellationToken) {
    for _ in 0..2 {
        if tokio::signal::ctrl_c().await.is_err() {
            // No signal can arrive: the run ends by itself.
            return std::future::pending().await;
        }
        if stop.is_cancelled() {
            return;
        }
        // A closed standard output is no reason to go on.
        let _ = say("\nStopping the buyers; their answers so far are still checked. Press Ctrl-C again to abort.");
        stop.cancel();
    }
}

fn sizes(scenario: &Scenario) -> String {
    let one = |sale: &Sale| format!("{} units, {} buyers within {} s", sale.stock, sale.buyers, sale.seconds);
    match scenario.sales.as_slice() {
        [sale] => one(sale),
        sales => sales.iter().map(|sale| format!("{}: {}", sale.name, one(sale))).collect::<Vec<_>>().join("; "),
    }
}
