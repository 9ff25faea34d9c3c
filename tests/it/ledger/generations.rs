//! A new generation of a sale's Redis state: which orders go with it, and which are too late.

use std::collections::HashSet;

use seckill::domain::{OrderStatus, SaleId};
use seckill::ledger::Error;
use sqlx::Connection;

use super::world::{World, assert_balanced, message, messages, with_key};

#[tokio::test]
async fn a_generation_is_above_both_the_ledgers_and_the_one_seen_in_redis() {
    let world = World::new("above_both").await;
    let sale = world.sale(10).await;
    assert_eq!(world.ledger.open_generation(sale, 1, None).await.unwrap().generation, 2);
    assert_eq!(world.ledger.open_generation(sale, 7, None).await.unwrap().generation, 8);
    let version = world.view(sale).await.version;
    assert_eq!(world.ledger.open_generation(sale, 0, None).await.unwrap().generation, 9);
    assert_eq!(world.view(sale).await.version, version + 1, "and a decision made before it is made again");
    let unknown = SaleId::new(4711).unwrap();
    assert!(matches!(world.ledger.open_generation(unknown, 0, None).await, Err(Error::UnknownSale(_))));
}

/// PostgreSQL is older than Redis, and yet has the row: a repeat of it stops nobody.
#[tokio::test]
async fn a_repeat_from_a_newer_generation_is_skipped_where_its_row_exists() {
    let world = World::new("repeat_from_a_newer").await;
    let sale = world.sale(10).await;
    let batch = messages(sale, 0..2);
    assert_eq!(world.ledger.record(&batch).await.unwrap().created, 2);
    world.meddle("UPDATE stock SET generation = 0").await;
    assert_eq!(world.ledger.record(&batch).await.unwrap().skipped, 2);
    let ahead = world.ledger.record(&messages(sale, 2..3)).await;
    assert!(matches!(ahead, Err(Error::Ahead { .. })), "{ahead:?}");
}

#[tokio::test]
async fn redis_is_warmed_with_live_orders_and_with_every_answered_request() {
    let world = World::new("warmed_with").await;
    let sale = world.sale(3).await;
    let mut batch: Vec<_> = messages(sale, 0..5).into_iter().map(|message| with_key(message, "k")).collect();
    batch[0].quantity = 2;
    batch[3].generation = 0;
    world.ledger.record(&batch).await.unwrap();
    world.ledger.close(batch[1].id, OrderStatus::Cancelled).await.unwrap();

    let warm = world.ledger.open_generation(sale, 1, None).await.unwrap();
    assert_eq!((warm.total, warm.available), (3, 1));
    let claims: Vec<_> = warm.claims.iter().map(|claim| (claim.order, claim.quantity)).collect();
    assert_eq!(claims, [(batch[0].id, 2)]);
    assert_eq!(warm.claims[0].user, batch[0].user);
    // Live, closed, rejected for want of units; not the one that was superseded and may be tried again.
    let requests: HashSet<_> = warm.requests.iter().map(|request| request.order).collect();
    assert_eq!(requests, [0, 1, 2, 4].map(|place| batch[place].id).into());
    assert!(warm.requests.iter().all(|request| request.key == "k" && request.fingerprint == "0123456789abcdef"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_batch_that_is_committing_is_in_the_snapshot_of_the_new_generation() {
    let world = World::new("committing").await;
    let sale = world.sale(10).await;
    // The write stops between its update of the stock row and its insert for as long as this lock is held.
    world
        .meddle(
            "CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$;
             CREATE TRIGGER stop BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION stop();",
        )
        .await;
    let mut holder = world.outside.acquire().await.unwrap();
    let mut hold = holder.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *hold).await.unwrap();

    let batch = [message(sale, 1)];
    let steps = async {
        world.until_waiting(1).await;
        let opening = tokio::spawn({
            let ledger = world.ledger.clone();
            async move { ledger.open_generation(sale, 1, None).await }
        });
        world.until_waiting(2).await;
        hold.rollback().await.unwrap();
        opening.await.unwrap()
    };
    let (recorded, warm) = tokio::join!(world.ledger.record(&batch), steps);
    assert_eq!(recorded.unwrap().created, 1);
    let warm = warm.unwrap();
    let claimed: Vec<_> = warm.claims.iter().map(|claim| claim.order).collect();
    assert_eq!((claimed, warm.available, warm.generation), (vec![batch[0].id], 9, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_order_is_either_warmed_or_superseded_however_the_opening_falls() {
    let world = World::new("either_or").await;
    let sale = world.sale(1000).await;
    for round in 0..10 {
        let generation = round as i64 + 1;
        let mut recorders = tokio::task::JoinSet::new();
        for part in 0..4 {
            let ledger = world.ledger.clone();
            let first = round * 80 + part * 20;
            let mut batch = messages(sale, first..first + 20);
            batch.iter_mut().for_each(|message| message.generation = generation);
            recorders.spawn(async move {
                for one in batch.chunks(2) {
                    ledger.record(one).await.unwrap();
                }
            });
        }
        let warm = world.ledger.open_generation(sale, generation, None).await.unwrap();
        while let Some(ended) = recorders.join_next().await {
            ended.unwrap();
        }
        let view = world.view(sale).await;
        let claimed: HashSet<_> = warm.claims.iter().map(|claim| claim.order).collect();
        let live: HashSet<_> =
            view.orders.iter().filter(|order| order.status.is_live()).map(|order| order.id).collect();
        assert_eq!(claimed, live);
        assert_eq!(view.orders.len(), (round + 1) * 80);
    }
}

#[tokio::test]
async fn books_that_do_not_balance_are_not_spread_to_redis() {
    let world = World::new("unbalanced").await;
    let sale = world.sale(10).await;
    world.meddle("UPDATE stock SET available = available - 1").await;
    let fault = world.ledger.open_generation(sale, 1, None).await.unwrap_err();
    assert!(matches!(fault, Error::Unbalanced { redis_total: 10, available: 9, live: 0, .. }), "{fault}");
    assert_eq!(world.ledger.stock(sale).await.unwrap().unwrap().generation, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_caller_that_gives_up_halfway_leaves_no_open_transaction_behind() {
    let world = World::new("gives_up").await;
    let sale = world.sale(10).await;
    let mut holder = world.outside.acquire().await.unwrap();
    let mut hold = holder.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM stock FOR UPDATE").execute(&mut *hold).await.unwrap();
    {
        let opening = world.ledger.open_generation(sale, 1, None);
        tokio::select! {
            _ = opening => unreachable!("the row is held"),
            () = world.until_waiting(1) => {}
        }
    }
    hold.rollback().await.unwrap();
    // The opening went on without its caller; and every connection of the pool is fit for the next one.
    let calls = (0..20).map(|_| world.ledger.open_generation(sale, 1, None));
    let opened = futures_util::future::try_join_all(calls).await.unwrap();
    let generations: HashSet<_> = opened.iter().map(|warm| warm.generation).collect();
    assert_eq!(generations.len(), 20);
    assert_eq!(world.ledger.stock(sale).await.unwrap().unwrap().generation, 22);
    let view = world.ledger.view(sale).await.unwrap().unwrap();
    assert_balanced(&view);
}
