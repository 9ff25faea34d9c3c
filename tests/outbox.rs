//! The relay on real servers: what is accepted reaches Kafka, whatever dies and whenever.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus::Registry;
use redis::Script;
use redis::aio::MultiplexedConnection;
use seckill::config::Settings;
use seckill::domain::{OrderId, OrderMessage, SaleId};
use seckill::outbox::{Homes, Metrics, Publisher, Relay, Worker};
use seckill::sandbox::{Options, RedisOptions, Sandbox, shared};
use seckill::stock::keys::{self, RELAY_GROUP};
use secrecy::ExposeSecret;
use tokio_util::sync::CancellationToken;

mod flow;
mod support;

use flow::{SOON, append, copies, length, order, orders, pending, redis, sale, settings, standing, stored};
use support::wait_until;

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

#[tokio::test]
async fn what_was_accepted_before_the_first_relay_ran_is_published_and_removed() {
    let settings = settings(shared().await.unwrap(), "relay_first").await;
    let mut redis = redis(&settings).await;
    let all = orders(sale(1), 0..700);
    append(&mut redis, &all).await;
    drain(&mut worker(&settings, sale(1), "a"), &mut redis, sale(1)).await;
    let messages = stored(&settings.kafka.brokers, &settings.kafka.topic).await;
    assert_eq!(messages.len(), all.len());
    assert_eq!(messages.iter().map(|message| message.order().id).collect::<BTreeSet<_>>(), ids(&all));
    assert!(messages.iter().all(|message| message.key == message.order().user.as_str().as_bytes()));
    assert_eq!(pending(&mut redis, sale(1)).await, 0);
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

/// Known failure: the process dies between the send and the deletion.
#[tokio::test]
async fn a_relay_killed_after_publishing_and_before_deleting_makes_the_message_come_twice() {
    let settings = settings(shared().await.unwrap(), "relay_killed").await;
    let mut redis = redis(&settings).await;
    let all = orders(sale(1), 0..20);
    append(&mut redis, &all).await;
    let mut mortal = worker(&without_scripts(&settings).await, sale(1), "mortal");
    mortal.run_once().await.unwrap_err();
    drop(mortal);
    assert_eq!((copies(&settings).await.len(), length(&mut redis, sale(1)).await), (20, 20));

    drain(&mut worker(&settings, sale(1), "next"), &mut redis, sale(1)).await;
    let copies = copies(&settings).await;
    assert_eq!(copies.keys().copied().collect::<BTreeSet<_>>(), ids(&all));
    assert!(copies.values().all(|&times| times == 2), "{copies:?}");
    assert_eq!(pending(&mut redis, sale(1)).await, 0);
}

#[tokio::test]
async fn after_an_error_a_relay_takes_up_its_own_entries_without_publishing_what_is_confirmed() {
    let settings = settings(shared().await.unwrap(), "relay_error").await;
    let mut redis = redis(&settings).await;
    append(&mut redis, &orders(sale(1), 0..20)).await;
    let mut worker = worker(&without_scripts(&settings).await, sale(1), "a");
    worker.run_once().await.unwrap_err();
    let mut grant = redis::cmd("ACL");
    grant.arg("SETUSER").arg("mortal").arg("+@scripting");
    grant.query_async::<()>(&mut redis).await.unwrap();
    append(&mut redis, &orders(sale(1), 20..30)).await;
    drain(&mut worker, &mut redis, sale(1)).await;
    let copies = copies(&settings).await;
    assert_eq!(copies.len(), 30);
    assert!(copies.values().all(|&times| times == 1), "{copies:?}");
}

/// Known failure: a relay dies with entries pending and nobody claims them.
#[tokio::test]
async fn entries_pending_at_a_dead_relay_are_claimed_and_delivered_by_another() {
    let settings = settings(shared().await.unwrap(), "relay_claims").await;
    let mut redis = redis(&settings).await;
    let all = orders(sale(1), 0..50);
    append(&mut redis, &all).await;
    let mut cut_off = settings.clone();
    cut_off.kafka.brokers = NOWHERE.to_owned();
    let dying = worker(&cut_off, sale(1), "dying");
    let task = tokio::spawn(async move { dying.run(&CancellationToken::new()).await });
    let probe = redis.clone();
    wait_until("the entries are read", SOON, || {
        let mut redis = probe.clone();
        async move { pending(&mut redis, sale(1)).await == 50 }
    })
    .await;
    task.abort();
    let _ = task.await;

    append(&mut redis, &orders(sale(1), 50..60)).await;
    drain(&mut worker(&settings, sale(1), "living"), &mut redis, sale(1)).await;
    assert_eq!(copies(&settings).await.len(), 60);
    assert_eq!(pending(&mut redis, sale(1)).await, 0);
}

#[tokio::test]
async fn a_relay_that_waits_for_kafka_keeps_its_entries_from_others() {
    let settings = settings(shared().await.unwrap(), "relay_keeps").await;
    let mut redis = redis(&settings).await;
    append(&mut redis, &orders(sale(1), 0..5)).await;
    let mut cut_off = settings.clone();
    cut_off.kafka.brokers = NOWHERE.to_owned();
    cut_off.kafka.delivery_timeout_ms = 60_000;
    let waiting = worker(&cut_off, sale(1), "waiting");
    let task = tokio::spawn(async move { waiting.run(&CancellationToken::new()).await });
    let probe = redis.clone();
    wait_until("the entries are read", SOON, || {
        let mut redis = probe.clone();
        async move { pending(&mut redis, sale(1)).await == 5 }
    })
    .await;
    let mut other = worker(&settings, sale(1), "other");
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(4 * settings.outbox.claim_after_ms) {
        other.run_once().await.unwrap();
    }
    assert_eq!(copies(&settings).await.len(), 0);
    task.abort();
    let _ = task.await;
    drain(&mut other, &mut redis, sale(1)).await;
    assert_eq!(copies(&settings).await.len(), 5);
}

#[tokio::test]
async fn an_entry_acknowledged_and_never_deleted_heals() {
    let settings = settings(shared().await.unwrap(), "relay_orphans").await;
    let mut redis = redis(&settings).await;
    append(&mut redis, &orders(sale(1), 0..3)).await;
    let key = keys::outbox(sale(1));
    redis::cmd("XGROUP").arg("CREATE").arg(&key).arg(RELAY_GROUP).arg("0").query_async::<()>(&mut redis).await.unwrap();
    let mut read = redis::cmd("XREADGROUP");
    read.arg("GROUP").arg(RELAY_GROUP).arg("dead").arg("STREAMS").arg(&key).arg(">");
    read.query_async::<redis::Value>(&mut redis).await.unwrap();
    let entries: Vec<(String, Vec<String>)> =
        redis::cmd("XRANGE").arg(&key).arg("-").arg("+").query_async(&mut redis).await.unwrap();
    for (id, _) in &entries {
        redis::cmd("XACK").arg(&key).arg(RELAY_GROUP).arg(id).query_async::<()>(&mut redis).await.unwrap();
    }
    assert_eq!((pending(&mut redis, sale(1)).await, length(&mut redis, sale(1)).await), (0, 3));
    drain(&mut worker(&settings, sale(1), "healer"), &mut redis, sale(1)).await;
    assert_eq!(copies(&settings).await.len(), 3);
}

#[tokio::test]
async fn a_pending_entry_whose_body_is_gone_stops_being_pending() {
    let settings = settings(shared().await.unwrap(), "relay_gone").await;
    let mut redis = redis(&settings).await;
    append(&mut redis, &orders(sale(1), 0..3)).await;
    let key = keys::outbox(sale(1));
    redis::cmd("XGROUP").arg("CREATE").arg(&key).arg(RELAY_GROUP).arg("0").query_async::<()>(&mut redis).await.unwrap();
    let mut read = redis::cmd("XREADGROUP");
    read.arg("GROUP").arg(RELAY_GROUP).arg("me").arg("STREAMS").arg(&key).arg(">");
    read.query_async::<redis::Value>(&mut redis).await.unwrap();
    redis::cmd("XTRIM").arg(&key).arg("MAXLEN").arg(1).query_async::<()>(&mut redis).await.unwrap();
    assert_eq!(pending(&mut redis, sale(1)).await, 3);
    drain(&mut worker(&settings, sale(1), "me"), &mut redis, sale(1)).await;
    assert_eq!((pending(&mut redis, sale(1)).await, copies(&settings).await.len()), (0, 1));
}

#[tokio::test]
async fn an_entry_that_is_no_order_goes_to_the_dead_letters_and_blocks_nothing() {
    let settings = settings(shared().await.unwrap(), "relay_malformed").await;
    let mut redis = redis(&settings).await;
    let key = keys::outbox(sale(1));
    append(&mut redis, &orders(sale(1), 0..2)).await;
    for fields in [&["colour", "blue"][..], &["order", "x", "user", "ada"], &["order", "\u{7f}", "b", "c"]] {
        redis::cmd("XADD").arg(&key).arg("*").arg(fields).query_async::<()>(&mut redis).await.unwrap();
    }
    append(&mut redis, &orders(sale(1), 2..4)).await;
    drain(&mut worker(&settings, sale(1), "a"), &mut redis, sale(1)).await;
    assert_eq!(copies(&settings).await.len(), 4);
    let dead = stored(&settings.kafka.brokers, &settings.kafka.dead_letter_topic).await;
    assert_eq!(dead.len(), 3);
    assert!(dead.iter().all(|letter| letter.headers["source"] == key && !letter.headers["reason"].is_empty()));
    assert!(dead.iter().any(|letter| String::from_utf8_lossy(&letter.payload).contains("blue")));
    assert_eq!(pending(&mut redis, sale(1)).await, 0);
}

#[tokio::test]
async fn a_stream_that_does_not_exist_is_waited_for_and_never_made() {
    let settings = settings(shared().await.unwrap(), "relay_no_stream").await;
    let mut redis = redis(&settings).await;
    let mut worker = worker(&settings, sale(1), "a");
    for _ in 0..3 {
        worker.run_once().await.unwrap();
    }
    let exists: bool = redis::cmd("EXISTS").arg(keys::outbox(sale(1))).query_async(&mut redis).await.unwrap();
    assert!(!exists);
    append(&mut redis, &[order(sale(1), 1)]).await;
    drain(&mut worker, &mut redis, sale(1)).await;
    assert_eq!(copies(&settings).await.len(), 1);
}

#[tokio::test]
async fn an_outbox_with_orders_in_it_does_not_expire_while_kafka_is_away() {
    let settings = settings(shared().await.unwrap(), "relay_expiry").await;
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
    let own = Sandbox::start(Options::none().redis(RedisOptions::default()).kafka()).await.unwrap();
    let mut settings = settings(&own, "relay_outage").await;
    // So short that every letter fails at least once: it is the relay that does not give up.
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
    let probe = redis.clone();
    wait_until("everything is delivered", SOON, || {
        let mut redis = probe.clone();
        async move { length(&mut redis, sale(1)).await + length(&mut redis, sale(2)).await == 0 }
    })
    .await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), 0);
    let expected: BTreeSet<_> =
        ids(&orders(sale(1), 0..2000)).union(&ids(&orders(sale(2), 0..1000))).copied().collect();
    assert_eq!(copies(&settings).await.into_keys().collect::<BTreeSet<_>>(), expected);
}

