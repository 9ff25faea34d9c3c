//! The lock that only the reconciling jobs hold, so that two of them do not work on one sale at the same time.
//!
//! In: the name of a thing and how long to wait for it. Decided, in one script in Redis: who holds it, and under which
//! fencing token. Guaranteed: a job that lost its lock is told before another can get it, unless its own process
//! was paused; and a job that writes through [`Fence`] writes nothing once a later holder has claimed the resource,
//! whatever was paused, lost or forgotten. The first keeps work from being done twice; only the second is safety.
//!
//! ```no_run
//! # use seckill::lock::*;
//! # async fn job() {}
//! # async fn example(lock: Lock, sale: seckill::domain::SaleId) -> Result<(), Box<dyn std::error::Error>> {
//! let guard = lock.acquire(&Name::sale(sale), Options::default()).await?;
//! let fence = guard.claim().await?; // shown at every write: `fence.guard(&mut transaction)`, `freeze(…, fence.token())`
//! tokio::select! {
//!     () = job() => {}
//!     why = guard.lost() => tracing::warn!(%why, "stopped without writing"),
//! }
//! match guard.release().await {
//!     Released::Lost(why) => tracing::warn!(%why, "the job ran without protection at its end"),
//!     _ => {}
//! }
//! # Ok(())
//! # }
//! ```

pub mod fence;

mod guard;

mod held_lease;

pub mod keys;

mod lease;

mod lease_manager;

mod metrics;

pub mod script;

use std::time::{Duration, Instant};

use sqlx::PgPool;
use tokio::sync::oneshot;

use crate::config;
use lease_manager::{LeaseManager, Request};
use script::Acquisition;

pub use fence::Fence;
pub use guard::{Guard, Lost, Released};
pub use keys::Name;
pub use lease::MIN_TTL;
pub use metrics::Metrics;

/// How long PostgreSQL may take to say the floor of the tokens, when the caller waits less.
const FLOOR_WITHIN: Duration = Duration::from_secs(1);

/// How a lock is acquired and held. Every wait has an end.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long the lock outlives a holder that dies, and a failing Redis. Less than [`MIN_TTL`] is taken as that.
    pub ttl: Duration,
    /// How long to wait for another holder, or for a Redis that does not answer. Zero: try once.
    pub wait_at_most: Duration,
    /// After this the lock is not renewed any more and its job is notified: a stuck job must not keep it for ever.
    pub max_hold: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(30), wait_at_most: Duration::ZERO, max_hold: Duration::from_secs(600) }
    }
}

/// Why a lock was not acquired. Nothing is held afterwards: what a lost answer may have taken is undone in the
/// background.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// Somebody else holds it, and the caller does not wait. It expires in `retry_after` unless it is renewed.
    #[error("somebody else holds the lock, which expires in {retry_after:?} unless they renew it")]
    Busy { retry_after: Duration },
    /// Somebody else held it all the time.
    #[error("somebody else held the lock all the time")]
    TimedOut,
    /// A fault, never contention.
    #[error("the lock is unavailable: {0}")]
    Unavailable(#[from] Unavailable),
}

/// What failed.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    #[error("redis: {0}")]
    Redis(redis::RedisError),
    #[error("redis did not answer in time")]
    NoAnswer,
    /// The answer came when the lease had as good as ended, such as after a pause of this process.
    #[error("the answer came too late to be of use")]
    TooLate,
    #[error("the floor of the fencing tokens cannot be read: {0}")]
    Floor(sqlx::Error),
    #[error("the lock was closed")]
    Closed,
}

/// Why there is no lock at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    #[error("no thread for the lock: {0}")]
    Thread(#[from] std::io::Error),
}

/// A handle on the locks. Clones share one thread, one connection to Redis and one set of counters.
#[derive(Clone, Debug)]
pub struct Lock {
    lease_manager: LeaseManager,
    pool: PgPool,
    metrics: Metrics,
}

impl Lock {
    /// Starts the thread; connects at the first use. The connection is never shared with purchases, and Redis must
    /// be the one that holds the sales. `pool` leads to the ledger.
    pub fn new(settings: &config::Redis, pool: PgPool) -> Result<Self, Error> {
        let metrics = Metrics::unregistered();
        Ok(Self { lease_manager: LeaseManager::start(settings, metrics.clone())?, pool, metrics })
    }

    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Takes the lock, or says why not, within `wait_at_most` and a call to each store.
    ///
    /// Dropping the future gives the acquisition up, also when Redis has already granted it.
    pub async fn acquire(&self, name: &Name, options: Options) -> Result<Guard, AcquireError> {
        let start = Instant::now();
        let result = self.take(name, options).await;
        self.metrics.acquired(&result, start.elapsed());
        result
    }

    async fn take(&self, name: &Name, options: Options) -> Result<Guard, AcquireError> {
        let Options { ttl, wait_at_most, max_hold } = options;
        let start = Instant::now();
        // Here and not on the lease_manager's thread, because the pool's connections belong to the caller's runtime.
        let floor = tokio::time::timeout(wait_at_most.max(FLOOR_WITHIN), fence::floor(&self.pool, name.as_str())).await;
        let floor = floor.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map_err(Unavailable::Floor)?;

        let (answer, answered) = oneshot::channel();
        let acquisition = Acquisition::new(name.clone(), ttl.max(MIN_TTL));
        let wait_at_most = wait_at_most.saturating_sub(start.elapsed());
        self.lease_manager.send(Request { acquisition, floor, wait_at_most, max_hold, answer })?;
        let hold = answered.await.unwrap_or(Err(Unavailable::Closed.into()))?;
        Ok(Guard::new(hold, self.pool.clone(), self.metrics.clone()))
    }

    /// Tells every job that its lock is lost, and returns when all were given back, and all that was given up is
    /// undone; `false` when that is not so `within` the time. No lock can be acquired afterwards.
    pub async fn close(&self, within: Duration) -> bool {
        self.lease_manager.close(within).await
    }
}
