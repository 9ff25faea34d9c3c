//! The relay on real servers: what is accepted reaches Kafka, whatever dies and whenever.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use prometheus::Registry;
use redis::aio::MultiplexedConnection;
use seckill::config::Settings;
use seckill::domain::{OrderId, OrderMessage, SaleId};
use seckill::outbox::{Homes, Metrics, Publisher, Relay, Worker};
use secrecy::ExposeSecret;

mod ack;

mod death;

mod delivery;

#[path = "../flow/mod.rs"]
mod flow;

mod outage;

#[path = "../support/mod.rs"]
mod support;

use flow::{SOON, length, redis};

/// Nobody listens there.
const NOWHERE: &str = "127.0.0.1:1";

fn worker(settings: &Settings, sale: SaleId, name: &str) -> Worker {
    let publisher = Publisher::new(&settings.kafka).unwrap();
    Worker::new(settings, sale, name, publisher, Metrics::register(&Registry::new()).unwrap(), Homes::default())
        .unwrap()
}

fn relay(settings: &Settings, sales: &[SaleId]) -> Relay {
    let sales = sales.to_vec();
    Relay::new(settings, Arc::new(move || sales.clone()), &Registry::new()).unwrap()
}

/// Turns until the outbox is empty.
async fn drain(worker: &mut Worker, redis: &mut MultiplexedConnection, sale: SaleId) {
    let start = Instant::now();
    while length(redis, sale).await > 0 {
        assert!(start.elapsed() < SOON, "the outbox does not get empty");
        worker.run_once().await.unwrap();
    }
}

fn ids(orders: &[OrderMessage]) -> BTreeSet<OrderId> {
    orders.iter().map(|order| order.id).collect()
}

/// A user of Redis who may do everything but run scripts: a relay with his rights dies between publishing and
/// deleting, each time.
async fn without_scripts(settings: &Settings) -> Settings {
    let mut redis = redis(settings).await;
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg("mortal").arg("on").arg(">mortal").arg("~*").arg("+@all").arg("-@scripting");
    command.query_async::<()>(&mut redis).await.unwrap();
    let mut settings = settings.clone();
    settings.redis.url = settings.redis.url.expose_secret().replace("redis://", "redis://mortal:mortal@").into();
    settings
}
