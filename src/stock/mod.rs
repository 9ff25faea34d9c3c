//! Step 4: the stock in Redis, which decides every purchase in one atomic script.
//!
//! In: a purchase that passed admission and the sold-out flag. Decided: accepted, refused, or not available here.
//! Guaranteed: an accepted purchase has taken its units, recorded its claim and stands in the outbox, all or
//! nothing; a refused one has left nothing behind; a lost answer is said to be unknown, never taken for a no.

mod batcher;

pub mod codec;

mod connection;

mod holdings;

pub mod keys;

mod lifecycle;

mod purchase;

pub mod script;

mod view;

use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use crate::config;
use crate::domain::{OrderId, Outcome, Purchase, SaleId, StockUpdate};
use batcher::Batcher;
use connection::RedisConnection;

pub use holdings::{ClaimRecord, Holdings};
pub use lifecycle::{Frozen, OnSale, RunId, WarmPart};
pub use purchase::{Answers, MAX_BATCH};
pub use view::Claim;

/// Why Redis gave no answer that could be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command did not run, or it is not known whether it did.
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    /// The reply is not one that this version of the script gives.
    #[error("a script answered what it should not: {0}")]
    Reply(String),
}

impl Error {
    /// Whether the command certainly wrote nothing.
    pub fn wrote_nothing(&self) -> bool {
        match self {
            Self::Redis(error) => connection::was_not_run(error),
            Self::Reply(_) => false,
        }
    }

    /// Whether Redis gave no answer at all, or only that it cannot answer now; anything else was an answer, and a wrong
    /// one.
    pub fn is_silence(&self) -> bool {
        match self {
            Self::Redis(error) => error.is_io_error() || connection::was_not_run(error),
            Self::Reply(_) => false,
        }
    }
}

/// The answer to one purchase, and what it tells about the sale as a whole.
#[derive(Clone, Debug)]
pub struct Answer {
    pub outcome: Outcome,
    /// Present when Redis answered and could prove that it may sell.
    pub update: Option<StockUpdate>,
    pub reachability: Reachability,
}

/// What a purchase tells about Redis itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// It answered, whatever it said.
    Reached,
    /// It could not be reached, or did not answer in time.
    Unreachable,
    /// It was not asked: the queue to it is full.
    QueueFull,
}

impl Answer {
    fn unknown(order: OrderId) -> Self {
        Self { outcome: Outcome::Unknown(order), update: None, reachability: Reachability::Unreachable }
    }

    fn not_tried(reachability: Reachability) -> Self {
        Self { outcome: Outcome::NotTried, update: None, reachability }
    }
}

/// A handle on the stock of all sales. Cheap to clone; clones share one connection and one batcher per sale.
#[derive(Clone)]
pub struct Stock {
    redis: RedisConnection,
    retention: Duration,
    batchers: Arc<RwLock<HashMap<SaleId, Batcher>>>,
    runtime: tokio::runtime::Handle,
}

impl Stock {
    /// Opens the connection. Must be called on the tokio runtime that is to drive the batches.
    pub fn connect(settings: &config::Redis) -> Result<Self, Error> {
        Ok(Self {
            redis: RedisConnection::open(settings)?,
            retention: settings.retention(),
            batchers: Arc::default(),
            runtime: tokio::runtime::Handle::current(),
        })
    }

    /// Asks for units. Purchases of one sale that arrive while a batch is in flight travel together in the next.
    pub async fn purchase(&self, sale: SaleId, purchase: Purchase) -> Answer {
        self.batcher(sale).purchase(purchase).await
    }

    fn batcher(&self, sale: SaleId) -> Batcher {
        // Nothing panics while the lock is held, so a poisoned one still holds a whole map.
        let known = self.batchers.read().unwrap_or_else(std::sync::PoisonError::into_inner).get(&sale).cloned();
        known.unwrap_or_else(|| {
            let mut batchers = self.batchers.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            batchers.entry(sale).or_insert_with(|| Batcher::start(self.clone(), sale, &self.runtime)).clone()
        })
    }
}
