//! Purchases from the reserve, beside everything else that happens to the same row.

use seckill::catalogue::SaleChange;
use seckill::domain::{
    Accepted, OrderId, OrderMessage, OrderStatus, Pool, Purchase, Refusal, Rejection, RequestKey, SaleId, SaleState,
};
use seckill::ledger::{Error, Ledger, Reserved};
use time::{Duration, OffsetDateTime};

use super::world::{World, count, message, messages, user};

const OPEN: SaleChange = SaleChange { state: Some(SaleState::Open), starts_at: None, ends_at: None };

pub async fn open(world: &World, units: u32, reserve: u32) -> SaleId {
    let sale = world.sale_with(units, reserve).await;
    world.catalogue.change(sale, OPEN).await.unwrap();
    sale
}

/// One unit for one user, under the id that `message` gives to the same number.
pub fn purchase(sale: SaleId, number: usize) -> Purchase {
    Purchase { order: message(sale, number).id, user: user(number), quantity: 1, generation: 1, request: None }
}

pub fn keyed(sale: SaleId, number: usize, key: &str, fingerprint: &str) -> Purchase {
    let request = RequestKey { key: key.to_owned(), fingerprint: fingerprint.to_owned() };
    let order = OrderId::derived(sale, &user(number), key, 1);
    Purchase { order, request: Some(request), ..purchase(sale, number) }
}

fn spare(sale: SaleId, number: u64) -> OrderId {
    OrderId::mint(sale, 2_000_000_000, number)
}

pub async fn ask(ledger: &Ledger, sale: SaleId, purchase: &Purchase) -> Reserved {
    ledger.reserve_purchase(sale, purchase.clone(), spare(sale, 1)).await.unwrap()
}

pub fn accepted(purchase: &Purchase, replayed: bool) -> Reserved {
    Reserved::Accepted(Accepted { order: purchase.order, quantity: purchase.quantity, replayed })
}

#[tokio::test]
async fn the_reserve_sells_its_own_units_once_each_and_then_says_unavailable_and_not_sold_out() {
    let world = World::new("reserve_sells").await;
    let sale = open(&world, 10, 3).await;
    let before = world.view(sale).await;
    assert_eq!((before.available, before.reserve, before.redis_total, before.total), (7, 3, 7, 10));
    for number in 0..3 {
        assert_eq!(ask(&world.ledger, sale, &purchase(sale, number)).await, accepted(&purchase(sale, number), false));
    }
    assert_eq!(ask(&world.ledger, sale, &purchase(sale, 3)).await, Reserved::Exhausted);
    let after = world.view(sale).await;
    assert_eq!((after.available, after.reserve, after.redis_total), (7, 0, 7));
    assert_eq!(after.version, before.version + 3);
    assert!(after.orders.iter().all(|order| order.pool == Pool::Reserve && order.generation == 1));
    // Seven are left for Redis, and its orders get them.
    assert_eq!(world.ledger.record(&messages(sale, 10..20)).await.unwrap().created, 7);

    // A unit returns to the reserve, and is sold from there again.
    world.ledger.close(purchase(sale, 0).order, OrderStatus::Cancelled).await.unwrap();
    assert_eq!(ask(&world.ledger, sale, &purchase(sale, 3)).await, accepted(&purchase(sale, 3), false));
    world.view(sale).await;
}

#[tokio::test]
async fn an_order_larger_than_the_reserve_takes_nothing_of_it() {
    let world = World::new("reserve_whole").await;
    let sale = open(&world, 10, 3).await;
    let four = Purchase { quantity: 4, ..purchase(sale, 1) };
    assert_eq!(ask(&world.ledger, sale, &four).await, Reserved::Exhausted);
    let three = Purchase { quantity: 3, ..purchase(sale, 2) };
    assert_eq!(ask(&world.ledger, sale, &three).await, accepted(&three, false));
    let many = Purchase { quantity: 11, ..purchase(sale, 3) };
    let refused = Reserved::Refused(Refusal::TooMany { max_quantity: 10 });
    assert_eq!(ask(&world.ledger, sale, &many).await, refused);
    assert_eq!(world.view(sale).await.reserve, 0);
}

