//! SELECT the stock, compare, UPDATE it to one less, as many an object mapper saves: correct with one connection.
//!
//! The UPDATE locks the row, but the decision was made before the lock was held. All who read the same number get
//! the same unit, and the last to write forgets all others. `SET available = available - 1` would forget no sale and still
//! oversell: every request that waits for the row has already read that a unit is left. A transaction around both
//! statements changes nothing at PostgreSQL's usual isolation.
//!
//! The answer of the service is the condition inside the UPDATE, which PostgreSQL checks again once it has the row:
//! `UPDATE stock … WHERE version = $v AND available >= $n` in `seckill::ledger`, with `CHECK (available >= 0)` beneath.

use std::time::Duration;

use anyhow::Context;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

/// Connections of both nodes together.
const CONNECTIONS: u32 = 32;

#[derive(Clone)]
pub struct SelectThenUpdate(PgPool);

impl SelectThenUpdate {
    /// A counter in this database, with `stock` units.
    pub async fn stocked(url: &str, stock: u32) -> anyhow::Result<Self> {
        // All of them are open before the sale, as in a shop that has been up for a while. Buyers queue for them; how
        // long shows in their latency.
        let pool = PgPoolOptions::new().min_connections(CONNECTIONS).max_connections(CONNECTIONS);
        let pool = pool.acquire_timeout(Duration::from_secs(60));
        let pool = pool.connect(url).await.context("PostgreSQL")?;
        sqlx::query("CREATE TABLE counter (available bigint NOT NULL)").execute(&pool).await?;
        sqlx::query("INSERT INTO counter VALUES ($1)").bind(i64::from(stock)).execute(&pool).await?;
        Ok(Self(pool))
    }

    pub async fn take(&self, units: i64) -> anyhow::Result<Result<(), i64>> {
        let mut connection = self.0.acquire().await?;
        let left: i64 = sqlx::query_scalar("SELECT available FROM counter").fetch_one(&mut *connection).await?;
        if left < units {
            return Ok(Err(left));
        }
        sqlx::query("UPDATE counter SET available = $1").bind(left - units).execute(&mut *connection).await?;
        Ok(Ok(()))
    }

    pub async fn left(&self) -> anyhow::Result<i64> {
        Ok(sqlx::query_scalar("SELECT available FROM counter").fetch_one(&self.0).await?)
    }

    pub async fn version(&self) -> anyhow::Result<String> {
        Ok(sqlx::query_scalar("SHOW server_version").fetch_one(&self.0).await?)
    }
}
