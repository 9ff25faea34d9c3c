//! What a relay reads, and in which order, where nobody comes after it to make up for it: here a silent relay's
//! entries are taken over after an hour only, so whatever is delivered was found by the read that is meant to find it.

use std::time::{Duration, Instant};

use prometheus::Registry;
use redis::aio::MultiplexedConnection;
use seckill::config::Settings;
use seckill::kafka::Producer;
use seckill::outbox::{Metrics, RelayFlushStatus, Worker};
use seckill::stock::keys::{self, RELAY_GROUP};
use secrecy::ExposeSecret;

use crate::support::flow::{append, copies, length, orders, redis, sale};

/// Short beside the hour, long beside a turn.
const SOON: Duration = Duration::from_secs(30);

async fn settings(name: &str) -> Settings {
    let mut settings = crate::support::flow::settings(name).await;
    settings.outbox.claim_after_ms = 3_600_000;
    settings
}

fn worker(settings: &Settings, name: &str) -> Worker {
    let producer = Producer::new(&settings.kafka).unwrap();
    Worker::new(
        settings,
        sale(1),
        name,
        producer,
        Metrics::registered(&Registry::new()).unwrap(),
        RelayFlushStatus::default(),
    )
    .unwrap()
}

async fn drain(worker: &mut Worker, redis: &mut MultiplexedConnection) {
    let start = Instant::now();
    while length(redis, sale(1)).await > 0 {
        assert!(start.elapsed() < SOON, "the outbox does not get empty");
        worker.run_once().await.unwrap();
    }
}

/// Known failure, on the side of the stream: a group that begins at the newest entry.
#[tokio::test]
async fn a_group_that_is_made_after_the_first_orders_begins_with_them() {
    let settings = settings("relay_group").await;
    let mut redis = redis(&settings).await;
    append(&mut redis, &orders(sale(1), 0..5)).await;
    drain(&mut worker(&settings, "a"), &mut redis).await;
    assert_eq!(copies(&settings).await.len(), 5);
}

/// Reads the new entries under the name of the relay: what a reply that was lost on its way leaves behind.
async fn lose_a_reply(redis: &mut MultiplexedConnection, name: &str) {
    let mut read = redis::cmd("XREADGROUP");
    read.arg("GROUP").arg(RELAY_GROUP).arg(name).arg("STREAMS").arg(keys::outbox(sale(1))).arg(">");
    read.query_async::<redis::Value>(redis).await.unwrap();
}

#[tokio::test]
async fn entries_whose_reply_was_lost_are_read_again_after_the_error_before_new_ones() {
    let mut settings = settings("relay_lost_reply").await;
    let mut redis = redis(&settings).await;
    // A user of its own, so that its connections differ from those of other tests.
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg("lossy").arg("on").arg(">lossy").arg("~*").arg("&*").arg("+@all");
    user.query_async::<()>(&mut redis).await.unwrap();
    settings.redis.url = settings.redis.url.expose_secret().replace("redis://", "redis://lossy:lossy@").into();
    let mut worker = worker(&settings, "a");
    append(&mut redis, &orders(sale(1), 0..1)).await;
    drain(&mut worker, &mut redis).await;

    append(&mut redis, &orders(sale(1), 1..6)).await;
    lose_a_reply(&mut redis, "a").await;
    redis::cmd("CLIENT").arg("KILL").arg("USER").arg("lossy").query_async::<u64>(&mut redis).await.unwrap();
    worker.run_once().await.unwrap_err();
    append(&mut redis, &orders(sale(1), 6..8)).await;
    worker.run_once().await.unwrap();
    let delivered: Vec<_> = copies(&settings).await.into_keys().collect();
    let expected: Vec<_> = orders(sale(1), 0..6).iter().map(|order| order.id).collect();
    assert_eq!(delivered, expected, "first what was read and never arrived");
    drain(&mut worker, &mut redis).await;
    assert_eq!(copies(&settings).await.len(), 8);
}

#[tokio::test]
async fn a_relay_with_nothing_to_do_waits_longer_than_an_answer_may_take_and_meets_no_error() {
    let mut settings = settings("relay_idle").await;
    let mut redis = redis(&settings).await;
    append(&mut redis, &orders(sale(1), 0..1)).await;
    drain(&mut worker(&settings, "busy"), &mut redis).await;
    settings.outbox.block_ms = 3000;
    settings.redis.response_timeout_ms = 1000;
    let mut idle = worker(&settings, "idle");
    for _ in 0..2 {
        idle.run_once().await.unwrap();
    }
}
