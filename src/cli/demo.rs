//! `seckill demo`: the whole system on one machine, and the verdict on it.

use clap::Args;

#[derive(Debug, Args)]
pub struct Demo;

impl Demo {
    pub async fn run(self) -> anyhow::Result<()> {
        anyhow::bail!("not yet")
    }
}
