//! Batches become rows, once each.

use seckill::domain::{OrderMessage, OrderStatus, Rejection, SaleId};
use seckill::ledger::{Error, Recorded};

use super::world::{PAY_WITHIN, PRICE, World, again, count, message, messages, with_key};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_message_delivered_twice_to_two_consumers_in_other_cuts_is_one_row() {
    let world = World::new("delivered_twice").await;
    let sale = world.sale(300).await;
    let forwards = messages(sale, 0..300);
    let mut backwards = forwards.clone();
    backwards.reverse();

    let deliver = async |batch: &[OrderMessage], cut: usize| {
        let ledger = world.another_ledger().await;
        for part in batch.chunks(cut) {
            ledger.record(part).await.unwrap();
        }
    };
    tokio::join!(deliver(&forwards, 50), deliver(&backwards, 37));
    tokio::join!(deliver(&forwards, 300), deliver(&forwards, 11));

    let view = world.view(sale).await;
    assert_eq!((view.orders.len(), count(&view, OrderStatus::Created)), (300, 300));
    assert_eq!(view.available, 0);
}

/// Known failure: a duplicate that is not recognised deducts twice.
#[tokio::test]
async fn a_duplicate_does_not_deduct_twice_whatever_became_of_its_order() {
    let world = World::new("does_not_deduct_twice").await;
    let sale = world.sale(10).await;
    let batch = messages(sale, 0..3);
    assert_eq!(world.ledger.record(&batch).await.unwrap().created, 3);
    world.ledger.pay(batch[0].id, "p-1").await.unwrap();
    world.ledger.close(batch[1].id, OrderStatus::Cancelled).await.unwrap();
    world.ledger.close(batch[2].id, OrderStatus::Expired).await.unwrap();
    let before = world.view(sale).await;

    let twice = [batch.clone(), batch].concat();
    assert_eq!(world.ledger.record(&twice).await.unwrap(), Recorded { skipped: 6, ..Recorded::default() });
    let after = world.view(sale).await;
    assert_eq!((after.available, after.version, after.orders.len()), (9, before.version, 3));
}

/// The first attempt assumes that messages are new, and no index contradicts a rejection: it has to be looked up.
#[tokio::test]
async fn a_buyer_who_holds_the_last_unit_is_told_so_and_not_that_it_is_sold() {
    let world = World::new("holds_the_last").await;
    let sale = world.sale(1).await;
    let first = message(sale, 1);
    world.ledger.record(std::slice::from_ref(&first)).await.unwrap();
    let second = again(&first);
    let recorded = world.ledger.record(std::slice::from_ref(&second)).await.unwrap();
    assert_eq!(recorded, Recorded { already_purchased: 1, ..Recorded::default() });
}

#[tokio::test]
async fn every_batch_that_writes_a_row_raises_the_version_and_no_repeat_does() {
    let world = World::new("record_version").await;
    let sale = world.sale(1).await;
    let version = async || world.view(sale).await.version;
    let before = version().await;
    // One that sells, one that only rejects.
    for (place, batch) in [messages(sale, 0..1), messages(sale, 1..3)].iter().enumerate() {
        for _ in 0..2 {
            world.ledger.record(batch).await.unwrap();
            assert_eq!(version().await, before + 1 + place as i64);
        }
    }
}

#[tokio::test]
async fn the_second_order_of_a_user_is_a_row_that_says_already_purchased() {
    let world = World::new("already_purchased").await;
    let sale = world.sale(10).await;
    let first = message(sale, 1);
    let second = again(&first);
    world.ledger.record(std::slice::from_ref(&first)).await.unwrap();
    assert_eq!(world.ledger.record(std::slice::from_ref(&second)).await.unwrap().already_purchased, 1);

    let row = world.ledger.order(second.id).await.unwrap().unwrap();
    assert_eq!((row.status, row.reason), (OrderStatus::Rejected, Some(Rejection::AlreadyPurchased)));
    assert_eq!(world.view(sale).await.available, 9);
    // The late rejection does not hide what the buyer holds.
    assert_eq!(world.ledger.latest_order(sale, &first.user).await.unwrap().unwrap().id, first.id);
}

