//! The stores of a running service, as far as their addresses are known.

use std::collections::BTreeMap;

use anyhow::Context;

use super::observer::StoreObserver;
use seckill::config::{self, Settings};
use seckill::domain::SaleId;
use seckill::kafka;
use seckill::ledger::Ledger;
use seckill::promises::{Flow, LedgerView, RedisView};
use seckill::stock::Stock;

/// Reads PostgreSQL, Redis and Kafka directly. Each may be missing.
pub struct Stores {
    ledger: Option<Ledger>,
    stock: Option<Stock>,
    kafka: Option<config::Kafka>,
}

impl Stores {
    /// Connects to all three.
    pub async fn connect(settings: &Settings) -> anyhow::Result<Self> {
        Self::some(Some(&settings.postgres), Some(&settings.redis), Some(&settings.kafka)).await
    }

    /// Connects to those that are given.
    ///
    /// # Errors
    /// When one of them is given and PostgreSQL does not answer, or an address cannot be read.
    pub async fn some(
        postgres: Option<&config::Postgres>,
        redis: Option<&config::Redis>,
        kafka: Option<&config::Kafka>,
    ) -> anyhow::Result<Self> {
        let ledger = match postgres {
            // The load generator writes nothing, so the time to pay does not matter.
            Some(settings) => Some(Ledger::connect(settings, std::time::Duration::ZERO).await.context("PostgreSQL")?),
            None => None,
        };
        let stock = redis.map(Stock::connect).transpose().context("Redis")?;
        Ok(Self { ledger, stock, kafka: kafka.cloned() })
    }

    async fn is_rebuilding(&self, sale: SaleId, redis: Option<&RedisView>) -> anyhow::Result<bool> {
        let Some(ledger) = &self.ledger else { return Ok(false) };
        let generation = ledger.stock(sale).await?.map_or(0, |row| row.generation);
        Ok(redis.is_none_or(|redis| !redis.selling || redis.generation != generation))
    }
}

impl StoreObserver for Stores {
    async fn ledger(&self, sale: SaleId) -> anyhow::Result<Option<LedgerView>> {
        let Some(ledger) = &self.ledger else { return Ok(None) };
        Ok(Some(ledger.view(sale).await?.context("the ledger does not know the sale")?))
    }

    async fn redis(&self, sale: SaleId) -> anyhow::Result<Option<RedisView>> {
        let Some(stock) = &self.stock else { return Ok(None) };
        Ok(stock.view(sale).await?)
    }

    async fn flow(&self, sale: SaleId) -> anyhow::Result<Option<Flow>> {
        let (Some(stock), Some(kafka)) = (&self.stock, &self.kafka) else { return Ok(None) };
        let redis = stock.view(sale).await?;
        let rebuilding = self.is_rebuilding(sale, redis.as_ref()).await?;
        let outbox = redis.map_or(0, |redis| redis.outbox);
        let kafka = kafka.clone();
        // Asking Kafka blocks a thread.
        let backlog = tokio::task::spawn_blocking(move || kafka::lag::backlog(&kafka)).await??;
        Ok(Some(Flow { outbox, backlog, rebuilding }))
    }

    async fn unsold(&self, sale: SaleId) -> anyhow::Result<Option<i64>> {
        let Some(ledger) = &self.ledger else { return Ok(None) };
        let Some(row) = ledger.stock(sale).await? else { return Ok(None) };
        Ok(Some(i64::from(row.available) + i64::from(row.reserve)))
    }

    async fn sold(&self, sale: SaleId) -> anyhow::Result<Option<i64>> {
        let Some(ledger) = &self.ledger else { return Ok(None) };
        let Some(row) = ledger.stock(sale).await? else { return Ok(None) };
        Ok(Some(i64::from(row.total) - i64::from(row.available) - i64::from(row.reserve)))
    }

    async fn remaining(&self, sale: SaleId) -> anyhow::Result<Option<i64>> {
        let Some(stock) = &self.stock else { return Ok(None) };
        Ok(stock.probe(sale).await?.map(|update| update.remaining.into()))
    }

    async fn versions(&self) -> BTreeMap<&'static str, String> {
        let mut versions = BTreeMap::new();
        if let Some(stock) = &self.stock
            && let Ok(mut server) = stock.info("server").await
        {
            versions.extend(server.remove("redis_version").map(|version| ("redis", version)));
        }
        if let Some(ledger) = &self.ledger {
            let asked = sqlx::query_scalar("SHOW server_version").fetch_one(ledger.pool()).await;
            versions.extend(asked.ok().map(|version| ("postgresql", version)));
        }
        versions
    }
}
