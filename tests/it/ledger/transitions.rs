//! Orders move once, and their units go home once.

use seckill::domain::{OrderId, OrderStatus};
use seckill::ledger::{Error, Moved};
use sqlx::Connection;

use super::world::{World, again, message, user};

/// Known failure: restock is not idempotent.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_parallel_cancels_restock_once_because_restock_is_idempotent() {
    let world = World::new("cancel_ten_times").await;
    let sale = world.sale(10).await;
    let order = message(sale, 1);
    world.ledger.record(std::slice::from_ref(&order)).await.unwrap();

    let cancels = (0..10).map(|_| world.ledger.close(order.id, OrderStatus::Cancelled));
    let moved = futures_util::future::try_join_all(cancels).await.unwrap();
    assert_eq!(moved.iter().filter(|moved| matches!(moved, Moved::Now(_))).count(), 1);
    assert_eq!(moved.iter().filter(|moved| matches!(moved, Moved::Already(_))).count(), 9);
    assert!(moved.iter().all(|moved| moved.order().unwrap().status == OrderStatus::Cancelled));
    assert_eq!(world.view(sale).await.available, 10);
}

/// Known failure: restock addressed by user: cancel, buy again, and a late job frees the new purchase (ABA).
#[tokio::test]
async fn a_late_cancel_of_the_old_order_leaves_the_rebuy_alone() {
    let world = World::new("late_cancel").await;
    let sale = world.sale(10).await;
    let first = message(sale, 1);
    let second = again(&first);
    world.ledger.record(std::slice::from_ref(&first)).await.unwrap();
    world.ledger.close(first.id, OrderStatus::Cancelled).await.unwrap();
    assert_eq!(world.ledger.record(std::slice::from_ref(&second)).await.unwrap().created, 1);

    assert!(matches!(world.ledger.close(first.id, OrderStatus::Cancelled).await.unwrap(), Moved::Already(_)));
    assert_eq!(world.status(second.id).await, OrderStatus::Created);
    assert_eq!(world.view(sale).await.available, 9);
    assert_eq!(world.ledger.latest_order(sale, &user(1)).await.unwrap().unwrap().id, second.id);
}

/// Known failure: a pay callback meets the timeout's close, and the order is paid but cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pay_and_close_at_once_end_in_one_of_the_two() {
    let world = World::new("pay_meets_close").await;
    let sale = world.sale(100).await;
    for round in 0..100 {
        let order = message(sale, round);
        world.ledger.record(std::slice::from_ref(&order)).await.unwrap();
        let (paid, expired) =
            tokio::join!(world.ledger.pay(order.id, "p-1"), world.ledger.close(order.id, OrderStatus::Expired));
        let status = world.status(order.id).await;
        match (paid.unwrap(), expired.unwrap()) {
            (Moved::Now(_), Moved::Illegal(_)) => assert_eq!(status, OrderStatus::Paid),
            (Moved::Illegal(_), Moved::Now(_)) => assert_eq!(status, OrderStatus::Expired),
            both => panic!("{both:?}"),
        }
    }
    world.view(sale).await;
}

#[tokio::test]
async fn every_move_raises_the_version_and_no_repeat_does() {
    let world = World::new("version").await;
    let sale = world.sale(10).await;
    let (kept, dropped) = (message(sale, 1), message(sale, 2));
    world.ledger.record(&[kept.clone(), dropped.clone()]).await.unwrap();
    let version = async || world.view(sale).await.version;
    let before = version().await;
    for _ in 0..2 {
        world.ledger.pay(kept.id, "p-1").await.unwrap();
        world.ledger.close(dropped.id, OrderStatus::Expired).await.unwrap();
        assert_eq!(version().await, before + 2);
    }
    assert!(matches!(world.ledger.close(kept.id, OrderStatus::Cancelled).await.unwrap(), Moved::Illegal(_)));
    assert!(matches!(world.ledger.pay(dropped.id, "p-1").await.unwrap(), Moved::Illegal(_)));
    assert_eq!(version().await, before + 2);
}

#[tokio::test]
async fn an_order_without_a_row_cannot_move_and_is_not_invented() {
    let world = World::new("no_row").await;
    let sale = world.sale(10).await;
    let queued = OrderId::mint(sale, 0, 1);
    assert_eq!(world.ledger.close(queued, OrderStatus::Cancelled).await.unwrap(), Moved::Unknown);
    assert_eq!(world.ledger.pay(queued, "p-1").await.unwrap(), Moved::Unknown);
    assert!(matches!(world.ledger.close(queued, OrderStatus::Paid).await, Err(Error::NotAClosing(_))));
    assert_eq!(world.ledger.order(queued).await.unwrap(), None);
    assert_eq!(world.ledger.latest_order(sale, &user(1)).await.unwrap(), None);
}

#[tokio::test]
async fn a_unit_goes_home_to_the_pool_it_was_sold_from_in_any_later_generation() {
    let world = World::new("pool_for_life").await;
    let sale = world.sale(10).await;
    let (redis, reserve) = (message(sale, 1), message(sale, 2));
    world.ledger.record(std::slice::from_ref(&redis)).await.unwrap();
    // What the fallback leaves: one of ten units was kept in reserve, and is sold.
    world.meddle("UPDATE stock SET available = available - 1, redis_total = redis_total - 1").await;
    sqlx::query(
        "INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, status, pool, generation, pay_before)
         VALUES ($1, $2, $3, 1, 0, 'created', 'reserve', 1, clock_timestamp())",
    )
    .bind(reserve.id.uuid())
    .bind(sale.get())
    .bind(reserve.user.as_str())
    .execute(&world.outside)
    .await
    .unwrap();
    let warm = world.ledger.open_generation(sale, 1, None).await.unwrap();
    let claimed: Vec<_> = warm.claims.iter().map(|claim| claim.order).collect();
    assert_eq!(claimed, [redis.id], "Redis never had the units of the reserve");

    world.ledger.close(redis.id, OrderStatus::Cancelled).await.unwrap();
    world.ledger.close(reserve.id, OrderStatus::Cancelled).await.unwrap();
    let view = world.view(sale).await;
    assert_eq!((view.available, view.reserve, view.redis_total, view.total), (9, 1, 9, 10));
    // A message for an order that the reserve has sold already finds its row, whatever the pool.
    assert_eq!(world.ledger.record(std::slice::from_ref(&reserve)).await.unwrap().skipped, 1);
}

/// An expiry takes the stock row and then its orders. A payment that began with the order would wait for the stock row
/// while the expiry waits for the order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_payment_and_an_expiry_of_one_order_wait_in_line_and_do_not_lock_each_other_out() {
    let world = World::new("in_line").await;
    let sale = world.sale(10).await;
    let order = message(sale, 1);
    world.ledger.record(std::slice::from_ref(&order)).await.unwrap();
    let mut session = world.outside.acquire().await.unwrap();
    let mut expiry = session.begin().await.unwrap();
    let stock = "SELECT 1 FROM stock WHERE sale_id = $1 FOR UPDATE";
    sqlx::query(stock).bind(sale.get()).execute(&mut *expiry).await.unwrap();

    let paying = tokio::spawn({
        let ledger = world.ledger.clone();
        async move { ledger.pay(order.id, "p-1").await }
    });
    world.until_waiting(1).await;
    let expire = "UPDATE orders SET status = 'expired' WHERE id = $1";
    sqlx::query(expire).bind(order.id.uuid()).execute(&mut *expiry).await.unwrap();
    expiry.commit().await.unwrap();
    let paid = paying.await.unwrap().unwrap();
    assert!(matches!(paid, Moved::Illegal(_)), "{paid:?}");
}
