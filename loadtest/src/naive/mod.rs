//! Counters that are wrong on purpose: they show that the verdict fails on a service that oversells.
//!
//! A verdict that never fails proves nothing. Here the same buyers send the same HTTP requests to two nodes of a shop
//! that does everything right except counting: each of three strategies keeps its stock in a real Redis or PostgreSQL
//! in a way that works for one buyer at a time. Nothing is slowed down on purpose; the load alone makes them oversell.
//!
//! The service uses none of this. In: a scenario and a strategy. Out: the usual report.

mod counter;
mod local_mutex;
mod read_then_write;
mod select_then_update;
mod shop;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use drive::admin_client::OpenSale;
use drive::client::Client;
use drive::demand::{Demand, Plan};
use drive::environment::JWT_SECRET;
use drive::report::{Report, Setup};
use drive::run::Run;
use drive::tokens::Tokens;
use sandbox::{Options, RedisOptions, Sandbox};
use tokio_util::sync::CancellationToken;

use crate::scenario::Scenario;
use crate::scenario::demand::demand;
use crate::scenario::overrides::Overrides;
pub use counter::Strategy;
use counter::{NODES, counters};
use shop::Shop;

/// Runs the scenario's first sale against a shop that counts by this strategy, and checks it like the service. `stop`
/// stops the buyers early.
///
/// # Errors
/// When a server does not come up.
pub async fn run(
    strategy: Strategy,
    scenario: &Scenario,
    overrides: &Overrides,
    stop: &CancellationToken,
) -> anyhow::Result<Report> {
    let sale = scenario.sales.first().context("the scenario has no sale")?;
    // The shop only sells: its orders cannot be paid or cancelled.
    let demand = Demand { post_purchase: None, bots: None, ..demand(sale, overrides.seed, None)? };
    let options = match strategy {
        Strategy::ReadThenWrite | Strategy::LocalMutex => Options::none().redis(RedisOptions::default()),
        Strategy::SelectThenUpdate => Options::none().postgres(),
    };
    let sandbox = Sandbox::start(options).await.context("the private servers")?;
    let tokens = Tokens::new(&JWT_SECRET.into())?;
    let plan = Arc::new(Plan::draw(&demand, &tokens)?);
    let (counters, versions) = counters(strategy, &sandbox, sale.stock).await?;
    // Time for the workers to start, on top of the early buyers' lead.
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
