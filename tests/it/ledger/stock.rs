//! Added stock, fencing tokens, and sales that are not there.

use std::collections::HashSet;

use seckill::domain::SaleId;
use seckill::ledger::{self, Error};
use seckill::lock::fence;

use super::world::{World, messages};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stock_is_added_once_per_operation_however_often_and_at_once_it_is_asked() {
    let world = World::new("added_once").await;
    let sale = world.sale(10).await;
    let asked = (0..10).map(|_| world.ledger.add_stock(sale, 5, "monday"));
    let rows = futures_util::future::try_join_all(asked).await.unwrap();
    assert!(rows.iter().all(|row| (row.total, row.available, row.redis_total) == (15, 15, 15)), "{rows:?}");

    let row = world.ledger.add_stock(sale, 5, "tuesday").await.unwrap();
    assert_eq!((row.total, row.available, row.redis_total, row.reserve), (20, 20, 20, 0));
    assert!(row.version > rows[0].version);
    let late = world.ledger.add_stock(sale, 5, "monday").await.unwrap();
    assert_eq!(late, row, "a repeat answers with what is there now");
    world.view(sale).await;
}

#[tokio::test]
async fn an_operation_id_with_other_units_is_an_error_and_adds_nothing() {
    let world = World::new("operation_reused").await;
    let (sale, other) = (world.sale(10).await, world.sale(10).await);
    world.ledger.add_stock(sale, 5, "monday").await.unwrap();
    assert!(matches!(world.ledger.add_stock(sale, 6, "monday").await, Err(Error::OperationReused { .. })));
    assert_eq!(world.available(sale).await, 15);
    assert_eq!(world.ledger.add_stock(other, 6, "monday").await.unwrap().total, 16, "ids belong to a sale");
}

#[tokio::test]
async fn units_that_make_no_stock_are_refused() {
    let world = World::new("units_out_of_range").await;
    let sale = world.sale(10).await;
    for units in [0, i32::MAX as u32, u32::MAX] {
        assert!(matches!(world.ledger.add_stock(sale, units, "monday").await, Err(Error::UnitsOutOfRange)), "{units}");
    }
    assert_eq!(world.ledger.add_stock(sale, 1, "monday").await.unwrap().total, 11, "the id is not used up");
    let unknown = SaleId::new(4711).unwrap();
    assert!(matches!(world.ledger.add_stock(unknown, 1, "monday").await, Err(Error::UnknownSale(_))));
    assert!(world.ledger.stock(unknown).await.unwrap().is_none());
    assert!(world.ledger.view(unknown).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stock_added_between_batches_is_sold_by_the_next() {
    let world = World::new("added_while_selling").await;
    let sale = world.sale(10).await;
    let batch = messages(sale, 0..400);
    let record = async {
        let mut created = 0;
        for part in batch.chunks(4) {
            created += world.ledger.record(part).await.unwrap().created;
        }
        created
    };
    let add = async {
        for operation in 0..20 {
            world.ledger.add_stock(sale, 5, &operation.to_string()).await.unwrap();
        }
    };
    let (created, ()) = tokio::join!(record, add);
    let view = world.view(sale).await;
    assert_eq!((view.total, view.redis_total, view.available), (110, 110, 110 - created as i64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fencing_tokens_rise_strictly_whoever_asks() {
    let world = World::new("fence").await;
    let holders: Vec<_> = (0..20).map(|holder| holder.to_string()).collect();
    let asked = holders.iter().map(|holder| fence::mint(world.ledger.pool(), "sale:1", holder, 0));
    let tokens: HashSet<_> = futures_util::future::try_join_all(asked).await.unwrap().into_iter().collect();
    assert_eq!(tokens, (1..=20).collect());
    assert_eq!(fence::mint(world.ledger.pool(), "sale:1", "last", 0).await.unwrap(), 21);
    assert_eq!(fence::mint(world.ledger.pool(), "sale:2", "first", 0).await.unwrap(), 1);
}

/// The last safeguard: even a write by hand or by mistake cannot make such a row.
#[tokio::test]
async fn the_schema_itself_refuses_stock_below_nothing_and_above_the_total() {
    let world = World::new("schema").await;
    world.sale(10).await;
    for (change, constraint) in [
        ("UPDATE stock SET available = -1", "stock_available_not_negative"),
        ("UPDATE stock SET reserve = -1", "stock_reserve_not_negative"),
        ("UPDATE stock SET available = 11", "stock_pools_within_total"),
        ("UPDATE stock SET reserve = 11", "stock_pools_within_total"),
        ("UPDATE stock SET redis_total = 11", "stock_pools_within_total"),
    ] {
        let refusal = sqlx::query(change).execute(&world.outside).await.unwrap_err();
        assert_eq!(refusal.as_database_error().unwrap().constraint(), Some(constraint), "{change}");
    }
}

#[tokio::test]
async fn migrating_again_and_from_two_places_at_once_is_harmless() {
    let world = World::new("migrating").await;
    let other = world.another_ledger().await;
    let (one, two) = tokio::join!(ledger::migrate(world.ledger.pool()), ledger::migrate(other.pool()));
    one.unwrap();
    two.unwrap();
}
