//! What is accepted reaches Kafka, and nothing else does.

use std::collections::BTreeSet;
use std::sync::Arc;

use prometheus::Registry;
use seckill::outbox::Relay;
use seckill::stock::keys;
use tokio_util::sync::CancellationToken;

use super::{drain, ids, until_empty, worker};
use crate::support::flow::{append, copies, order, orders, pending, redis, sale, settings, stored};

#[tokio::test]
async fn what_was_accepted_before_the_first_relay_ran_is_published_and_removed() {
    let settings = settings("relay_first").await;
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

/// Known failure: the partition key is the sale, so one partition has all the work.
#[tokio::test]
async fn orders_of_one_sale_spread_over_all_partitions() {
    let settings = settings("relay_partitions").await;
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
async fn an_entry_that_is_no_order_goes_to_the_dead_letters_and_blocks_nothing() {
    let settings = settings("relay_malformed").await;
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
    let settings = settings("relay_no_stream").await;
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
async fn a_relay_finds_sales_that_open_later_and_leaves_those_that_are_over() {
    let settings = settings("relay_sales").await;
    let mut redis = redis(&settings).await;
    let sales = Arc::new(std::sync::Mutex::new(vec![sale(1)]));
    let listed = Arc::clone(&sales);
    let relay = Relay::new(&settings, Arc::new(move || listed.lock().unwrap().clone()), &Registry::new()).unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(relay.run(stop.clone()));
    append(&mut redis, &orders(sale(2), 0..10)).await;
    *sales.lock().unwrap() = vec![sale(2)];
    until_empty(&redis, sale(2)).await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), 0);
}
