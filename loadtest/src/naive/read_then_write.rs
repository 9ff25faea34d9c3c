//! GET the stock, compare, SET it one lower: correct with one buyer.
//!
//! Each of the two commands is atomic and the pair is not. Everybody who reads before the first one writes reads the
//! same number, sells the same unit and writes the same successor, so most purchases leave no trace in the counter.
//! A transaction (MULTI) would not help: its commands cannot use each other's answers.
//!
//! The answer of the service is `lua/purchase.lua`: check and write in one script, during which Redis does nothing
//! else.

use anyhow::Context;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

const KEY: &str = "naive:stock";

#[derive(Clone)]
pub struct ReadThenWrite(MultiplexedConnection);

impl ReadThenWrite {
    /// A counter in this Redis, with `stock` units.
    pub async fn stocked(url: &str, stock: u32) -> anyhow::Result<Self> {
        let mut redis = redis::Client::open(url)?.get_multiplexed_async_connection().await.context("Redis")?;
        let () = redis.set(KEY, stock).await?;
        Ok(Self(redis))
    }

    pub async fn take(&self, units: i64) -> anyhow::Result<Result<(), i64>> {
        let left = self.left().await?;
        if left < units {
            return Ok(Err(left));
        }
        self.put(left - units).await?;
        Ok(Ok(()))
    }

    pub async fn left(&self) -> anyhow::Result<i64> {
        Ok(self.0.clone().get(KEY).await?)
    }

    pub async fn put(&self, left: i64) -> anyhow::Result<()> {
        Ok(self.0.clone().set(KEY, left).await?)
    }

    pub async fn version(&self) -> anyhow::Result<String> {
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut self.0.clone()).await?;
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        Ok(version.unwrap_or("unknown").trim().to_owned())
    }
}