/// Known failure: a stop with the broker down and letters unflushed.
#[tokio::test]
async fn a_stop_without_kafka_ends_in_time_and_leaves_every_entry_in_the_stream() {
    let mut settings = settings(shared().await.unwrap(), "relay_stop_no_kafka").await;
    settings.kafka.brokers = NOWHERE.to_owned();
    settings.kafka.delivery_timeout_ms = 1000;
    let mut redis = redis(&settings).await;
    let all = orders(sale(1), 0..5000);
    append(&mut redis, &all).await;
    let stop = CancellationToken::new();
    let running = tokio::spawn(relay(&settings, &[sale(1)]).run(stop.clone()));
    let probe = redis.clone();
    wait_until("entries are read", SOON, || {
        let mut redis = probe.clone();
        async move { pending(&mut redis, sale(1)).await > 0 }
    })
    .await;
    stop.cancel();
    let left = tokio::time::timeout(Duration::from_secs(10), running).await.expect("the stop is bounded").unwrap();
    assert!(left > 0);
    assert_eq!(standing(&mut redis, sale(1)).await.into_iter().collect::<BTreeSet<_>>(), ids(&all));
}

#[tokio::test]
async fn a_stop_under_load_leaves_every_entry_either_delivered_or_in_the_stream() {
    let settings = settings(shared().await.unwrap(), "relay_stop_load").await;
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
    let mut settings = settings(shared().await.unwrap(), "relay_full_queue").await;
    settings.kafka.brokers = NOWHERE.to_owned();
    settings.kafka.delivery_timeout_ms = 2000;
    let mut redis = redis(&settings).await;
    append(&mut redis, &orders(sale(1), 0..500)).await;
    let publisher = Publisher::with_queue(&settings.kafka, 10).unwrap();
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let worker = Worker::new(&settings, sale(1), "full", publisher, metrics.clone(), Homes::default()).unwrap();
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
    wait_until("letters failed and were sent again", SOON, || {
        let retried = metrics.retried.get();
        async move { retried > 0 }
    })
    .await;
    stop.cancel();
    running.await.unwrap();
    ticker.abort();
    // A send that waits inside the producer would hold the thread until a letter fails, for two seconds.
    assert!(longest.load(Ordering::Relaxed) < 500, "{longest:?} ms without a turn for others");
    assert_eq!(length(&mut redis, sale(1)).await, 500);
}

