//! Step 9: the reconciler, which finds what a fault has left undone and does it, and the only user of the lock.
//!
//! In: every sale that was ever opened, twice a second. Decided: is anything overdue, missing, or left behind? If
//! not, nothing is locked and nothing written. Guaranteed: whatever is repaired is repaired once, under the sale's
//! lock for economy and under its fence for safety; only the rebuild fills Redis from the ledger; and no counter is
//! ever corrected by guess.
//!
//! The states of a sale's Redis, and what moves it from one to the next:
//!
//! ```text
//!   ┌────────┐ freeze ┌────────┐ warm, first part ┌─────────┐ warm, last part ┌─────────┐
//!   │ absent ├───────▶│ frozen ├─────────────────▶│ warming ├────────────────▶│ selling │
//!   └────────┘        └────────┘                  └────┬────┘                 └─┬──┬──┬─┘
//!       ▲              ▲  ▲  ▲          freeze         │                        │  │  │
//!       │              │  │  └─────────────────────────┘                        │  │  │
//!       │              │  │                    freeze                           │  │  │
//!       │              │  └─────────────────────────────────────────────────────┘  │  │
//!       │     ┌──────┐ │ freeze                                                    │  │
//!       │     │ cold ├─┘                                                           │  │
//!       │     └──────┘   Redis was restarted or failed over, with its data         │  │
//!       │         ▲                                                                │  │
//!       │         └────────────────────────────────────────────────────────────────┘  │
//!       │                Redis lost its data                                          │
//!       └─────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The operator freezes and warms a draft, once, to open it. The reconciler does it to rebuild a sale: when its Redis
//! is absent, cold, or left frozen or half warmed, when it sells another generation than the ledger's, and when a
//! live order has no claim. Only a selling Redis takes purchases; in every other state it answers `COLD`.

mod claims;

mod inspection;

mod rebuild;

mod rounds;

mod stats;

use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::catalogue::Catalogue;
use crate::config;
use crate::domain::{Sale, SaleId};
use crate::kafka::Producer;
use crate::ledger::{self, Ledger};
use crate::lock::{self, AcquireError, Fence, Lock, Lost, Name, Released, fence};
use crate::stock::script::StockCode;
use crate::stock::{self, Stock};

pub use inspection::{Inspection, RebuildReason};
use rebuild::Rebuilt;
use rounds::Permit;
pub use stats::{Job, JobStats, Metrics};

