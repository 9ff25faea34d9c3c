//! Everybody at once, on two nodes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::support::fixtures::new_sale;
use crate::support::http::{Answer, Connection};
use crate::support::service::{PATIENCE, Running, settings};
use crate::support::wait_until;
use seckill::app::Roles;
use seckill::catalogue::NewSale;
use seckill::domain::SaleId;
use tokio::task::JoinSet;

const CONNECTIONS: usize = 100;

async fn two_nodes(name: &str) -> (Running, Running) {
    let settings = settings(name).await;
    (Running::start(&settings, Roles::ALL).await, Running::start(&settings, Roles::SERVE).await)
}

/// Opens a sale and waits until both nodes know of it.
async fn open(one: &Running, two: &Running, new: NewSale) -> SaleId {
    let sale = one.open_sale_of(new).await.id;
    wait_until("the other node knows the sale", PATIENCE, async || {
        two.service.catalogue.get(sale).is_some_and(|known| known.generation > 0)
    })
    .await;
    sale
}

/// Sends the purchases of these users, all at once, over many connections to both nodes.
async fn rush(nodes: [&Running; 2], sale: SaleId, users: Vec<String>) -> Vec<Answer> {
    let mut buyers = JoinSet::new();
    let shares = users.len().div_ceil(CONNECTIONS);
    for (n, share) in users.chunks(shares).enumerate() {
        let node = nodes[n % 2];
        let tokens: Vec<_> = share.iter().map(|user| node.token(user)).collect();
        let mut http = Connection::open(node.address()).await;
        buyers.spawn(async move {
            let mut answers = Vec::new();
            for token in tokens {
                answers.push(http.buy(sale, &token, &[]).await);
            }
            answers
        });
    }
    buyers.join_all().await.into_iter().flatten().collect()
}

fn by_code(answers: &[Answer]) -> HashMap<String, usize> {
    let mut codes = HashMap::new();
    for answer in answers {
        let code = if answer.status == 202 { "accepted".to_owned() } else { answer.code() };
        *codes.entry(code).or_default() += 1;
    }
    codes
}

fn counted<const N: usize>(counts: [(&str, usize); N]) -> HashMap<String, usize> {
    counts.into_iter().map(|(code, count)| (code.to_owned(), count)).collect()
}

fn users(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("u{n}")).collect()
}

/// A lock of one process would let each node sell the unit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_and_500_buyers_for_one_unit_end_in_one_order() {
    let (one, two) = two_nodes("one_unit").await;
    let sale = open(&one, &two, new_sale()).await;
    let answers = rush([&one, &two], sale, users(500)).await;
    assert_eq!(by_code(&answers), counted([("accepted", 1), ("sold_out", 499)]));
    one.settle(sale).await;
    two.stop().await;
    one.stop().await;
}

/// Repeat clicks of one user burn no stock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_buyer_clicking_200_times_at_once_gets_one_order_and_leaves_the_rest_to_others() {
    let (one, two) = two_nodes("clicks").await;
    let sale = open(&one, &two, NewSale { total: 2, ..new_sale() }).await;
    let answers = rush([&one, &two], sale, vec!["ann".to_owned(); 200]).await;
    assert_eq!(by_code(&answers), counted([("accepted", 1), ("already_purchased", 199)]));
    let accepted = answers.iter().find(|answer| answer.status == 202).expect("one").json()["order_id"].clone();
    let told = answers.iter().filter(|answer| answer.json()["order_id"] == accepted).count();
    assert_eq!(told, 200, "each refusal names the order that the buyer holds");
    let other = rush([&one, &two], sale, vec!["bob".to_owned()]).await;
    assert_eq!(by_code(&other), counted([("accepted", 1)]));
    one.settle(sale).await;
    two.stop().await;
    one.stop().await;
}

/// Off by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_units_and_100_buyers_end_in_exactly_ten_orders() {
    let (one, two) = two_nodes("ten_units").await;
    let sale = open(&one, &two, NewSale { total: 10, ..new_sale() }).await;
    let answers = rush([&one, &two], sale, users(100)).await;
    assert_eq!(by_code(&answers), counted([("accepted", 10), ("sold_out", 90)]));
    one.settle(sale).await;
    let ledger = one.service.ledger.view(sale).await.expect("a view").expect("a sale");
    assert_eq!((ledger.orders.len(), ledger.available), (10, 0));
    two.stop().await;
    one.stop().await;
}

/// A reserve is not stranded: once Redis has sold out, it is for those who retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_again_after_sold_out_gets_the_reserve_and_not_one_unit_more() {
    let (one, two) = two_nodes("reserve_rush").await;
    let sale = open(&one, &two, NewSale { total: 10, reserve: Some(3), ..new_sale() }).await;
    let mut accepted = by_code(&rush([&one, &two], sale, users(100)).await)["accepted"];
    assert!(accepted >= 7, "seven units are in Redis from the start, {accepted} were sold");
    let mut newcomers = 100..;
    let begun = Instant::now();
    while accepted < 10 {
        assert!(begun.elapsed() < PATIENCE, "the reserve stays where it is: {accepted} sold");
        let user = newcomers.next().map(|n| format!("u{n}")).expect("there is no last one");
        let codes = by_code(&rush([&one, &two], sale, vec![user]).await);
        accepted += codes.get("accepted").unwrap_or(&0);
        // As often as a person looks; the reconciler needs its turn, too.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let late = rush([&one, &two], sale, (10_000..10_100).map(|n| format!("u{n}")).collect()).await;
    assert_eq!(by_code(&late), counted([("sold_out", 100)]));
    one.settle(sale).await;
    let ledger = one.service.ledger.view(sale).await.expect("a view").expect("a sale");
    assert_eq!((ledger.orders.len(), ledger.available, ledger.reserve), (10, 0, 0));
    two.stop().await;
    one.stop().await;
}
