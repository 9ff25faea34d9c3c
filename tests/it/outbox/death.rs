//! Relays that die, are cut off, or take over from one another.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use redis::Script;
use redis::aio::MultiplexedConnection;
use seckill::domain::SaleId;
use seckill::stock::keys::{self, RELAY_GROUP};
use tokio_util::sync::CancellationToken;

use super::{cut_off, drain, ids, make_group, read_as, relay, until_read, without_scripts, worker};
use crate::support::flow::{SOON, append, copies, length, orders, pending, redis, sale, settings};
use crate::support::wait_until;

/// Known failure: the process dies between the send and the deletion.
#[tokio::test]
async fn a_relay_killed_after_publishing_and_before_deleting_makes_the_message_come_twice() {
    let settings = settings("relay_killed").await;
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
    let settings = settings("relay_error").await;
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
    let settings = settings("relay_claims").await;
    let mut redis = redis(&settings).await;
    let all = orders(sale(1), 0..50);
    append(&mut redis, &all).await;
    let dying = worker(&cut_off(&settings), sale(1), "dying");
    let task = tokio::spawn(async move { dying.run(&CancellationToken::new()).await });
    until_read(&redis, sale(1), 50).await;
    task.abort();
    let _ = task.await;

    append(&mut redis, &orders(sale(1), 50..60)).await;
    drain(&mut worker(&settings, sale(1), "living"), &mut redis, sale(1)).await;
    assert_eq!(copies(&settings).await.len(), 60);
    assert_eq!(pending(&mut redis, sale(1)).await, 0);
}

#[tokio::test]
async fn a_relay_that_waits_for_kafka_keeps_its_entries_from_others() {
    let settings = settings("relay_keeps").await;
    let mut redis = redis(&settings).await;
    append(&mut redis, &orders(sale(1), 0..5)).await;
    let mut cut_off = cut_off(&settings);
    cut_off.kafka.delivery_timeout_ms = 60_000;
    let waiting = worker(&cut_off, sale(1), "waiting");
    let task = tokio::spawn(async move { waiting.run(&CancellationToken::new()).await });
    until_read(&redis, sale(1), 5).await;
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
    let settings = settings("relay_orphans").await;
    let mut redis = redis(&settings).await;
    append(&mut redis, &orders(sale(1), 0..3)).await;
    let key = keys::outbox(sale(1));
    make_group(&mut redis, sale(1)).await;
    read_as("dead", &mut redis, sale(1)).await;
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
    let settings = settings("relay_gone").await;
    let mut redis = redis(&settings).await;
    append(&mut redis, &orders(sale(1), 0..3)).await;
    let key = keys::outbox(sale(1));
    make_group(&mut redis, sale(1)).await;
    read_as("me", &mut redis, sale(1)).await;
    redis::cmd("XTRIM").arg(&key).arg("MAXLEN").arg(1).query_async::<()>(&mut redis).await.unwrap();
    assert_eq!(pending(&mut redis, sale(1)).await, 3);
    drain(&mut worker(&settings, sale(1), "me"), &mut redis, sale(1)).await;
    assert_eq!((pending(&mut redis, sale(1)).await, copies(&settings).await.len()), (0, 1));
}

/// How many names the group of the relays holds.
async fn names(redis: &mut MultiplexedConnection, sale: SaleId) -> usize {
    let mut command = redis::cmd("XINFO");
    command.arg("CONSUMERS").arg(keys::outbox(sale)).arg(RELAY_GROUP);
    command.query_async::<Vec<redis::Value>>(redis).await.unwrap().len()
}

#[tokio::test]
async fn a_relay_that_stops_takes_its_name_with_it_unless_it_leaves_entries() {
    let settings = settings("relay_names").await;
    let mut redis = redis(&settings).await;
    append(&mut redis, &orders(sale(1), 0..5)).await;
    for _ in 0..2 {
        let stop = CancellationToken::new();
        let running = tokio::spawn(relay(&settings, &[sale(1)]).run(stop.clone()));
        wait_until("the relay has joined the group, and the outbox is empty", SOON, async || {
            let mut redis = redis.clone();
            length(&mut redis, sale(1)).await == 0 && names(&mut redis, sale(1)).await == 1
        })
        .await;
        stop.cancel();
        assert_eq!(running.await.unwrap(), 0);
        assert_eq!(names(&mut redis, sale(1)).await, 0);
    }

    append(&mut redis, &orders(sale(1), 5..10)).await;
    let mut cut_off = cut_off(&settings);
    cut_off.kafka.delivery_timeout_ms = 1000;
    let stop = CancellationToken::new();
    let running = tokio::spawn(relay(&cut_off, &[sale(1)]).run(stop.clone()));
    until_read(&redis, sale(1), 5).await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), 5);
    assert_eq!(
        (names(&mut redis, sale(1)).await, pending(&mut redis, sale(1)).await),
        (1, 5),
        "they are its own still"
    );

    let leave = Script::new(include_str!("../../../lua/leave.lua"));
    let mut call = leave.prepare_invoke();
    let gone: u64 = call.key(keys::outbox(sale(2))).arg(RELAY_GROUP).arg("me").invoke_async(&mut redis).await.unwrap();
    assert_eq!(gone, 0, "no stream, no group: nothing is made");
    assert_eq!(length(&mut redis, sale(2)).await, 0);
}
