//! The `seckill` binary: see [`seckill::cli`].

use clap::Parser;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    seckill::cli::Cli::parse().run().await
}
