//! The counter of a node, by each strategy.

use std::collections::BTreeMap;

use clap::ValueEnum;
use sandbox::Sandbox;

use super::local_mutex::LocalMutex;
use super::read_then_write::ReadThenWrite;
use super::select_then_update::SelectThenUpdate;

/// As many as the private service has, and enough that a lock in one process protects nothing.
pub const NODES: usize = 2;

/// A wrong way to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Strategy {
    /// GET from Redis, compare, SET in Redis
    ReadThenWrite,
    /// A mutex in each node around a copy of the stock
    LocalMutex,
    /// SELECT from PostgreSQL, compare, UPDATE without a condition
    SelectThenUpdate,
}

impl Strategy {
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadThenWrite => "read-then-write",
            Self::LocalMutex => "local-mutex",
            Self::SelectThenUpdate => "select-then-update",
        }
    }

    /// What is wrong with it, in one sentence.
    pub const fn mistake(self) -> &'static str {
        match self {
            Self::ReadThenWrite => {
                "between GET and SET other requests read the same number, and each of them sells that unit"
            }
            Self::LocalMutex => "each node locks only its own buyers, so each of them sells the whole stock",
            Self::SelectThenUpdate => {
                "between SELECT and UPDATE other requests read the same number, and the last UPDATE overwrites the others"
            }
        }
    }
}

/// A counter as one node uses it.
pub enum Counter {
    ReadThenWrite(ReadThenWrite),
    LocalMutex(LocalMutex),
    SelectThenUpdate(SelectThenUpdate),
}

impl Counter {
    /// Takes units if it believes that there are enough, and otherwise returns how many it believes are left.
    pub async fn take(&self, units: u32) -> anyhow::Result<Result<(), i64>> {
        let units = i64::from(units);
        match self {
            Self::ReadThenWrite(counter) => counter.take(units).await,
            Self::LocalMutex(counter) => counter.take(units).await,
            Self::SelectThenUpdate(counter) => counter.take(units).await,
        }
    }

    /// What the store says is left.
    pub async fn left(&self) -> anyhow::Result<i64> {
        match self {
            Self::ReadThenWrite(counter) => counter.left().await,
            Self::LocalMutex(counter) => counter.left().await,
            Self::SelectThenUpdate(counter) => counter.left().await,
        }
    }
}

/// Counters of all nodes over one store that holds `stock` units, and the store's name and version.
pub async fn counters(
    strategy: Strategy,
    sandbox: &Sandbox,
    stock: u32,
) -> anyhow::Result<(Vec<Counter>, BTreeMap<&'static str, String>)> {
    let mut counters = Vec::new();
    let version = match strategy {
        Strategy::ReadThenWrite => {
            let first = ReadThenWrite::stocked(sandbox.redis().url(), stock).await?;
            counters.extend((0..NODES).map(|_| Counter::ReadThenWrite(first.clone())));
            ("redis", first.version().await?)
        }
        Strategy::LocalMutex => {
            let store = ReadThenWrite::stocked(sandbox.redis().url(), stock).await?;
            for _ in 0..NODES {
                counters.push(Counter::LocalMutex(LocalMutex::over(store.clone()).await?));
            }
            ("redis", store.version().await?)
        }
        Strategy::SelectThenUpdate => {
            let database = sandbox.postgres().create_database("naive").await?;
            let first = SelectThenUpdate::stocked(&database, stock).await?;
            counters.extend((0..NODES).map(|_| Counter::SelectThenUpdate(first.clone())));
            ("postgresql", first.version().await?)
        }
    };
    Ok((counters, BTreeMap::from([version])))
}