/// Known failure: the partition key is the sale, so one partition has all the work.
#[tokio::test]
async fn orders_of_one_sale_spread_over_all_partitions() {
    let settings = settings(shared().await.unwrap(), "relay_partitions").await;
    let mut redis = redis(&settings).await;
    append(&mut redis, &orders(sale(1), 0..10_000)).await;
    drain(&mut worker(&settings, sale(1), "a"), &mut redis, sale(1)).await;
    let partitions = usize::try_from(settings.kafka.partitions).unwrap();
    let mut shares = vec![0; partitions];
    for message in stored(&settings.kafka.brokers, &settings.kafka.topic).await {
        shares[usize::try_from(message.partition).unwrap()] += 1;
    }
    assert_eq!(shares.iter().sum::<usize>(), 10_000);
    assert!(shares.iter().all(|&share| share < 2 * 10_000 / partitions && share > 0), "{shares:?}");
}

#[tokio::test]
async fn a_relay_finds_sales_that_open_later_and_leaves_those_that_are_over() {
    let settings = settings(shared().await.unwrap(), "relay_sales").await;
    let mut redis = redis(&settings).await;
    let sales = Arc::new(std::sync::Mutex::new(vec![sale(1)]));
    let listed = Arc::clone(&sales);
    let relay = Relay::new(&settings, Arc::new(move || listed.lock().unwrap().clone()), &Registry::new()).unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(relay.run(stop.clone()));
    append(&mut redis, &orders(sale(2), 0..10)).await;
    *sales.lock().unwrap() = vec![sale(2)];
    let probe = redis.clone();
    wait_until("the later sale is relayed", SOON, || {
        let mut redis = probe.clone();
        async move { length(&mut redis, sale(2)).await == 0 }
    })
    .await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), 0);
}

