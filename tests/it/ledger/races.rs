//! Recorders, cancellers and strangers at the same row at the same time.

use std::sync::Arc;
use std::time::Duration;

use seckill::domain::{OrderMessage, OrderStatus, Rejection};
use seckill::ledger::{Error, Recorded};
use sqlx::{Connection, Postgres, Transaction};

use super::world::{World, again, assert_balanced, count, message, messages, with_key};

/// Known failure: stock is read, changed and written back, and one of two changes is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_recorders_on_one_hot_sale_never_read_modify_write_the_stock_wrongly() {
    let world = World::new("eight_recorders").await;
    let sale = world.sale(500).await;
    let mut recorders = tokio::task::JoinSet::new();
    for first in (0..2000).step_by(250) {
        let ledger = world.another_ledger().await;
        recorders.spawn(async move {
            let mut outcome = (0, 0, 0);
            for batch in messages(sale, first..first + 250).chunks(25) {
                let recorded = ledger.record(batch).await.unwrap();
                outcome.0 += recorded.created;
                outcome.1 += recorded.sold_out;
                outcome.2 += recorded.skipped + recorded.already_purchased + recorded.superseded;
            }
            outcome
        });
    }
    let outcomes = recorders.join_all().await;
    let sum = outcomes.iter().fold((0, 0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2));
    assert_eq!(sum, (500, 1500, 0));
    let view = world.view(sale).await;
    assert_eq!((view.available, count(&view, OrderStatus::Created)), (0, 500));
    assert_eq!(view.orders.len(), 2000);
}

/// Known failure: check-then-insert, and two consumers pass the check.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_consumers_pass_the_check_and_one_inserts() {
    let world = World::new("two_pass_the_check").await;
    let sale = world.sale(10).await;
    let order = message(sale, 1);

    // Both have read and found no row when they reach the stock row, which is held.
    let mut holder = world.outside.acquire().await.unwrap();
    let mut hold = holder.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM stock FOR UPDATE").execute(&mut *hold).await.unwrap();
    let consume = async || {
        let ledger = world.another_ledger().await;
        ledger.record(std::slice::from_ref(&order)).await.unwrap()
    };
    let release = async {
        world.until_waiting(2).await;
        hold.rollback().await.unwrap();
    };
    let (one, other, ()) = tokio::join!(consume(), consume(), release);

    assert_eq!((one.created + other.created, one.skipped + other.skipped), (1, 1));
    let view = world.view(sale).await;
    assert_eq!((view.orders.len(), view.available), (1, 9));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_decision_that_a_commit_has_overtaken_is_made_again() {
    let world = World::new("overtaken").await;
    let sale = world.sale(1).await;
    world.ledger.record(&messages(sale, 0..1)).await.unwrap();
    let mut adding = world.outside.begin().await.unwrap();
    sqlx::query("UPDATE stock SET total = 2, available = 1, redis_total = 2, version = version + 1")
        .execute(&mut *adding)
        .await
        .unwrap();
    // By what the recorder can see, everything is sold. When it comes to write that down, it is true no more.
    let batch = messages(sale, 1..2);
    assert_eq!(record_while(&world, adding, &batch).await, Recorded { created: 1, ..Recorded::default() });
    world.view(sale).await;
}

/// Records the batch. As soon as the recorder waits for the other transaction, that one commits.
async fn record_while(world: &World, other: Transaction<'static, Postgres>, batch: &[OrderMessage]) -> Recorded {
    let commit = async {
        world.until_waiting(1).await;
        other.commit().await.unwrap();
    };
    let (recorded, ()) = tokio::join!(world.ledger.record(batch), commit);
    recorded.unwrap()
}

