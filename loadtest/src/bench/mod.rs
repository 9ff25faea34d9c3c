//! `loadtest bench`: how fast the service is, as ratios to the least that could do the same work on the same machine.
//!
//! A figure alone says as much about the machine, and about what else it is doing, as about the service. So each speed
//! is taken in turns with a baseline, one right after the other and each first in every other round, and their ratio is
//! taken within the round. The median of these ratios is the result; least and most say how far to trust it.
//!
//! The servers are private and real, the roles of the service are processes of their own, and the load runs on the
//! same cores. A round in which an answer was not the one that is measured is thrown away and counted, never averaged;
//! a broken promise of the service ends the run, and what was measured before is already written.

mod accepted;
mod backlog;
mod crowd;
mod drain;
mod evalsha;
mod flag;
mod latency;
mod load;
mod machine;
mod memory;
mod no_op;
mod open_loop;
mod pipeline;
mod rebuild;
mod report;
mod rounds;
mod testbed;
mod wrk;

use std::path::{Path, PathBuf};

use crate::demo::say;
use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};

use report::Report;

/// Speed beside a baseline, on private servers of this machine.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    #[command(subcommand)]
    helper: Option<Helper>,
    /// Starts private servers and the service on them, and stops them afterwards. There is no other way yet to have
    /// every baseline on the same machine, so it is always so.
    #[arg(long)]
    sandbox: bool,
    /// Writes every sample as JSON to this file, anew after each part.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Writes the table as Markdown to this file instead of printing it, anew after each part.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Only these parts, such as `a,d`.
    #[arg(long, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<Part>,
    #[command(flatten)]
    plan: Plan,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, Args)]
pub struct Plan {
    /// Rounds of each part.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Seconds of load on each side of a round.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Purchases of one round of `c`, and orders in the backlog of `d`.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..))]
    pub orders: u32,
    /// Distinct users of `f`.
    #[arg(long, default_value_t = 5_000_000)]
    pub users: u32,
    /// Claims of the sale that `h` rebuilds.
    #[arg(long, default_value_t = 10_000)]
    pub claims: u32,
}

/// Processes that a bench starts from its own program.
#[derive(Debug, Subcommand)]
enum Helper {
    /// The handler that does nothing.
    #[command(hide = true)]
    NoOp(no_op::NoOp),
    /// Answers anything with the same bytes, without HTTP: what the generator can do at most.
    #[command(hide = true)]
    Wall(no_op::Wall),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Part {
    /// Refusals at the sold-out flag over a handler that does nothing.
    A,
    /// Accepted purchases over the script alone.
    B,
    /// Purchases accepted and persisted over the script alone.
    C,
    /// A backlog in Kafka that becomes rows, over a bulk insert.
    D,
    /// Latency at half of saturation, beside the handler that does nothing.
    E,
    /// Memory of a node after very many users.
    F,
    /// Bytes in Redis for each sold unit.
    G,
    /// From the restart of Redis to the next sale.
    H,
}

impl Bench {
    /// # Errors
    /// When a server does not come up, or the service does not do what is to be measured.
    pub async fn run(self) -> anyhow::Result<()> {
        match self.helper {
            Some(Helper::NoOp(no_op)) => return no_op.run().await,
            Some(Helper::Wall(wall)) => return wall.run().await,
            None => {}
        }
        // Ctrl-C must still stop the servers and remove their folder.
        let report = tokio::select! {
            report = self.measure() => report?,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        };
        if self.markdown.is_none() {
            say(format_args!("\n{}", report.markdown()))?;
        }
        Ok(())
    }

    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    async fn measure(&self) -> anyhow::Result<Report> {
        let mut report = Report::new(machine::look()?);
        for part in Part::value_variants().iter().copied().filter(|part| self.wants(*part)) {
            let measured = self.measure_part(part, &mut report).await;
            // After each one, so that whatever ends a later part takes nothing of this one with it.
            report.finish()?;
            self.write(&report)?;
            measured?;
        }
        Ok(report)
    }

    /// Into the files that are wanted.
    fn write(&self, report: &Report) -> anyhow::Result<()> {
        let into = |file: &Path, text: String| {
            std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
        };
        if let Some(file) = &self.markdown {
            into(file, report.markdown())?;
        }
        if let Some(file) = &self.report {
            into(file, serde_json::to_string_pretty(&report.to_json())? + "\n")?;
        }
        Ok(())
    }

    async fn measure_part(&self, part: Part, report: &mut Report) -> anyhow::Result<()> {
        let plan = self.plan;
        match part {
            Part::A => Box::pin(flag::measure(plan, report)).await.context("a: refusals at the flag"),
            Part::B => Box::pin(accepted::measure(plan, report)).await.context("b: accepted purchases"),
            Part::C => Box::pin(pipeline::measure(plan, report)).await.context("c, g: the whole pipeline"),
            Part::D => Box::pin(drain::measure(plan, report)).await.context("d: a backlog"),
            Part::E => Box::pin(latency::measure(plan, report)).await.context("e: latency"),
            Part::F => Box::pin(memory::measure(plan, report)).await.context("f: memory of a node"),
            // It came with c.
            Part::G if self.wants(Part::C) => Ok(()),
            Part::G => {
                let plan = Plan { rounds: 1, ..plan };
                Box::pin(pipeline::measure(plan, report)).await.context("c, g: the whole pipeline")
            }
            Part::H => Box::pin(rebuild::measure(plan, report)).await.context("h: rebuild"),
        }
    }
}
