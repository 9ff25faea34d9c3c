//! Counters that are wrong on purpose: what the load test says of a service that oversells.
//!
//! A verdict that never fails proves nothing. Here the same buyers come over the same HTTP to two nodes of a shop that
//! does everything right but count: each of three strategies keeps its stock in a real Redis or PostgreSQL in a way that
//! works for one buyer at a time. Nothing is slowed down and nothing is staged; the crowd alone makes them oversell.
//!
//! None of this is in the service. What comes in is a crowd and a strategy, what goes out is the usual report.

mod local_mutex;
mod read_then_write;
mod select_then_update;
mod shop;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;
use drive::admin_client::OpenSale;
use drive::client::Client;
use drive::demand::{Demand, Plan};
use drive::environment::JWT_SECRET;
use drive::report::{Report, Setup};
use drive::run::Run;
use drive::tokens::Tokens;
use sandbox::{Options, RedisOptions, Sandbox};
use tokio_util::sync::CancellationToken;

use crate::run::overrides::Overrides;
use crate::run::play::demand;
use crate::run::scenario::Scenario;
use local_mutex::LocalMutex;
use read_then_write::ReadThenWrite;
use select_then_update::SelectThenUpdate;
use shop::Shop;

/// As many as the sandbox of the service has, and enough for a lock in one process to lock nothing.
const NODES: usize = 2;

/// How not to count.
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
                "between GET and SET others read the same number, and every one of them sells that unit"
            }
            Self::LocalMutex => {
                "each node locks out its own buyers and sells the whole stock, not knowing of the other"
            }
            Self::SelectThenUpdate => {
                "between SELECT and UPDATE others read the same number, and the last to write forgets what they sold"
            }
        }
    }
}

/// A counter as one node uses it.
enum Counter {
    ReadThenWrite(ReadThenWrite),
    LocalMutex(LocalMutex),
    SelectThenUpdate(SelectThenUpdate),
}

impl Counter {
    /// Takes units if it believes that there are enough, and answers otherwise with how many it believes are left.
    async fn take(&self, units: u32) -> anyhow::Result<Result<(), i64>> {
        let units = i64::from(units);
        match self {
            Self::ReadThenWrite(counter) => counter.take(units).await,
            Self::LocalMutex(counter) => counter.take(units).await,
            Self::SelectThenUpdate(counter) => counter.take(units).await,
        }
    }

    /// What the store says is left.
    async fn left(&self) -> anyhow::Result<i64> {
        match self {
            Self::ReadThenWrite(counter) => counter.left().await,
            Self::LocalMutex(counter) => counter.left().await,
            Self::SelectThenUpdate(counter) => counter.left().await,
        }
    }
}

/// Counters of all nodes over one store that holds `stock` units, and the store's name and version.
async fn counters(
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

/// Lets the crowd of the scenario's first sale loose on a shop that counts like this, and judges it like the service.
/// `stop` sends the buyers away early.
///
/// # Errors
/// When a server does not come up.
pub async fn play(
    strategy: Strategy,
    scenario: &Scenario,
    overrides: &Overrides,
    stop: &CancellationToken,
) -> anyhow::Result<Report> {
    let sale = scenario.sales.first().context("the scenario has no sale")?;
    // The shop sells, and that is all: there is nothing to be done after a purchase.
    let demand = Demand { post_purchase: None, bots: None, ..demand(sale, overrides.seed, None)? };
    let options = match strategy {
        Strategy::ReadThenWrite | Strategy::LocalMutex => Options::none().redis(RedisOptions::default()),
        Strategy::SelectThenUpdate => Options::none().postgres(),
    };
    let sandbox = Sandbox::start(options).await.context("the private servers")?;
    let tokens = Tokens::new(&JWT_SECRET.into())?;
    let plan = Arc::new(Plan::draw(&demand, &tokens)?);
    let (counters, versions) = counters(strategy, &sandbox, sale.stock).await?;
    // Time for the workers to take their places, on top of the early buyers' lead.
    let start = Instant::now() + demand.lead + Duration::from_millis(500);
    let shop = Shop::open(counters, versions, sale.stock, demand.max_quantity, start)?;
    let setup = Setup {
        broker: "none".to_owned(),
        redis_fsync: if strategy == Strategy::SelectThenUpdate { "none" } else { "always" }.to_owned(),
        nodes: NODES,
        stock: sale.stock,
    };
    let client = Arc::new(Client::new(&shop.urls, overrides.limits(scenario, NODES)?)?);
    let run = Run::new(client, &tokens, &shop, demand, setup, overrides.pacing(scenario)?);
    let run = Run { stop: stop.clone(), ..run };
    let finished = run.execute_at(OpenSale { id: shop::sale()?, start }, plan).await;
    shop.close().await;
    Ok(finished?.report)
}
