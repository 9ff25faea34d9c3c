//! What the things that are written check, whatever became of the lock.

use seckill::domain::{Sale, SaleId};
use seckill::lock::{Lost, Released, fence};
use seckill::stock::script::WarmCode;
use seckill::stock::{Frozen, OnSale, Stock, WarmPart};

use crate::support::fixtures;

use super::world::{LONG, World, lasting, loss, until, waiting, within};

fn overtaken(result: &Result<(), fence::Error>) -> bool {
    matches!(result, Err(fence::Error::Overtaken { .. }))
}

#[tokio::test]
async fn a_claim_needs_a_strictly_greater_token() {
    let world = World::new("claims").await;
    let pool = world.pool();
    assert_eq!(fence::floor(pool, "r").await.unwrap(), 0);
    fence::claim(pool, "r", 33, "ann").await.unwrap();
    assert!(overtaken(&fence::claim(pool, "r", 33, "bob").await), "two with an equal token: only the first");
    assert!(overtaken(&fence::claim(pool, "r", 32, "bob").await));
    fence::claim(pool, "r", 33, "ann").await.unwrap();
    fence::claim(pool, "r", 34, "bob").await.unwrap();
    assert!(overtaken(&fence::claim(pool, "r", 33, "ann").await), "overtaken for good");
    assert_eq!(fence::floor(pool, "r").await.unwrap(), 34);
    assert_eq!(fence::floor(pool, "another").await.unwrap(), 0);
}

#[tokio::test]
async fn a_guarded_write_is_refused_once_a_greater_token_was_claimed() {
    let world = World::new("guards").await;
    let mut connection = world.pool().acquire().await.unwrap();
    assert!(overtaken(&fence::guard(&mut connection, "r", 1, "ann").await), "never claimed");
    fence::claim(world.pool(), "r", 1, "ann").await.unwrap();
    fence::guard(&mut connection, "r", 1, "ann").await.unwrap();
    assert!(overtaken(&fence::guard(&mut connection, "r", 1, "bob").await), "an equal token of another");
    fence::claim(world.pool(), "r", 2, "bob").await.unwrap();
    assert!(overtaken(&fence::guard(&mut connection, "r", 1, "ann").await));
    fence::guard(&mut connection, "r", 2, "bob").await.unwrap();
    fence::claim(world.pool(), "r", 3, "bob").await.unwrap();
    assert!(overtaken(&fence::guard(&mut connection, "r", 2, "bob").await), "an older token of the same name");
}

/// There is no moment between the check and the write.
#[tokio::test]
async fn a_claim_waits_for_the_guarded_transactions_before_it() {
    let world = World::new("claim_waits").await;
    fence::claim(world.pool(), "r", 1, "ann").await.unwrap();
    let mut transaction = world.pool().begin().await.unwrap();
    fence::guard(&mut transaction, "r", 1, "ann").await.unwrap();
    let pool = world.pool().clone();
    let claiming = tokio::spawn(async move { fence::claim(&pool, "r", 2, "bob").await });
    let waiting = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    until("the claim waits", async || {
        sqlx::query_scalar::<_, i64>(waiting).fetch_one(world.pool()).await.unwrap() == 1
    })
    .await;
    transaction.commit().await.unwrap();
    within("the claim", claiming).await.unwrap().unwrap();
    let mut connection = world.pool().acquire().await.unwrap();
    assert!(overtaken(&fence::guard(&mut connection, "r", 1, "ann").await));
}

/// An opening claims without the lock: a holder of the lock meanwhile starts again, with a greater token.
#[tokio::test]
async fn a_token_claimed_without_the_lock_is_the_floor_of_the_next() {
    let world = World::new("without_lock").await;
    let guard = world.acquire(waiting(LONG)).await;
    assert_eq!(fence::mint(world.pool(), world.name.as_str(), "opening", 0).await.unwrap(), 1);
    assert!(matches!(guard.claim().await, Err(fence::Error::Overtaken { token: 1, .. })));
    assert_eq!(world.counted("fence_rejected", ""), 1);
    assert_eq!(guard.release().await, Released::Released);
    let guard = world.acquire(waiting(LONG)).await;
    assert_eq!(guard.claim().await.unwrap().token(), 2);
    guard.claim().await.unwrap();
}

#[tokio::test]
async fn tokens_rise_also_when_redis_forgets_everything() {
    let world = World::new("forgets").await;
    let mut last = 0;
    for n in 0..6 {
        let guard = world.acquire(waiting(LONG)).await;
        let token = guard.claim().await.unwrap().token();
        assert!(token > last, "{token} after {last}");
        last = token;
        if n % 2 == 0 {
            world.flush().await;
            assert_eq!(guard.release().await, Released::Lost(Lost::Missing));
        } else {
            assert_eq!(guard.release().await, Released::Released);
        }
    }
}

#[tokio::test]
async fn the_fence_keeps_one_row_for_each_resource() {
    let world = World::new("one_row").await;
    for _ in 0..5 {
        let guard = world.acquire(waiting(LONG)).await;
        guard.claim().await.unwrap();
        assert_eq!(guard.release().await, Released::Released);
    }
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM lock_fence").fetch_one(world.pool()).await.unwrap();
    assert_eq!(rows, 1);
}

/// A failover that lost the lock: two believe that they hold it, and one of them is wrong.
#[tokio::test]
async fn when_redis_forgets_a_lock_the_first_holder_writes_nothing_more() {
    let world = World::new("two_holders").await;
    let (first, second) = (world.acquire(lasting(30_000)).await, world.other.clone());
    let old = first.claim().await.unwrap();
    let stock = Stock::connect(&world.settings.redis).unwrap();
    let sale = sale();
    let run_id = freeze(&stock, sale.id, old.token()).await.unwrap();

    world.flush().await;
    let second = second.acquire(&world.name, waiting(LONG)).await.unwrap();
    let new = second.claim().await.unwrap();
    assert!(new.token() > old.token());
    assert_eq!(loss(&first), None, "it knows nothing yet");
    let new_home = freeze(&stock, sale.id, new.token()).await.unwrap();

    let mut transaction = world.pool().begin().await.unwrap();
    assert!(overtaken(&old.guard(&mut transaction).await));
    transaction.rollback().await.unwrap();
    assert_eq!(freeze(&stock, sale.id, old.token()).await, None);
    assert_eq!(warm(&stock, &sale, old.token(), &run_id).await, WarmCode::Refused);
    assert_eq!(world.counted("fence_rejected", ""), 1);

    let mut transaction = world.pool().begin().await.unwrap();
    new.guard(&mut transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(warm(&stock, &sale, new.token(), &new_home).await, WarmCode::Warmed);
}

/// The same sale in each process.
pub fn sale() -> Sale {
    Sale { id: SaleId::new(1).unwrap(), ..fixtures::sale(5) }
}

/// `None`: a greater token was here.
pub async fn freeze(stock: &Stock, sale: SaleId, token: i64) -> Option<seckill::stock::RunId> {
    match stock.freeze(sale, token).await.unwrap() {
        Frozen::Yes { run_id, .. } => Some(run_id),
        Frozen::Stale => None,
    }
}

pub async fn warm(stock: &Stock, sale: &Sale, token: i64, run_id: &seckill::stock::RunId) -> WarmCode {
    let on_sale = OnSale { generation: 1, total: 5, remaining: 5 };
    stock.warm(sale, token, run_id, &on_sale, WarmPart::FRESH).await.unwrap()
}