#[tokio::test]
async fn the_same_id_gets_the_row_that_it_has_in_whichever_pool_and_after_it_was_closed() {
    let world = World::new("reserve_same_id").await;
    let sale = open(&world, 10, 3).await;
    let (here, there) = (purchase(sale, 1), purchase(sale, 2));
    assert_eq!(ask(&world.ledger, sale, &here).await, accepted(&here, false));
    assert_eq!(ask(&world.ledger, sale, &here).await, accepted(&here, true));
    // A message of the same order comes late from Kafka.
    assert_eq!(world.ledger.record(&[message(sale, 1)]).await.unwrap().skipped, 1);

    world.ledger.record(&[message(sale, 2)]).await.unwrap();
    assert_eq!(ask(&world.ledger, sale, &there).await, accepted(&there, true));
    world.ledger.close(there.order, OrderStatus::Cancelled).await.unwrap();
    assert_eq!(ask(&world.ledger, sale, &there).await, accepted(&there, true));
    let view = world.view(sale).await;
    assert_eq!((view.available, view.reserve, view.orders.len()), (7, 2, 2));
}

#[tokio::test]
async fn a_request_key_gets_its_order_back_and_another_body_does_not() {
    let world = World::new("reserve_key").await;
    let sale = open(&world, 10, 3).await;
    let first = keyed(sale, 1, "checkout", "one");
    assert_eq!(ask(&world.ledger, sale, &first).await, accepted(&first, false));
    assert_eq!(ask(&world.ledger, sale, &first).await, accepted(&first, true));
    let other_body = keyed(sale, 1, "checkout", "two");
    assert_eq!(ask(&world.ledger, sale, &other_body).await, Reserved::Refused(Refusal::KeyReused));
    world.ledger.close(first.order, OrderStatus::Cancelled).await.unwrap();
    assert_eq!(ask(&world.ledger, sale, &first).await, accepted(&first, true));
    assert_eq!(world.view(sale).await.reserve, 3);
}

#[tokio::test]
async fn id_and_generation_are_the_ledgers_and_not_what_the_node_remembers() {
    let world = World::new("reserve_generation").await;
    let sale = open(&world, 10, 3).await;
    world.ledger.open_generation(sale, 1, None).await.unwrap();
    let remembered = keyed(sale, 1, "checkout", "one");
    let Reserved::Accepted(accepted) = ask(&world.ledger, sale, &remembered).await else { panic!("not accepted") };
    assert_eq!(accepted.order, OrderId::derived(sale, &user(1), "checkout", 2));
    let order = world.ledger.order(accepted.order).await.unwrap().unwrap();
    assert_eq!((order.generation, order.pool, order.status), (2, Pool::Reserve, OrderStatus::Created));
}

#[tokio::test]
async fn an_id_that_was_rejected_is_not_used_again() {
    let world = World::new("reserve_rejected").await;
    let sale = open(&world, 10, 3).await;
    world.ledger.open_generation(sale, 1, None).await.unwrap();
    let late = message(sale, 1);
    assert_eq!(world.ledger.record(std::slice::from_ref(&late)).await.unwrap().superseded, 1);
    let Reserved::Accepted(accepted) = ask(&world.ledger, sale, &purchase(sale, 1)).await else { panic!("refused") };
    assert_eq!((accepted.order, accepted.replayed), (spare(sale, 1), false));
    assert_eq!(world.ledger.order(late.id).await.unwrap().unwrap().reason, Some(Rejection::Superseded));
    assert_eq!(world.view(sale).await.reserve, 2);
}

/// That order has come to nothing, by no fault of the buyer: the key buys.
#[tokio::test]
async fn a_key_whose_order_was_superseded_is_not_answered_with_it() {
    let world = World::new("reserve_key_superseded").await;
    let sale = open(&world, 10, 3).await;
    world.ledger.open_generation(sale, 1, None).await.unwrap();
    let asked = keyed(sale, 1, "checkout", "one");
    let late = OrderMessage { id: asked.order, request: asked.request.clone(), ..message(sale, 1) };
    assert_eq!(world.ledger.record(&[late]).await.unwrap().superseded, 1);
    let derived = OrderId::derived(sale, &user(1), "checkout", 2);
    assert_eq!(ask(&world.ledger, sale, &asked).await, accepted(&Purchase { order: derived, ..asked }, false));
}

/// The unit of such an order was never in Redis, but who repeats his key there must hear of the order.
#[tokio::test]
async fn redis_is_warmed_with_the_keys_of_the_reserve_and_not_with_its_orders() {
    let world = World::new("reserve_warm").await;
    let sale = open(&world, 10, 3).await;
    let asked = keyed(sale, 1, "checkout", "one");
    ask(&world.ledger, sale, &asked).await;
    let warm = world.ledger.open_generation(sale, 1, None).await.unwrap();
    assert_eq!(warm.requests.iter().map(|request| request.order).collect::<Vec<_>>(), [asked.order]);
    assert_eq!((warm.claims, warm.total, warm.available), (Vec::new(), 7, 7));
}

