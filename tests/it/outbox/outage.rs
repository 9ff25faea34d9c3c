//! Kafka is away, slow, or full; and a relay is asked to stop.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus::Registry;
use sandbox::Options;
use seckill::kafka::Producer;
use seckill::outbox::{Metrics, Relay, RelayFlushStatus, Worker};
use seckill::stock::keys;
use tokio_util::sync::CancellationToken;

use super::{cut_off, ids, relay, until_empty, without_scripts, worker};
use crate::support::flow::{
    SOON, append, copies, length, order, orders, pending, redis, sale, settings, settings_with_own, standing,
};
use crate::support::wait_until;

#[tokio::test]
async fn an_outbox_with_orders_in_it_does_not_expire_while_kafka_is_away() {
    let settings = settings("relay_expiry").await;
    let mut redis = redis(&settings).await;
    append(&mut redis, &[order(sale(1), 1)]).await;
    let key = keys::outbox(sale(1));
    redis::cmd("PEXPIRE").arg(&key).arg(30_000).query_async::<()>(&mut redis).await.unwrap();
    worker(&without_scripts(&settings).await, sale(1), "a").run_once().await.unwrap_err();
    let left: i64 = redis::cmd("TTL").arg(&key).query_async(&mut redis).await.unwrap();
    assert!(left > 3600, "{left} s");
}

/// Known failures: a broker that is down for a while, and what waits in the producer is lost.
#[tokio::test]
async fn kafka_down_for_seconds_delays_orders_and_drops_none() {
    let (own, mut settings) = settings_with_own("relay_outage", Options::none().kafka()).await;
    // So short that every record fails at least once: the relay tries again.
    settings.kafka.delivery_timeout_ms = 1000;
    let mut redis = redis(&settings).await;
    let sales = [sale(1), sale(2)];
    let stop = CancellationToken::new();
    let running = tokio::spawn(relay(&settings, &sales).run(stop.clone()));
    append(&mut redis, &orders(sale(1), 0..500)).await;
    own.kafka().kill().unwrap();
    append(&mut redis, &orders(sale(1), 500..2000)).await;
    append(&mut redis, &orders(sale(2), 0..1000)).await;
    let start = Instant::now();
    wait_until("the outage lasts", SOON, || async { start.elapsed() > Duration::from_secs(4) }).await;
    assert!(length(&mut redis, sale(2)).await == 1000);
    own.kafka().restart().await.unwrap();
    until_empty(&redis, sale(1)).await;
    until_empty(&redis, sale(2)).await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), 0);
    let expected: BTreeSet<_> =
        ids(&orders(sale(1), 0..2000)).union(&ids(&orders(sale(2), 0..1000))).copied().collect();
    assert_eq!(copies(&settings).await.into_keys().collect::<BTreeSet<_>>(), expected);
}

/// Known failure: a stop with the broker down and records unflushed.
#[tokio::test]
async fn a_stop_without_kafka_ends_in_time_and_leaves_every_entry_in_the_stream() {
    let mut settings = cut_off(&settings("relay_stop_no_kafka").await);
    settings.kafka.delivery_timeout_ms = 1000;
    let mut redis = redis(&settings).await;
    let all = orders(sale(1), 0..5000);
    append(&mut redis, &all).await;
    let stop = CancellationToken::new();
    let running = tokio::spawn(relay(&settings, &[sale(1)]).run(stop.clone()));
    wait_until("entries are read", SOON, async || pending(&mut redis.clone(), sale(1)).await > 0).await;
    stop.cancel();
    let left = tokio::time::timeout(Duration::from_secs(10), running).await.expect("the stop is bounded").unwrap();
    assert!(left > 0);
    assert_eq!(standing(&mut redis, sale(1)).await.into_iter().collect::<BTreeSet<_>>(), ids(&all));
}