/// Raises `code` in place of the first `times` inserts. A sequence forgets nothing when a transaction fails.
async fn inject(world: &World, code: &str, times: i64) {
    let sql = format!(
        "CREATE SEQUENCE injected;
         CREATE FUNCTION inject() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF nextval('injected') <= {times} THEN RAISE EXCEPTION 'injected' USING ERRCODE = '{code}'; END IF;
             RETURN NULL;
         END $$;
         CREATE TRIGGER inject BEFORE INSERT ON orders FOR EACH STATEMENT EXECUTE FUNCTION inject();"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&world.outside).await.unwrap();
}

pub fn figure(world: &World, name: &str) -> f64 {
    let registry = prometheus::Registry::new();
    world.ledger.metrics().register(&registry).unwrap();
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == name).unwrap();
    family.get_metric()[0].get_counter().get_value()
}

/// Known failure: a deadlock between inserts is not retried, and an order fails by SQLSTATE.
#[tokio::test]
async fn a_deadlock_or_a_serialization_failure_is_retried_and_no_order_fails_by_sqlstate() {
    for code in ["40P01", "40001", "23505"] {
        let world = World::new(&format!("retried_{code}")).await;
        let sale = world.sale(10).await;
        inject(&world, code, 2).await;
        assert_eq!(world.ledger.record(&messages(sale, 0..5)).await.unwrap().created, 5, "{code}");
        assert_eq!(world.view(sale).await.available, 5);
        assert_eq!(figure(&world, "seckill_ledger_lost_races_total"), 2.0);
        assert_eq!(figure(&world, "seckill_ledger_row_locks_total"), 0.0);
    }
}

#[tokio::test]
async fn after_three_lost_races_the_batch_is_written_under_the_row_lock() {
    let world = World::new("three_lost_races").await;
    let sale = world.sale(10).await;
    inject(&world, "40001", 3).await;
    assert_eq!(world.ledger.record(&messages(sale, 0..5)).await.unwrap().created, 5);
    assert_eq!(world.view(sale).await.available, 5);
    assert_eq!(figure(&world, "seckill_ledger_row_locks_total"), 1.0);
}