#[tokio::test]
async fn a_buyer_who_meets_both_pools_holds_one_live_order() {
    let world = World::new("reserve_both_pools").await;
    let sale = open(&world, 10, 3).await;
    world.ledger.record(&[message(sale, 1)]).await.unwrap();
    let second = Purchase { order: spare(sale, 7), ..purchase(sale, 1) };
    let held = Refusal::AlreadyPurchased { order: message(sale, 1).id };
    assert_eq!(ask(&world.ledger, sale, &second).await, Reserved::Refused(held));

    ask(&world.ledger, sale, &purchase(sale, 2)).await;
    let mut from_redis = message(sale, 2);
    from_redis.id = spare(sale, 8);
    assert_eq!(world.ledger.record(&[from_redis]).await.unwrap().already_purchased, 1);
    let view = world.view(sale).await;
    assert_eq!((view.available, view.reserve), (6, 2));
}

#[tokio::test]
async fn outside_its_hours_the_reserve_sells_nothing_and_who_has_an_order_still_learns_of_it() {
    let world = World::new("reserve_hours").await;
    let sale = open(&world, 10, 3).await;
    let early = purchase(sale, 1);
    ask(&world.ledger, sale, &early).await;
    let late = purchase(sale, 2);
    let refusal = async |change: SaleChange| {
        world.catalogue.change(sale, change).await.unwrap();
        match ask(&world.ledger, sale, &late).await {
            Reserved::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    };
    let to = |state| SaleChange { state: Some(state), ..SaleChange::default() };
    assert_eq!(refusal(to(SaleState::Paused)).await, Refusal::Paused);
    let soon = (OffsetDateTime::now_utc() + Duration::minutes(5)).replace_millisecond(0).unwrap();
    assert_eq!(refusal(SaleChange { starts_at: Some(soon), ..OPEN }).await, Refusal::NotStarted { starts_at: soon });
    let gone = OffsetDateTime::now_utc() - Duration::SECOND;
    let over = SaleChange { starts_at: Some(gone - Duration::HOUR), ends_at: Some(gone), state: None };
    assert_eq!(refusal(over).await, Refusal::Ended);
    assert_eq!(refusal(to(SaleState::Ended)).await, Refusal::Ended);
    assert_eq!(ask(&world.ledger, sale, &early).await, accepted(&early, true));
    assert_eq!(world.view(sale).await.reserve, 2);
}

#[tokio::test]
async fn a_sale_that_the_ledger_does_not_know_is_an_error() {
    let world = World::new("reserve_nowhere").await;
    let sale = SaleId::new(999).unwrap();
    let asked = world.ledger.reserve_purchase(sale, purchase(sale, 1), spare(sale, 1)).await;
    assert!(matches!(asked, Err(Error::UnknownSale(unknown)) if unknown == sale));
}

/// Reserve and consumer at the same row, the same users and the same order ids in both.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reserve_and_consumer_together_sell_every_unit_once_and_give_nobody_two() {
    let world = World::new("reserve_races").await;
    let sale = open(&world, 60, 20).await;
    let mut buyers = tokio::task::JoinSet::new();
    for number in 0..40 {
        let ledger = world.ledger.clone();
        let order = if number % 2 == 0 { message(sale, number).id } else { spare(sale, number as u64) };
        let asked = Purchase { order, ..purchase(sale, number) };
        buyers.spawn(async move { ask(&ledger, sale, &asked).await });
    }
    let recording = async {
        for batch in messages(sale, 0..80).chunks(5) {
            world.ledger.record(batch).await.unwrap();
        }
    };
    let (answers, ()) = tokio::join!(buyers.join_all(), recording);
    let view = world.view(sale).await;
    assert_eq!((view.available, count(&view, OrderStatus::Created) as i64), (0, 60 - view.reserve));
    let from_reserve = view.orders.iter().filter(|order| order.pool == Pool::Reserve).count();
    let fresh = |answer: &&Reserved| matches!(answer, Reserved::Accepted(Accepted { replayed: false, .. }));
    assert_eq!(answers.iter().filter(fresh).count(), from_reserve);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_order_asked_for_ten_times_at_once_is_one_row() {
    let world = World::new("reserve_ten_at_once").await;
    let sale = open(&world, 10, 5).await;
    let asked = purchase(sale, 1);
    let answers = (0..10).map(|_| ask(&world.ledger, sale, &asked));
    let answers = futures_util::future::join_all(answers).await;
    assert_eq!(answers.iter().filter(|answer| **answer == accepted(&asked, false)).count(), 1);
    assert_eq!(answers.iter().filter(|answer| **answer == accepted(&asked, true)).count(), 9);
    assert_eq!(world.view(sale).await.reserve, 4);
}