#[tokio::test]
async fn an_order_that_does_not_fit_is_sold_out_and_a_smaller_one_behind_it_is_not() {
    let world = World::new("does_not_fit").await;
    let sale = world.sale(4).await;
    let quantities = [3, 2, 1];
    let batch: Vec<_> =
        quantities.iter().enumerate().map(|(n, q)| OrderMessage { quantity: *q, ..message(sale, n) }).collect();
    let recorded = world.ledger.record(&batch).await.unwrap();
    assert_eq!((recorded.created, recorded.sold_out), (2, 1));
    assert_eq!(world.status(batch[1].id).await, OrderStatus::Rejected);
    assert_eq!(world.view(sale).await.available, 0);
}

#[tokio::test]
async fn the_price_is_the_sales_and_the_time_to_pay_counts_from_the_insertion() {
    let world = World::new("price_and_time").await;
    let sale = world.sale(4).await;
    let bought = OrderMessage { quantity: 3, accepted_ms: 0, ..message(sale, 1) };
    world.ledger.record(std::slice::from_ref(&bought)).await.unwrap();
    let order = world.ledger.order(bought.id).await.unwrap().unwrap();
    assert_eq!(order.amount_cents, 3 * PRICE);
    assert_eq!(order.pay_before - order.created_at, PAY_WITHIN);
    let now: time::OffsetDateTime =
        sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&world.outside).await.unwrap();
    assert!(order.created_at <= now && now - order.created_at < PAY_WITHIN, "born before it was inserted");
}

#[tokio::test]
async fn an_order_of_an_older_generation_is_superseded() {
    let world = World::new("superseded").await;
    let sale = world.sale(4).await;
    world.ledger.open_generation(sale, 1, None).await.unwrap();
    let old = message(sale, 1);
    let new = OrderMessage { generation: 2, ..again(&old) };
    let recorded = world.ledger.record(&[old.clone(), new.clone()]).await.unwrap();
    assert_eq!((recorded.superseded, recorded.created), (1, 1));
    let row = world.ledger.order(old.id).await.unwrap().unwrap();
    assert_eq!((row.status, row.reason), (OrderStatus::Rejected, Some(Rejection::Superseded)));
    assert_eq!(world.view(sale).await.available, 3);
}

#[tokio::test]
async fn an_order_of_a_newer_generation_is_never_rejected_and_nothing_of_its_sale_is_written() {
    let world = World::new("ahead").await;
    let (ahead, behind) = (world.sale(4).await, world.sale(4).await);
    let batch = [message(ahead, 1), OrderMessage { generation: 2, ..message(ahead, 2) }, message(behind, 3)];
    let fault = world.ledger.record(&batch).await.unwrap_err();
    assert!(
        matches!(fault, Error::Ahead { sale, message_generation: 2, ledger_generation: 1 } if sale == ahead),
        "{fault}"
    );
    assert_eq!(world.view(ahead).await.orders.len(), 0);
    assert_eq!(world.view(behind).await.orders.len(), 1, "another sale of the batch need not wait");

    // Once the ledger has caught up, the same batch goes through.
    world.ledger.open_generation(ahead, 1, None).await.unwrap();
    let recorded = world.ledger.record(&batch).await.unwrap();
    assert_eq!((recorded.superseded, recorded.created, recorded.skipped), (1, 1, 1));
}

#[tokio::test]
async fn an_unknown_sale_and_an_impossible_quantity_are_named_and_do_not_stop_the_others() {
    let world = World::new("unknown_sale").await;
    let sale = world.sale(4).await;
    let unknown = SaleId::new(4711).unwrap();
    let fault = world.ledger.record(&[message(unknown, 1), message(sale, 1)]).await.unwrap_err();
    assert!(matches!(fault, Error::UnknownSale(named) if named == unknown), "{fault}");
    assert_eq!(world.view(sale).await.orders.len(), 1);

    for quantity in [0, u32::MAX] {
        let impossible = OrderMessage { quantity, ..message(sale, 2) };
        let fault = world.ledger.record(std::slice::from_ref(&impossible)).await.unwrap_err();
        assert!(matches!(fault, Error::Unrecordable(id) if id == impossible.id), "{fault}");
    }
}