#[tokio::test]
async fn a_batch_that_is_cut_off_each_time_is_refused_whole_and_may_be_repeated() {
    let world = World::new("cut_off").await;
    let sale = world.sale(10).await;
    inject(&world, "40P01", 6).await;
    let batch = messages(sale, 0..5);
    assert!(matches!(world.ledger.record(&batch).await, Err(Error::Contended(named)) if named == sale));
    assert_eq!(world.view(sale).await.orders.len(), 0);
    assert_eq!(world.ledger.record(&batch).await.unwrap().created, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_live_order_that_a_stranger_inserts_meanwhile_is_a_lost_race_not_a_fault() {
    let world = World::new("stranger").await;
    let sale = world.sale(10).await;
    let (first, second) = (message(sale, 1), again(&message(sale, 1)));
    let mut strange = world.outside.begin().await.unwrap();
    // Past the version: only the unique index is left to notice.
    sqlx::query(
        "WITH taken AS (UPDATE stock SET available = available - 1 RETURNING sale_id)
         INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, status, pool, generation, pay_before)
         SELECT $1, sale_id, $2, 1, 0, 'created', 'redis', 1, clock_timestamp() FROM taken",
    )
    .bind(first.id.uuid())
    .bind(first.user.as_str())
    .execute(&mut *strange)
    .await
    .unwrap();
    assert_eq!(
        record_while(&world, strange, std::slice::from_ref(&second)).await,
        Recorded { already_purchased: 1, ..Recorded::default() }
    );
    let row = world.ledger.order(second.id).await.unwrap().unwrap();
    assert_eq!(row.reason, Some(Rejection::AlreadyPurchased));
    world.view(sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn units_that_a_stranger_takes_past_the_version_are_a_lost_race_not_a_fault() {
    let world = World::new("past_the_version").await;
    let sale = world.sale(1).await;
    let mut strange = world.outside.begin().await.unwrap();
    // By hand, and without a word to the version: only the guard on the units is left to notice.
    sqlx::query("UPDATE stock SET available = 0, total = 1, redis_total = 1").execute(&mut *strange).await.unwrap();
    let batch = messages(sale, 0..1);
    assert_eq!(record_while(&world, strange, &batch).await, Recorded { sold_out: 1, ..Recorded::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_generation_that_is_raised_past_the_version_is_a_lost_race_not_a_live_order() {
    let world = World::new("generation_past_the_version").await;
    let sale = world.sale(1).await;
    let mut strange = world.outside.begin().await.unwrap();
    sqlx::query("UPDATE stock SET generation = 2").execute(&mut *strange).await.unwrap();
    let batch = messages(sale, 0..1);
    assert_eq!(record_while(&world, strange, &batch).await, Recorded { superseded: 1, ..Recorded::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_id_or_a_request_key_that_a_stranger_takes_meanwhile_is_a_lost_race_not_a_second_row() {
    let world = World::new("row_past_the_version").await;
    let sale = world.sale(2).await;
    let same_id = message(sale, 1);
    let same_key = with_key(message(sale, 2), "k");
    let skipped = Recorded { skipped: 1, ..Recorded::default() };
    let rejected = Recorded { already_purchased: 1, ..Recorded::default() };
    let other_id = again(&same_key).id;
    for (message, id, key, expected) in
        [(same_id.clone(), same_id.id, None, skipped), (same_key.clone(), other_id, Some("k"), rejected)]
    {
        let mut strange = world.outside.begin().await.unwrap();
        // Past the version, and closed already, so that the index of live orders has nothing to say.
        sqlx::query(
            "WITH held AS (UPDATE stock SET available = available RETURNING sale_id)
             INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, status, pool, generation, pay_before,
                                 request_key, fingerprint)
             SELECT $1, sale_id, $2, 1, 0, 'cancelled', 'redis', 1, clock_timestamp(), $3, $3 FROM held",
        )
        .bind(id.uuid())
        .bind(message.user.as_str())
        .bind(key)
        .execute(&mut *strange)
        .await
        .unwrap();
        assert_eq!(record_while(&world, strange, std::slice::from_ref(&message)).await, expected);
    }
    assert_eq!(world.ledger.order(same_key.id).await.unwrap().unwrap().request_key, None);
    let view = world.view(sale).await;
    assert_eq!((view.orders.len(), view.available), (3, 2));
}

/// Known failure: a hot row starves the pool, and unrelated items fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hot_row_does_not_starve_unrelated_sales() {
    let world = World::new("hot_row").await;
    let (hot, calm) = (world.sale(10).await, world.sale(10).await);
    let mut holder = world.outside.acquire().await.unwrap();
    let mut hold = holder.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM stock WHERE sale_id = $1 FOR UPDATE").bind(hot.get()).execute(&mut *hold).await.unwrap();

    let waiting = Arc::new(world.ledger.clone());
    let ledger = Arc::clone(&waiting);
    let batch = messages(hot, 0..5);
    let blocked = tokio::spawn(async move { ledger.record(&batch).await });
    world.until_waiting(1).await;
    assert_eq!(world.ledger.record(&messages(calm, 0..5)).await.unwrap().created, 5);
    assert!(!blocked.is_finished());

    hold.rollback().await.unwrap();
    assert_eq!(blocked.await.unwrap().unwrap().created, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_recorders_with_a_canceller_beside_them_balance_at_every_moment() {
    let world = World::new("canceller").await;
    let sale = world.sale(200).await;
    let mut recorders = tokio::task::JoinSet::new();
    for first in (0..800).step_by(200) {
        let ledger = world.another_ledger().await;
        recorders.spawn(async move {
            for batch in messages(sale, first..first + 200).chunks(10) {
                ledger.record(batch).await.unwrap();
            }
        });
    }
    let mut cancelled = 0;
    while !recorders.is_empty() {
        let view = world.view(sale).await;
        for order in view.orders.iter().filter(|order| order.status == OrderStatus::Created).take(3) {
            world.ledger.close(order.id, OrderStatus::Cancelled).await.unwrap();
            cancelled += 1;
        }
        while let Some(ended) = recorders.try_join_next() {
            ended.unwrap();
        }
    }
    let view = world.view(sale).await;
    assert_eq!(view.orders.len(), 800);
    assert_eq!(count(&view, OrderStatus::Cancelled), cancelled);
    // A freed unit may come after the last order that wanted one, but none is lost.
    assert_eq!(view.available + count(&view, OrderStatus::Created) as i64, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_close_racing_the_record_of_the_next_order_leaves_one_live_order_at_most() {
    let world = World::new("close_racing_record").await;
    let sale = world.sale(1).await;
    let mut bought = 0;
    for round in 0..40 {
        let first = message(sale, round);
        let second = again(&first);
        world.ledger.record(std::slice::from_ref(&first)).await.unwrap();
        let (closed, recorded) = tokio::join!(
            world.ledger.close(first.id, OrderStatus::Cancelled),
            world.ledger.record(std::slice::from_ref(&second)),
        );
        closed.unwrap();
        let recorded = recorded.unwrap();
        assert_eq!(recorded.created + recorded.already_purchased, 1, "{recorded:?}");
        bought += recorded.created;
        world.ledger.close(second.id, OrderStatus::Cancelled).await.unwrap();
        let view = world.ledger.view(sale).await.unwrap().unwrap();
        assert_balanced(&view);
        assert_eq!(view.available, 1);
    }
    assert!(bought <= 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_row_that_stays_locked_is_given_up_by_the_server_and_the_batch_may_be_repeated() {
    let world = World::new("stays_locked").await;
    let sale = world.sale(10).await;
    let impatient = world.another_ledger_with_limit(200).await;
    let mut holder = world.outside.acquire().await.unwrap();
    let mut hold = holder.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM stock FOR UPDATE").execute(&mut *hold).await.unwrap();

    let batch = messages(sale, 0..5);
    let fault = impatient.record(&batch).await.unwrap_err();
    let Error::Unavailable(refusal) = &fault else { panic!("{fault}") };
    // lock_not_available: the wait for the lock ended, before the statement's own limit did.
    assert_eq!(refusal.as_database_error().unwrap().code().unwrap(), "55P03");
    assert!(fault.concerns_one_sale());

    hold.rollback().await.unwrap();
    assert_eq!(impatient.record(&batch).await.unwrap().created, 5);
    world.view(sale).await;
}

/// A connection that a firewall forgot never ends: the batch on it would wait for ever, and the pool with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_connection_that_fell_silent_under_a_batch_is_given_up_and_the_batch_is_written() {
    let world = World::new("silent").await;
    let sale = world.sale(10).await;
    let (ledger, proxy) = world.another_ledger_with_limit_behind_proxy(4000).await;
    let mut holder = world.outside.acquire().await.unwrap();
    let mut hold = holder.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM stock FOR UPDATE").execute(&mut *hold).await.unwrap();
    let batch = messages(sale, 0..3);
    // Before the wait for the row ends by itself, after two seconds.
    let black_hole = async {
        world.until_waiting(1).await;
        proxy.black_hole();
        hold.rollback().await.unwrap();
    };
    // It gives up after twelve seconds; the bound is for broken code.
    let record = tokio::time::timeout(Duration::from_secs(60), ledger.record(&batch));
    let (lost, ()) = tokio::join!(record, black_hole);
    let lost = lost.expect("a silent server is given up");
    assert!(matches!(lost, Err(Error::Unavailable(_))), "{lost:?}");
    let again = async {
        // The place in the pool is free again within a second or two.
        while ledger.record(&batch).await.is_err() {}
    };
    tokio::time::timeout(Duration::from_secs(20), again).await.unwrap();
    assert_eq!(world.view(sale).await.orders.len(), 3);
    assert!(ledger.order(batch[0].id).await.unwrap().is_some());
}