#[tokio::test]
async fn the_outbox_of_a_sale_that_is_over_is_emptied_before_its_relay_leaves_it() {
    let own = Sandbox::start(Options::none().redis(RedisOptions::default()).kafka()).await.unwrap();
    let mut settings = settings(&own, "relay_over").await;
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
    // Several looks at the list of sales, each of which would have ended the worker.
    let start = Instant::now();
    wait_until("the relay looks around", SOON, || async { start.elapsed() > Duration::from_secs(2) }).await;
    own.kafka().restart().await.unwrap();
    let probe = redis.clone();
    wait_until("everything is delivered", SOON, || {
        let mut redis = probe.clone();
        async move { length(&mut redis, sale(1)).await == 0 }
    })
    .await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), 0);
    assert_eq!(copies(&settings).await.len(), 10);
}

/// How many names the group of the relays holds.
async fn names(redis: &mut MultiplexedConnection, sale: SaleId) -> usize {
    let mut command = redis::cmd("XINFO");
    command.arg("CONSUMERS").arg(keys::outbox(sale)).arg(RELAY_GROUP);
    command.query_async::<Vec<redis::Value>>(redis).await.unwrap().len()
}

#[tokio::test]
async fn a_relay_that_stops_takes_its_name_with_it_unless_it_leaves_entries() {
    let settings = settings(shared().await.unwrap(), "relay_names").await;
    let mut redis = redis(&settings).await;
    append(&mut redis, &orders(sale(1), 0..5)).await;
    for _ in 0..2 {
        let stop = CancellationToken::new();
        let running = tokio::spawn(relay(&settings, &[sale(1)]).run(stop.clone()));
        let probe = redis.clone();
        wait_until("the relay has joined the group, and the outbox is empty", SOON, || {
            let mut redis = probe.clone();
            async move { length(&mut redis, sale(1)).await == 0 && names(&mut redis, sale(1)).await == 1 }
        })
        .await;
        stop.cancel();
        assert_eq!(running.await.unwrap(), 0);
        assert_eq!(names(&mut redis, sale(1)).await, 0);
    }

    append(&mut redis, &orders(sale(1), 5..10)).await;
    let mut cut_off = settings.clone();
    cut_off.kafka.brokers = NOWHERE.to_owned();
    cut_off.kafka.delivery_timeout_ms = 1000;
    let stop = CancellationToken::new();
    let running = tokio::spawn(relay(&cut_off, &[sale(1)]).run(stop.clone()));
    let probe = redis.clone();
    wait_until("the entries are read", SOON, || {
        let mut redis = probe.clone();
        async move { pending(&mut redis, sale(1)).await == 5 }
    })
    .await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), 5);
    assert_eq!(
        (names(&mut redis, sale(1)).await, pending(&mut redis, sale(1)).await),
        (1, 5),
        "they are its own still"
    );

    let leave = Script::new(include_str!("../lua/leave.lua"));
    let mut call = leave.prepare_invoke();
    let gone: u64 = call.key(keys::outbox(sale(2))).arg(RELAY_GROUP).arg("me").invoke_async(&mut redis).await.unwrap();
    assert_eq!(gone, 0, "no stream, no group: nothing is made");
    assert_eq!(length(&mut redis, sale(2)).await, 0);
}

