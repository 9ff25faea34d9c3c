//! The `loadtest` binary: see [`loadtest::Cli`].

use clap::Parser;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    loadtest::Cli::parse().run().await
}
