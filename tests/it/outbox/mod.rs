//! The relay on real servers: what is accepted reaches Kafka, whatever dies and whenever.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use prometheus::Registry;
use redis::aio::MultiplexedConnection;
use seckill::config::Settings;
use seckill::domain::{OrderId, OrderMessage, SaleId};
use seckill::kafka::Producer;
use seckill::outbox::{Metrics, Relay, RelayFlushStatus, Worker};
use seckill::stock::keys::{self, RELAY_GROUP};
use secrecy::ExposeSecret;

mod ack;

mod death;

mod delivery;

mod outage;

mod relay;

use crate::support::flow::{SOON, length, pending, redis};
use crate::support::wait_until;

/// Settings of a relay that has lost its way to Kafka: nobody listens there.
fn cut_off(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    "127.0.0.1:1".clone_into(&mut settings.kafka.brokers);
    settings
}

fn worker(settings: &Settings, sale: SaleId, name: &str) -> Worker {
    let producer = Producer::new(&settings.kafka).unwrap();
    Worker::new(
        settings,
        sale,
        name,
        producer,
        Metrics::registered(&Registry::new()).unwrap(),
        RelayFlushStatus::default(),
    )
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

/// Waits until somebody else has emptied the outbox.
async fn until_empty(redis: &MultiplexedConnection, sale: SaleId) {
    wait_until("the outbox is empty", SOON, async || length(&mut redis.clone(), sale).await == 0).await;
}

/// Waits until relays hold so many entries.
async fn until_read(redis: &MultiplexedConnection, sale: SaleId, entries: u64) {
    wait_until("the entries are read", SOON, async || pending(&mut redis.clone(), sale).await == entries).await;
}

async fn make_group(redis: &mut MultiplexedConnection, sale: SaleId) {
    let mut make = redis::cmd("XGROUP");
    make.arg("CREATE").arg(keys::outbox(sale)).arg(RELAY_GROUP).arg("0");
    make.query_async::<()>(redis).await.unwrap();
}

/// Reads all that is new in the name of a relay, and leaves it at that.
async fn read_as(relay: &str, redis: &mut MultiplexedConnection, sale: SaleId) {
    let mut read = redis::cmd("XREADGROUP");
    read.arg("GROUP").arg(RELAY_GROUP).arg(relay).arg("STREAMS").arg(keys::outbox(sale)).arg(">");
    read.query_async::<redis::Value>(redis).await.unwrap();
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
