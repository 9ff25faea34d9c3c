//! `loadtest`: buyers against a running seckill, and the verdict on what they were promised.
//!
//! All of the work is done by `drive`; this program only says against what it is done.

mod bench;

pub mod demo;

mod faults;

mod naive;

mod report;

mod run;

mod scenario;

use clap::{Parser, Subcommand};

/// Buyers against a running seckill, and the verdict on what they were promised.
#[derive(Debug, Parser)]
#[command(name = "loadtest", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A whole flash sale on this machine, with private servers, and the verdict on it.
    Demo(demo::Demo),
    /// Plays a scenario: puts sales on, lets buyers loose, and judges.
    Run(Box<run::Run>),
    /// Names the scenarios.
    Scenarios,
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

impl Cli {
    /// Runs the command to its end. An error is for the person at the terminal.
    pub async fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Demo(demo) => Box::pin(demo.run()).await,
            Command::Run(run) => Box::pin(run.run()).await,
            Command::Scenarios => run::list(),
            Command::Faults(faults) => Box::pin(faults.run()).await,
            Command::Bench(bench) => Box::pin(bench.run()).await,
            Command::Role { args } => {
                let command = std::iter::once("seckill".to_owned()).chain(args);
                seckill::cli::Cli::parse_from(command).run().await
            }
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
