//! `loadtest`: buyers against a running seckill, and the verdict on what they were promised.
//!
//! All of the work is done by `seckill::drive`; this program only says against what it is done.

mod bench;

mod crowd;

mod faults;

mod naive;

mod report;

mod target;

use std::path::PathBuf;

use anyhow::{bail, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use seckill::demo::{say, write};
use seckill::drive::demand::{Demand, Shape};
use seckill::drive::report::{Report, Verdict};
use seckill::drive::show::Shown;

use report::Heading;

/// Buyers against a running seckill, and the verdict on what they were promised.
#[derive(Debug, Parser)]
#[command(name = "loadtest", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Puts a sale on, lets buyers loose, and judges.
    Run(Box<Run>),
    /// Makes faults happen to a private service under load, one after the other, and judges each.
    Faults(faults::Faults),
    /// Measures the speed of a private service beside baselines on the same machine.
    Bench(Box<bench::Bench>),
    /// One role of the service, for the sandbox's own processes.
    #[command(hide = true)]
    Role {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

#[derive(Debug, clap::Args)]
struct Run {
    scenario: Scenario,
    #[command(flatten)]
    target: target::Target,
    #[command(flatten)]
    crowd: crowd::Crowd,
    /// Instead of the service, tries a counter that is wrong on purpose, on private servers: the verdict must fail.
    #[arg(long, conflicts_with = "url")]
    strategy: Option<naive::Strategy>,
    /// Also writes the report as JSON to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Also writes the report as one HTML page, which needs nothing beside it, to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Scenario {
    /// Thickest at the start, as in a real sale.
    Rush,
    /// At one rate over the whole window.
    Steady,
}

impl Scenario {
    const fn shape(self) -> Shape {
        match self {
            Self::Rush => Shape::Rush,
            Self::Steady => Shape::Steady,
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Run(run) => run.run().await,
        Command::Faults(faults) => Box::pin(faults.run()).await,
        Command::Bench(bench) => Box::pin(bench.run()).await,
        Command::Role { args } => {
            let command = std::iter::once("seckill".to_owned()).chain(args);
            seckill::cli::Cli::parse_from(command).run().await
        }
    }
}

impl Run {
    async fn run(self) -> anyhow::Result<()> {
        let demand = self.crowd.demand(self.scenario.shape())?;
        let mut heading = Heading {
            name: self.scenario.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned()),
            about: format!(
                "{} units, {} buyers within {} s",
                self.crowd.stock,
                demand.buyers,
                demand.window.as_secs_f64()
            ),
        };
        if let Some(strategy) = self.strategy {
            heading.name = format!("{} against {}", heading.name, strategy.name());
            heading.about = format!("{}. A counter that is wrong on purpose: {}", heading.about, strategy.mistake());
        }
        say(format_args!("{}: {}", heading.name, heading.about))?;
        // Ctrl-C must still stop a sandbox's servers and remove their folder.
        let report = tokio::select! {
            report = self.play(demand) => report?,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        };
        say(Shown(&report))?;
        write(self.report.as_deref(), &report)?;
        report::write(self.html.as_deref(), || report::page(&report, &heading))?;
        ensure!(report.verdict == Verdict::Pass, "promises were not kept");
        Ok(())
    }

    async fn play(&self, demand: Demand) -> anyhow::Result<Report> {
        match self.strategy {
            Some(strategy) => naive::play(strategy, &self.crowd, demand).await,
            None => self.target.play(&self.crowd, demand).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_run_needs_a_sandbox_or_urls_and_not_both() {
        let parse = |args: &[&str]| Cli::try_parse_from(["loadtest", "run", "rush"].iter().chain(args)).is_ok();
        assert!(parse(&["--sandbox"]));
        assert!(parse(&["--url", "http://127.0.0.1:1", "--url", "http://127.0.0.1:2"]));
        assert!(!parse(&[]));
        assert!(!parse(&["--sandbox", "--url", "http://127.0.0.1:1"]));
        assert!(parse(&["--strategy", "local-mutex"]));
        assert!(!parse(&["--strategy", "local-mutex", "--url", "http://127.0.0.1:1"]));
    }
}
