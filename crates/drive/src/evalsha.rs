//! The baseline of every purchase: `redis-benchmark -c 50 -P 1`, calling our own script for one purchase at a time.

use std::process::Command;

use anyhow::Context;
use redis::aio::MultiplexedConnection;

use seckill::domain::SaleId;
use seckill::stock::keys;

const SCRIPT: &str = include_str!("../../../lua/purchase.lua");

/// redis-benchmark on one database of one Redis.
#[derive(Clone, Debug)]
pub struct Evalsha {
    port: String,
    database: String,
    hash: String,
}

impl Evalsha {
    /// Loads the script into the Redis at `url`, which `redis` is connected to.
    ///
    /// # Errors
    /// When redis-benchmark is not installed, or Redis does not answer.
    pub async fn load(url: &str, redis: &mut MultiplexedConnection) -> anyhow::Result<Self> {
        let (_, address) = url.rsplit_once(':').context("a URL without a port")?;
        let (port, database) = address.split_once('/').unwrap_or((address, "0"));
        let version = Command::new("redis-benchmark").arg("--version").output();
        version.context("redis-benchmark cannot be run; it comes with Redis")?;
        let hash = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query_async(redis).await?;
        Ok(Self { port: port.to_owned(), database: database.to_owned(), hash })
    }

    /// Purchases per second over so many calls in a warm sale. Nearly every call buys: two of the random numbers that
    /// make an order and its buyer may be the same now and then, so the caller counts what was sold.
    ///
    /// # Errors
    /// When redis-benchmark does not say how fast it was.
    pub async fn run(&self, sale: SaleId, calls: u32) -> anyhow::Result<f64> {
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &self.port, "--dbnum", &self.database, "-c", "50", "-P", "1", "--csv"]);
        command.args(["-n", &calls.to_string(), "-r", "1000000000"]);
        command.args(["EVALSHA", &self.hash, "4"]).args(keys::all(sale)).arg("3600000");
        // As long as the real ones are.
        command.args(["1", "00000000-0000-8000-8000-__rand_int__", "buyer-__rand_int__", "1", "", ""]);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let text = String::from_utf8_lossy(&output.stdout);
        // A line of names, then a line of values: the command, calls per second, milliseconds.
        let rate = text.lines().nth(1).and_then(|line| line.split("\",\"").nth(1));
        let rate =
            rate.with_context(|| format!("redis-benchmark: {text}{}", String::from_utf8_lossy(&output.stderr)))?;
        Ok(rate.parse()?)
    }
}
