//! `loadtest bench`: the speed of the service as ratios to baselines that do the least work for the same result.
//!
//! A figure alone says as much about the machine and its other load as about the service. So each round measures the
//! service and a baseline right after each other, in alternating order, and takes their ratio. The median of the ratios
//! is the result; the least and the most show how far to trust it.
//!
//! The servers are private and real, each role of the service runs in its own process, and the load shares their cores.
//! A round with an answer that is not the measured one is discarded and counted, never averaged. A broken promise of
//! the service ends the run; the parts measured before it are already written.

mod accepted;
mod backlog;
mod crowd;
mod drain;
mod evalsha;
mod latency;
mod load;
mod machine;
mod no_op;
mod node_memory;
mod open_loop;
mod pipeline;
mod plan;
mod rebuild;
mod report;
mod rounds;
mod sold_out;
mod testbed;
mod wrk;

use std::path::{Path, PathBuf};

use crate::demo::say;
use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};

use plan::Plan;
use report::Report;

/// Options of the benchmark.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    #[command(subcommand)]
    helper: Option<Helper>,
    /// Write every sample as JSON to this file, again after each part.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the tables as Markdown to this file instead of printing them, again after each part.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Run only these parts, separated by commas. The letters a to h stand for them in this order.
    #[arg(long, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<Part>,
    #[command(flatten)]
    plan: Plan,
}

/// Processes that a bench starts from its own program.
#[derive(Debug, Subcommand)]
enum Helper {
    /// A handler that does nothing.
    #[command(hide = true)]
    NoOp(no_op::NoOp),
    /// Answers everything with the same bytes, without HTTP: the most that the generator can do.
    #[command(hide = true)]
    CannedAnswer(no_op::CannedAnswer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Part {
    /// Sold-out answers over a handler that does nothing
    #[value(alias = "a")]
    SoldOut,
    /// Accepted purchases over the script alone
    #[value(alias = "b")]
    Accepted,
    /// Purchases accepted and persisted over the script alone
    #[value(alias = "c")]
    Pipeline,
    /// A backlog in Kafka that becomes rows, over a bulk insert
    #[value(alias = "d")]
    Drain,
    /// Latency at half of saturation, beside the handler that does nothing
    #[value(alias = "e")]
    Latency,
    /// Memory of a node after very many users
    #[value(alias = "f")]
    NodeMemory,
    /// Bytes in Redis for each sold unit
    #[value(alias = "g")]
    RedisMemory,
    /// From the restart of Redis to the next sold unit
    #[value(alias = "h")]
    Rebuild,
}

impl Bench {
    /// # Errors
    /// When a server does not come up, or the service does not do what is to be measured.
    pub async fn run(self) -> anyhow::Result<()> {
        match self.helper {
            Some(Helper::NoOp(no_op)) => return no_op.run().await,
            Some(Helper::CannedAnswer(server)) => return server.run().await,
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
        let mut report = Report::new(machine::describe()?);
        for part in Part::value_variants().iter().copied().filter(|part| self.wants(*part)) {
            let measured = self.measure_part(part, &mut report).await;
            // After each part, so that a later error loses nothing of it.
            report.finish()?;
            self.write(&report)?;
            measured?;
        }
        Ok(report)
    }

    /// Writes the files that were asked for.
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
            Part::SoldOut => Box::pin(sold_out::measure(plan, report)).await.context("sold-out answers"),
            Part::Accepted => Box::pin(accepted::measure(plan, report)).await.context("accepted purchases"),
            Part::Pipeline => Box::pin(pipeline::measure(plan, report)).await.context("the whole pipeline"),
            Part::Drain => Box::pin(drain::measure(plan, report)).await.context("the drain of a backlog"),
            Part::Latency => Box::pin(latency::measure(plan, report)).await.context("latency"),
            Part::NodeMemory => Box::pin(node_memory::measure(plan, report)).await.context("memory of a node"),
            // The rounds of the pipeline measure it as well.
            Part::RedisMemory if self.wants(Part::Pipeline) => Ok(()),
            Part::RedisMemory => {
                let plan = Plan { rounds: 1, ..plan };
                Box::pin(pipeline::measure(plan, report)).await.context("memory of Redis")
            }
            Part::Rebuild => Box::pin(rebuild::measure(plan, report)).await.context("the rebuild of a sale"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_stands_for_each_part_in_order() {
        let parts = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|letter| Part::from_str(letter, false));
        assert!(parts.iter().flatten().eq(Part::value_variants()));
    }
}
