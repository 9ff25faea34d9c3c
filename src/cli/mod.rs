//! The command line: one binary, several roles.

mod doctor;

mod out;

mod reconcile;

mod sale;

mod token;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::app::{self, Roles};
use crate::config::Settings;
use crate::kafka;
use crate::ledger;

/// A flash-sale order service: exact under load, whatever fails.
#[derive(Debug, Parser)]
#[command(name = "seckill", version)]
pub struct Cli {
    /// A TOML file with settings; SECKILL__SECTION__KEY in the environment overrides it.
    #[arg(long, global = true, env = "SECKILL_CONFIG")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answers HTTP.
    Serve,
    /// Carries accepted orders from Redis to Kafka.
    Relay,
    /// Turns orders from Kafka into rows.
    Consume,
    /// Finds what a fault has left undone, and does it.
    Reconcile(reconcile::Reconcile),
    /// The four roles in one process.
    All,
    /// Brings the schema and the topics up to date.
    Migrate,
    /// Creates, opens, pauses, ends and audits sales.
    #[command(subcommand)]
    Sale(sale::Command),
    /// Signs a token for development.
    Token(token::Token),
    /// Checks every dependency and says what to do.
    Doctor,
    /// Prints the OpenAPI description.
    Openapi,
}

impl Cli {
    /// Runs the command to its end. An error is for the person at the terminal.
    pub async fn run(self) -> anyhow::Result<()> {
        if let Command::Openapi = self.command {
            out::line(crate::api::openapi());
            return Ok(());
        }
        let settings = Settings::load(self.config.as_deref())?;
        match self.command {
            Command::Serve => app::run(settings, Roles::SERVE).await,
            Command::Relay => app::run(settings, Roles::RELAY).await,
            Command::Consume => app::run(settings, Roles::CONSUME).await,
            Command::Reconcile(reconcile) => reconcile.run(settings).await,
            Command::All => app::run(settings, Roles::ALL).await,
            Command::Migrate => migrate(&settings).await,
            Command::Sale(command) => command.run(&settings).await,
            Command::Token(token) => token.run(&settings),
            Command::Doctor => doctor::run(&settings).await,
            Command::Openapi => Ok(()),
        }
    }
}

async fn migrate(settings: &Settings) -> anyhow::Result<()> {
    let ledger = app::ledger(settings).await?;
    ledger::migrate(ledger.pool()).await?;
    kafka::topics::ensure(&settings.kafka).await?;
    out::line("schema and topics are up to date");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_help_is_as_it_was_agreed_on() {
        // Else the help shows what the variable holds where the tests run.
        let mut cli = Cli::command().mut_arg("config", |arg| arg.hide_env_values(true));
        insta::assert_snapshot!("help", cli.render_long_help().to_string());
    }
}
