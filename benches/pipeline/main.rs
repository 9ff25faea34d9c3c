//! The speed of the stock and of the relay, which no client sees by themselves, on private servers of this machine.
//! `loadtest bench` measures the service as a whole.
//!
//! Every figure is measured several times, in turns with a baseline that does the least work for the same result. A
//! slow phase of the machine slows down both, so the ratio says more than the figure.

mod figures;
mod relay;
mod shop;
mod stock;

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use sandbox::{Options, Sandbox};

use figures::{Report, say};

#[derive(Parser)]
struct Arguments {
    /// Measurements per figure.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Orders that the relay sends in one round.
    #[arg(long, default_value_t = 100_000)]
    orders: usize,
    /// Write all samples as JSON to this file.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Run only these parts, separated by commas.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// The flag that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// What a purchase costs Redis.
    Stock,
    /// From the outbox to Kafka.
    Relay,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let wanted = |part| arguments.only.is_empty() || arguments.only.contains(&part);
    let (rounds, orders) = (arguments.rounds.max(1), arguments.orders.max(1));
    let sandbox = Sandbox::start(Options::default()).await?;
    say(format_args!(
        "{rounds} rounds, broker {}, appendfsync {}",
        sandbox.broker_kind(),
        sandbox.redis().fsync().as_str()
    ));

    let mut report = Report::default();
    if wanted(Part::Stock) {
        stock::measure(&sandbox, rounds, &mut report).await.context("stock")?;
    }
    if wanted(Part::Relay) {
        relay::measure(&sandbox, rounds, orders, &mut report).await.context("relay")?;
    }
    say(&report);
    if let Some(path) = arguments.report {
        std::fs::write(&path, report.to_json()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