/// Runs every branch of the script and answers what it said.
async fn acknowledge(redis: &mut MultiplexedConnection, pairs: &[(&str, &str)]) -> (u64, u64, u64, u64) {
    let script = Script::new(include_str!("../lua/ack.lua"));
    let mut call = script.prepare_invoke();
    call.key(keys::outbox(sale(1))).arg(RELAY_GROUP);
    for (id, order) in pairs {
        call.arg(id).arg(order);
    }
    call.invoke_async(redis).await.unwrap()
}

async fn every_branch_of_the_script(redis: &mut MultiplexedConnection) {
    let key = keys::outbox(sale(1));
    assert_eq!(acknowledge(redis, &[("1-0", "x")]).await, (0, 1, 0, 0), "no stream");
    for (id, field) in [("1-0", "order"), ("2-0", "order"), ("3-0", "colour"), ("4-0", "order")] {
        redis::cmd("XADD").arg(&key).arg(id).arg(field).arg("mine").query_async::<()>(redis).await.unwrap();
    }
    assert_eq!(acknowledge(redis, &[("9-0", "mine")]).await, (0, 1, 0, 4), "no group");
    redis::cmd("XGROUP").arg("CREATE").arg(&key).arg(RELAY_GROUP).arg("0").query_async::<()>(redis).await.unwrap();
    let mut read = redis::cmd("XREADGROUP");
    read.arg("GROUP").arg(RELAY_GROUP).arg("me").arg("STREAMS").arg(&key).arg(">");
    read.query_async::<redis::Value>(redis).await.unwrap();
    redis::cmd("XDEL").arg(&key).arg("4-0").query_async::<()>(redis).await.unwrap();
    assert_eq!(pending(redis, sale(1)).await, 4);

    assert_eq!(acknowledge(redis, &[]).await, (0, 0, 0, 3));
    assert_eq!(acknowledge(redis, &[("1-0", "another")]).await, (0, 0, 1, 3), "another order under the same id");
    assert_eq!(pending(redis, sale(1)).await, 4);
    let (mine, nameless, gone) = (("1-0", "mine"), ("3-0", ""), ("4-0", "mine"));
    assert_eq!(acknowledge(redis, &[mine, nameless, gone]).await, (2, 1, 0, 1));
    assert_eq!(pending(redis, sale(1)).await, 1);
    assert_eq!(acknowledge(redis, &[mine, nameless, gone]).await, (0, 3, 0, 1), "a repeat changes nothing");
    assert_eq!(acknowledge(redis, &[("2-0", "mine")]).await, (1, 0, 0, 0));

    // The head of the stream goes in one cut, and nothing beyond it.
    let sequence = "7-18446744073709551615";
    for id in ["5-1", "5-2", "6-0", sequence] {
        redis::cmd("XADD").arg(&key).arg(id).arg("order").arg(id).query_async::<()>(redis).await.unwrap();
    }
    let mut read = redis::cmd("XREADGROUP");
    read.arg("GROUP").arg(RELAY_GROUP).arg("me").arg("STREAMS").arg(&key).arg(">");
    read.query_async::<redis::Value>(redis).await.unwrap();
    assert_eq!(acknowledge(redis, &[("5-1", "5-1"), ("5-2", "another")]).await, (1, 0, 1, 3), "not all mine");
    assert_eq!(acknowledge(redis, &[("6-0", "6-0")]).await, (1, 0, 0, 2), "not the head");
    assert_eq!(acknowledge(redis, &[("5-2", "5-2")]).await, (1, 0, 0, 1), "the head");
    assert_eq!(acknowledge(redis, &[(sequence, sequence)]).await, (1, 0, 0, 0), "an id with no next one");
    assert_eq!(pending(redis, sale(1)).await, 0);

    let many: Vec<String> = (0..2500).map(|n| format!("9-{n}")).collect();
    for id in &many {
        redis::cmd("XADD").arg(&key).arg(id).arg("order").arg("mine").query_async::<()>(redis).await.unwrap();
    }
    read.query_async::<redis::Value>(redis).await.unwrap();
    let pairs: Vec<_> = many.iter().map(|id| (id.as_str(), "mine")).collect();
    assert_eq!(acknowledge(redis, &pairs[..2400]).await, (2400, 0, 0, 100));
    assert_eq!(pending(redis, sale(1)).await, 100);
}

#[tokio::test]
async fn acknowledging_removes_my_entries_and_leaves_those_of_other_orders_alone() {
    let settings = settings(shared().await.unwrap(), "ack").await;
    every_branch_of_the_script(&mut redis(&settings).await).await;
}

#[tokio::test]
async fn acknowledging_works_on_a_node_in_cluster_mode() {
    let cluster = RedisOptions { cluster: true, ..RedisOptions::default() };
    let own = Sandbox::start(Options::none().redis(cluster)).await.unwrap();
    let client = redis::Client::open(own.redis().url()).unwrap();
    every_branch_of_the_script(&mut client.get_multiplexed_async_connection().await.unwrap()).await;
}
