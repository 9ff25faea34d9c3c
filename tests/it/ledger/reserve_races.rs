//! What a stranger does to the row between the reading and the writing of a purchase from the reserve.
//!
//! Past the version, by hand, so that only the safeguard behind it is left to notice.

use seckill::domain::{OrderId, Purchase, Refusal, SaleId};
use seckill::ledger::Reserved;
use sqlx::{Connection, Postgres, Transaction};

use super::races::figure;
use super::reserve::{accepted, ask, keyed, open, purchase};
use super::world::{World, user};

/// Asks for `asked` while a stranger holds what `meddling` has changed, and lets the change be before the write.
async fn overtaken(world: &World, sale: SaleId, asked: &Purchase, meddling: &'static str) -> Reserved {
    let mut stranger = world.outside.acquire().await.unwrap();
    let mut strange: Transaction<'_, Postgres> = stranger.begin().await.unwrap();
    sqlx::raw_sql(meddling).execute(&mut *strange).await.unwrap();
    let commit = async {
        world.until_waiting(1).await;
        strange.commit().await.unwrap();
    };
    let (answer, ()) = tokio::join!(ask(&world.ledger, sale, asked), commit);
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_purchase_from_the_reserve_that_a_commit_has_overtaken_is_decided_again() {
    let world = World::new("reserve_overtaken").await;
    let sale = open(&world, 10, 3).await;
    let asked = purchase(sale, 1);
    let answer = overtaken(&world, sale, &asked, "UPDATE stock SET version = version + 1").await;
    assert_eq!(answer, accepted(&asked, false));
    assert_eq!(figure(&world, "seckill_ledger_lost_races_total"), 1.0);
    assert_eq!(world.view(sale).await.reserve, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn units_that_a_stranger_takes_from_the_reserve_are_a_lost_race_not_a_fault() {
    let world = World::new("reserve_taken").await;
    let sale = open(&world, 10, 3).await;
    let meddling = "UPDATE stock SET total = total - reserve, reserve = 0";
    assert_eq!(overtaken(&world, sale, &purchase(sale, 1), meddling).await, Reserved::Exhausted);
}

/// The id was derived for the generation that was read. Under another one it would not meet the message of the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_generation_raised_between_reading_and_writing_gives_the_order_another_id() {
    let world = World::new("reserve_raised").await;
    let sale = open(&world, 10, 3).await;
    let asked = keyed(sale, 1, "checkout", "one");
    let answer = overtaken(&world, sale, &asked, "UPDATE stock SET generation = 2").await;
    let derived = OrderId::derived(sale, &user(1), "checkout", 2);
    assert_eq!(answer, accepted(&Purchase { order: derived, ..asked }, false));
    assert_eq!(world.ledger.order(derived).await.unwrap().unwrap().generation, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_order_that_a_stranger_gives_the_buyer_meanwhile_is_a_lost_race_not_a_fault() {
    let world = World::new("reserve_stranger").await;
    let sale = open(&world, 10, 3).await;
    let meddling = "WITH taken AS (UPDATE stock SET available = available - 1 RETURNING sale_id)
        INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, status, pool, generation, pay_before)
        SELECT '6b49d200-0000-8000-8400-00000000ffff', sale_id, 'user-1', 1, 0, 'created', 'redis', 1,
               clock_timestamp() FROM taken";
    let answer = overtaken(&world, sale, &purchase(sale, 1), meddling).await;
    assert!(matches!(answer, Reserved::Refused(Refusal::AlreadyPurchased { .. })), "{answer:?}");
    assert_eq!(world.view(sale).await.reserve, 3);
}

/// The sale was open when it was checked. The table of orders is held, so that the look-up of the buyer waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_sale_that_is_paused_or_over_between_reading_and_writing_sells_nothing_from_the_reserve() {
    let world = World::new("reserve_hours_again").await;
    let sale = open(&world, 10, 3).await;
    let over = "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE;
                UPDATE sales SET starts_at = starts_at - interval '2 hours', ends_at = clock_timestamp() - interval '1 s'";
    let answer = overtaken(&world, sale, &purchase(sale, 1), over).await;
    assert_eq!(answer, Reserved::Refused(Refusal::Ended));
    world.meddle("UPDATE sales SET ends_at = clock_timestamp() + interval '1 hour'").await;
    let paused = "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE; UPDATE sales SET state = 'paused'";
    assert_eq!(overtaken(&world, sale, &purchase(sale, 1), paused).await, Reserved::Refused(Refusal::Paused));
    assert_eq!(world.view(sale).await.reserve, 3);
}

/// The server was told to end the session, and nobody can say whether the statement had its effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_session_that_the_server_ends_under_a_purchase_from_the_reserve_is_not_known_to_have_failed() {
    let world = World::new("reserve_ended").await;
    let sale = open(&world, 10, 3).await;
    let asked = purchase(sale, 1);
    let mut stranger = world.outside.acquire().await.unwrap();
    let mut strange = stranger.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM stock FOR UPDATE").execute(&mut *strange).await.unwrap();
    let end = async {
        world.until_waiting(1).await;
        world
            .meddle(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock'",
            )
            .await;
    };
    let (answer, ()) = tokio::join!(ask(&world.ledger, sale, &asked), end);
    assert_eq!(answer, Reserved::Unknown(asked.order));
}
