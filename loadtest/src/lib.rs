//! `loadtest`: the demo, the scenarios, the fault drill and the benchmarks of seckill.
//!
//! In: a command line. Out: a report on standard output, and as JSON and HTML if asked for. The exit code is 0 only if
//! every promise held.
//!
//! [`demo`] starts a cluster of private servers and roles and runs one sale on it. `scenario` reads what a run sells
//! and who buys, `run` runs it against a cluster or a running service, and `naive` runs it against counters that are
//! wrong on purpose. `faults` breaks a cluster under load, `bench` measures one, and `report` writes the HTML pages.
//! The buyers and the verdict come from the crate `drive`, the private servers from `sandbox`.

mod bench;

pub mod demo;

mod faults;

mod naive;

mod report;

mod run;

mod scenario;

use clap::{Parser, Subcommand};

/// Load tests for seckill: buyers over real HTTP, and a verdict on every promise of the service.
#[derive(Debug, Parser)]
#[command(name = "loadtest", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a whole flash sale on this machine, on private servers, and check every promise.
    Demo(demo::Demo),
    /// Run a scenario against a private or a running service, and check every promise.
    Run(Box<run::Run>),
    /// List the scenarios.
    Scenarios,
    /// Inject faults into a private service under load, one after the other, and check every promise after each.
    Faults(faults::Faults),
    /// Measure the speed of a private service against baselines on the same machine.
    Bench(Box<bench::Bench>),
    /// Run one role of the service, as a process of a cluster.
    #[command(hide = true)]
    Role {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

impl Cli {
    /// Runs the command. Its error is a message for the terminal.
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
    fn the_help_is_as_it_was_agreed_on() {
        insta::assert_snapshot!("help", Cli::command().render_long_help().to_string());
        let mut cli = Cli::command();
        for command in ["demo", "run", "faults", "bench"] {
            let command = cli.find_subcommand_mut(command).expect("a command");
            let help = command.render_long_help().to_string();
            insta::assert_snapshot!(format!("help_{}", command.get_name()), help);
        }
    }

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
