//! `loadtest run SCENARIO`: puts sales on, lets buyers loose, and judges what they were promised.
//!
//! In: a scenario by name or path, sizes instead of its own, and a service. Out: the report for people, as JSON and as a
//! page, and an exit status that follows the verdict. Ctrl-C ends the crowd, not the run: what was said until then is
//! reported and judged; a second one ends it all.

mod play;
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

/// A scenario against a service.
#[derive(Debug, Args)]
pub struct Run {
    /// The name of a scenario (`loadtest scenarios` lists them), or a file.
    scenario: String,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    overrides: Overrides,
    /// Instead of the service, tries a counter that is wrong on purpose, on private servers: the verdict must fail.
    #[arg(long, conflicts_with = "url")]
    strategy: Option<Strategy>,
    /// Also writes the report as JSON to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Also writes the report as one HTML page, which needs nothing beside it, to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Names the scenarios that are compiled in.
///
/// # Errors
/// When nobody reads standard output.
pub fn list() -> anyhow::Result<()> {
    for (name, _) in SHIPPED {
        say(format_args!("{name:<10} {}", Scenario::load(name)?.about))?;
    }
    Ok(())
}

impl Run {
    /// # Errors
    /// When the scenario cannot be read or played, or the verdict is not "pass".
    pub async fn run(self) -> anyhow::Result<()> {
        let mut scenario = Scenario::load(&self.scenario)?;
        self.overrides.apply(&mut scenario)?;
        let mut heading = Heading { name: scenario.name.clone(), about: sizes(&scenario) };
        if let Some(strategy) = self.strategy {
            heading.name = format!("{} against {}", heading.name, strategy.name());
            heading.about = format!("{}. A counter that is wrong on purpose: {}", heading.about, strategy.mistake());
        }
        say(format_args!("{}: {}\n  {}", heading.name, scenario.about, heading.about))?;
        let stop = CancellationToken::new();
        let report = tokio::select! {
            report = self.play(&scenario, &stop) => report?,
            // Leaving this way still stops a sandbox's servers and removes their folder.
            () = second_ctrl_c(&stop) => bail!("interrupted"),
        };
        self.hand_out(&report, &heading)?;
        ensure!(report.verdict == Verdict::Pass, "the verdict is not pass");
        Ok(())
    }

    async fn play(&self, scenario: &Scenario, stop: &CancellationToken) -> anyhow::Result<Report> {
        match self.strategy {
            Some(strategy) => Box::pin(naive::play(strategy, scenario, &self.overrides, stop)).await,
            None => self.target.play(scenario, &self.overrides, stop).await,
        }
    }

    /// The finished report, to everybody who wants it.
    fn hand_out(&self, report: &Report, heading: &Heading) -> anyhow::Result<()> {
        say(TextReport(report))?;
        write(self.report.as_deref(), report)?;
        report::write(self.html.as_deref(), || report::page(report, heading))
    }
}

/// The first Ctrl-C stops the crowd; returns at the second.
async fn second_ctrl_c(stop: &CancellationToken) {
    for _ in 0..2 {
        if tokio::signal::ctrl_c().await.is_err() {
            // Nobody can be heard: the run ends by itself.
            return std::future::pending().await;
        }
        if stop.is_cancelled() {
            return;
        }
        // Who reads nothing need not be told.
        let _ = say("\nThe buyers are sent away; what they were told is judged. Ctrl-C again ends it all.");
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