#[tokio::test]
async fn a_stop_under_load_leaves_every_entry_either_delivered_or_in_the_stream() {
    let settings = settings("relay_stop_load").await;
    let mut redis = redis(&settings).await;
    let stop = CancellationToken::new();
    let running = tokio::spawn(relay(&settings, &[sale(1)]).run(stop.clone()));
    // Appends all the time, beyond the end of the relay.
    let mut appended = 0;
    while !running.is_finished() {
        append(&mut redis, &orders(sale(1), appended..appended + 500)).await;
        appended += 500;
        if appended == 10_000 {
            stop.cancel();
        }
    }
    let all = orders(sale(1), 0..appended);
    assert_eq!(running.await.unwrap(), 0, "Kafka is there: nothing that was read is left");
    let left: BTreeSet<_> = standing(&mut redis, sale(1)).await.into_iter().collect();
    let delivered = copies(&settings).await;
    assert!(!left.is_empty() && !delivered.is_empty(), "the stop came under load");
    assert!(delivered.values().all(|&times| times == 1));
    let delivered: BTreeSet<_> = delivered.into_keys().collect();
    assert!(delivered.is_disjoint(&left));
    assert_eq!(delivered.union(&left).copied().collect::<BTreeSet<_>>(), ids(&all));
}

/// Known failure: a full producer queue blocks an async worker.
#[tokio::test(flavor = "current_thread")]
async fn a_full_producer_queue_does_not_stall_the_runtime() {
    let mut settings = cut_off(&settings("relay_full_queue").await);
    settings.kafka.delivery_timeout_ms = 2000;
    let mut redis = redis(&settings).await;
    append(&mut redis, &orders(sale(1), 0..500)).await;
    let producer = Producer::with_queue(&settings.kafka, 10).unwrap();
    let metrics = Metrics::registered(&Registry::new()).unwrap();
    let worker =
        Worker::new(&settings, sale(1), "full", producer, metrics.clone(), RelayFlushStatus::default()).unwrap();
    let stop = CancellationToken::new();
    let longest = Arc::new(AtomicU64::new(0));
    let ticker = tokio::spawn({
        let longest = Arc::clone(&longest);
        async move {
            let mut last = Instant::now();
            loop {
                tokio::time::sleep(Duration::from_millis(5)).await;
                longest.fetch_max(last.elapsed().as_millis() as u64, Ordering::Relaxed);
                last = Instant::now();
            }
        }
    });
    let until = stop.clone();
    let running = tokio::spawn(async move { worker.run(&until).await });
    wait_until("records failed and were sent again", SOON, || {
        let retried = metrics.retried.get();
        async move { retried > 0 }
    })
    .await;
    stop.cancel();
    running.await.unwrap();
    ticker.abort();
    // A send that waits inside the producer would hold the thread until a record fails, for two seconds.
    assert!(longest.load(Ordering::Relaxed) < 500, "{longest:?} ms without a turn for others");
    assert_eq!(length(&mut redis, sale(1)).await, 500);
}

#[tokio::test]
async fn the_outbox_of_a_sale_that_is_over_is_emptied_before_its_relay_leaves_it() {
    let (own, mut settings) = settings_with_own("relay_over", Options::none().kafka()).await;
    settings.kafka.delivery_timeout_ms = 1000;
    let mut redis = redis(&settings).await;
    let sales = Arc::new(std::sync::Mutex::new(vec![sale(1)]));
    let listed = Arc::clone(&sales);
    let registry = Registry::new();
    let relay = Relay::new(&settings, Arc::new(move || listed.lock().unwrap().clone()), &registry).unwrap();
    own.kafka().kill().unwrap();
    append(&mut redis, &orders(sale(1), 0..10)).await;
    let stop = CancellationToken::new();
    let running = tokio::spawn(relay.run(stop.clone()));
    let backlog = || {
        let families = registry.gather();
        let family = families.iter().find(|family| family.name() == "seckill_outbox_backlog_entries");
        family.map_or(0.0, |family| family.get_metric()[0].get_gauge().get_value())
    };
    wait_until("the relay knows what waits", SOON, || async { backlog() > 0.0 }).await;
    sales.lock().unwrap().clear();
    // Long enough to read the list of sales several times, each of which would have ended the worker.
    let start = Instant::now();
    wait_until("the relay has read the list of sales several times", SOON, || async {
        start.elapsed() > Duration::from_secs(2)
    })
    .await;
    own.kafka().restart().await.unwrap();
    until_empty(&redis, sale(1)).await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), 0);
    assert_eq!(copies(&settings).await.len(), 10);
}