/// The codecs before the ledger should have kept these away. One that slips through must not hold up all that follow.
#[tokio::test]
async fn a_message_that_postgres_cannot_store_is_named_and_the_others_are_recorded() {
    let world = World::new("cannot_store").await;
    let sale = world.sale(10).await;
    // Too long for an index, and too random to be compressed into one.
    let long: String = (0..600).map(|_| uuid::Uuid::new_v4().to_string()).collect();
    for (first, bad) in [(0, "nul\0"), (3, long.as_str())] {
        let mut batch = messages(sale, first..first + 3);
        batch[1] = with_key(batch[1].clone(), bad);
        let fault = world.ledger.record(&batch).await.unwrap_err();
        assert!(matches!(fault, Error::Unrecordable(id) if id == batch[1].id), "{fault}");
        batch.remove(1);
        assert_eq!(world.ledger.record(&batch).await.unwrap(), Recorded { skipped: 2, ..Recorded::default() });
    }
    assert_eq!(world.view(sale).await.available, 6);
}

#[tokio::test]
async fn a_request_key_that_stands_for_another_order_cannot_block_the_batch() {
    let world = World::new("request_key").await;
    let sale = world.sale(4).await;
    let first = with_key(message(sale, 1), "k");
    let second = with_key(again(&first), "k");
    world.ledger.record(std::slice::from_ref(&first)).await.unwrap();
    world.ledger.close(first.id, OrderStatus::Cancelled).await.unwrap();

    let recorded = world.ledger.record(&[second.clone(), with_key(message(sale, 2), "k")]).await.unwrap();
    assert_eq!((recorded.already_purchased, recorded.created), (1, 1), "keys belong to users");
    assert_eq!(world.ledger.order(second.id).await.unwrap().unwrap().request_key, None);
    assert_eq!(world.ledger.order(first.id).await.unwrap().unwrap().request_key.as_deref(), Some("k"));
    assert_eq!(world.view(sale).await.available, 3);
}

#[tokio::test]
async fn look_ups_use_the_indexes_of_a_table_that_nobody_has_analysed() {
    let world = World::new("fresh_table").await;
    let sale = world.sale(4000).await;
    world.meddle("ALTER TABLE orders SET (autovacuum_enabled = false)").await;
    world.until_left(&world.ledger).await;
    world.meddle("SELECT pg_stat_reset()").await;
    let ledger = world.another_ledger().await;
    let batch: Vec<_> = messages(sale, 0..4000).into_iter().map(|message| with_key(message, "k")).collect();
    for part in batch.chunks(500) {
        ledger.record(part).await.unwrap();
        ledger.record(part).await.unwrap();
    }
    ledger.latest_order(sale, &batch[0].user).await.unwrap().unwrap();
    ledger.close(batch[0].id, OrderStatus::Cancelled).await.unwrap();
    world.until_left(&ledger).await;
    let scans: (i64, i64) =
        sqlx::query_as("SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = 'orders'")
            .fetch_one(&world.outside)
            .await
            .unwrap();
    assert_eq!(scans.0, 0, "whole-table scans");
    assert!(scans.1 >= 3 * 4000, "what came again is looked up: {}", scans.1);
}

#[tokio::test]
async fn a_table_that_was_analysed_while_empty_is_not_scanned_for_each_message_once_it_is_full() {
    let world = World::new("analysed_empty").await;
    let sale = world.sale(3000).await;
    world.meddle("ALTER TABLE orders SET (autovacuum_enabled = false)").await;
    world.meddle("VACUUM ANALYZE orders").await;
    let batch = messages(sale, 0..3000);
    // Enough small ones for PostgreSQL to think of keeping a plan.
    for part in batch[..20].chunks(1).chain(batch[20..].chunks(500)) {
        world.ledger.record(part).await.unwrap();
        // Only a repeated message is looked up.
        assert_eq!(world.ledger.record(part).await.unwrap().skipped, part.len() as u64);
    }
    world.until_left(&world.ledger).await;
    let scanned = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'orders'";
    let scanned: i64 = sqlx::query_scalar(scanned).fetch_one(&world.outside).await.unwrap();
    assert!(scanned < 50_000, "{scanned} rows were looked at one by one");
}