/// Why a run did not end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    #[error(transparent)]
    Stock(#[from] stock::Error),
    #[error(transparent)]
    Fence(#[from] fence::Error),
    #[error("kafka: {0:#}")]
    Kafka(anyhow::Error),
    #[error(transparent)]
    Lock(#[from] AcquireError),
    /// A holder with a greater token came in between, or Redis was restarted under way. The next run starts over.
    #[error("overtaken")]
    Overtaken,
    /// The lock was lost: whatever was not written by then is not written.
    #[error("the lock was lost: {0}")]
    Lost(Lost),
}

/// The reconciler of all sales. Any number of them may run.
pub struct Reconciler {
    settings: config::Reconcile,
    kafka: config::Kafka,
    retention: Duration,
    catalogue: Catalogue,
    ledger: Ledger,
    stock: Stock,
    lock: Lock,
    producer: Producer,
    /// How many sales are worked on at a time: half of the connections to PostgreSQL, because others need some, too.
    permits: Semaphore,
    metrics: Metrics,
}

/// Everything that a reconciler works on.
pub struct Parts {
    pub catalogue: Catalogue,
    pub ledger: Ledger,
    pub stock: Stock,
    pub lock: Lock,
    pub producer: Producer,
}

impl Reconciler {
    /// # Errors
    /// When the metrics are registered already.
    pub fn new(
        settings: &config::Settings,
        parts: Parts,
        registry: &prometheus::Registry,
    ) -> Result<Self, prometheus::Error> {
        let Parts { catalogue, ledger, stock, lock, producer } = parts;
        Ok(Self {
            settings: settings.reconcile.clone(),
            kafka: settings.kafka.clone(),
            retention: settings.redis.retention(),
            catalogue,
            ledger,
            stock,
            lock,
            producer,
            permits: Semaphore::new((settings.postgres.max_connections / 2).max(1) as usize),
            metrics: Metrics::registered(registry)?,
        })
    }

    /// Inspects one sale and repairs it. `deep`: compares claims and rows, too.
    pub async fn run_once(&self, sale: &Sale, deep: bool) -> Result<JobStats, Error> {
        let mut permit = Permit::acquire(&self.permits).await;
        let found = self.inspect(sale, deep).await?;
        if found.stats().is_clean() {
            return Ok(found.stats());
        }
        let options = lock::Options {
            ttl: Duration::from_millis(self.settings.lock_ttl_ms),
            wait_at_most: Duration::ZERO,
            max_hold: Duration::from_millis(self.settings.max_hold_ms),
        };
        let guard = match self.lock.acquire(&Name::sale(sale.id), options).await {
            Ok(guard) => guard,
            // Another reconciler repairs it now.
            Err(AcquireError::Busy { .. } | AcquireError::TimedOut) => return Ok(found.stats()),
            Err(error) => return Err(error.into()),
        };
        let outcome = match guard.claim().await {
            Ok(fence) => tokio::select! {
                outcome = self.repair_what_is_left(sale, deep, found, &fence, &mut permit) => outcome,
                why = guard.lost() => Err(Error::Lost(why)),
            },
            Err(error) => Err(error.into()),
        };
        match guard.release().await {
            // The process is going down, and the lock is free.
            Released::Lost(Lost::Closing) => {}
            Released::Lost(why) => {
                tracing::warn!(sale = %sale.id, %why, "a job ended without its lock; the fence has kept it from writing");
            }
            _ => {}
        }
        if let Ok(stats) = &outcome {
            self.metrics.repaired(stats);
        }
        outcome
    }

    /// Another reconciler may have rebuilt the sale between the inspection and the lock. A second rebuild would only
    /// stop the sale for nothing.
    async fn repair_what_is_left(
        &self,
        sale: &Sale,
        deep: bool,
        found: Inspection,
        fence: &Fence,
        permit: &mut Permit<'_>,
    ) -> Result<JobStats, Error> {
        let found = if found.rebuild.is_some() { self.inspect(sale, deep).await? } else { found };
        self.repair(sale, found, fence, permit).await
    }

    async fn repair(
        &self,
        sale: &Sale,
        found: Inspection,
        fence: &Fence,
        permit: &mut Permit<'_>,
    ) -> Result<JobStats, Error> {
        let mut stats = found.stats();
        if found.overdue > 0 {
            stats.repaired(Job::Expire, self.expire(sale.id, fence).await?);
        }
        if let Some(reason) = found.rebuild {
            let start = Instant::now();
            let Some(rebuilt) = self.rebuild(sale, fence, permit).await? else {
                stats.repaired(Job::CatchUp, 1);
                return Ok(stats);
            };
            let Rebuilt { generation, live, forgotten, steps } = rebuilt;
            self.metrics.rebuilt(start.elapsed());
            let (sale, took_ms) = (sale.id, start.elapsed().as_millis());
            tracing::warn!(%sale, %reason, generation, took_ms, %steps, "the sale was rebuilt in Redis and sells again");
            if forgotten > 0 {
                tracing::warn!(%sale, forgotten, live, "live orders were missing from Redis and are there again");
            }
            stats.repaired(Job::Rebuild, 1);
            stats.checked(Job::Restore, live, forgotten);
            stats.repaired(Job::Restore, forgotten as u64);
            return Ok(stats);
        }
        stats.repaired(Job::Release, self.release(sale.id, &found.closed).await?);
        stats.repaired(Job::Republish, self.republish(sale.id, found.generation, &found.orphans).await?);
        if found.idle_reserve {
            stats.repaired(Job::ReleaseReserve, self.release_reserve(sale.id, fence).await?);
        } else if found.short_total {
            stats.repaired(Job::Total, self.raise_total(sale.id).await?);
        }
        Ok(stats)
    }

    /// Closes overdue orders in the ledger, then gives their units back in Redis.
    async fn expire(&self, sale: SaleId, fence: &Fence) -> Result<u64, Error> {
        let closed = self.ledger.expire(sale, self.settings.max_repairs, fence).await?;
        for order in &closed {
            // What fails here is a claim of a closed order, which a later run releases.
            self.stock.release(sale, &order.user, order.order).await?;
        }
        Ok(closed.len() as u64)
    }

    async fn release_reserve(&self, sale: SaleId, fence: &Fence) -> Result<u64, Error> {
        let operation = format!("move-{}", uuid::Uuid::new_v4());
        let moved = self.ledger.release_reserve(sale, &operation, fence).await?;
        if moved.is_some() {
            self.raise_total(sale).await?;
        }
        Ok(u64::from(moved.is_some()))
    }

    /// Tells Redis the total that the ledger has given to it.
    async fn raise_total(&self, sale: SaleId) -> Result<u64, Error> {
        let Some(row) = self.ledger.stock(sale).await? else { return Ok(0) };
        let told = self.stock.set_total(sale, row.generation, row.redis_total).await?;
        Ok(u64::from(told == StockCode::Raised))
    }
}
