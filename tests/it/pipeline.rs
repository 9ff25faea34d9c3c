//! One purchase through every step on the real servers, and what its buyer sees on the way.

use std::time::Duration;

use crate::support::http::Connection;
use crate::support::service::{PATIENCE, Running, settings};
use crate::support::wait_until;
use seckill::app::Roles;
use secrecy::ExposeSecret;
use sqlx::PgPool;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn a_purchase_becomes_a_row_that_its_buyer_can_read() {
    let settings = settings("pipeline").await;
    let running = Running::start(&settings, Roles::ALL).await;
    let sale = running.open_sale(2).await;
    let mut http = Connection::open(running.address()).await;
    let ann = running.token("ann");

    let bought = http.buy(sale.id, &ann, &[]).await;
    assert_eq!(bought.status, 202, "{}", bought.text);
    let order = bought.json()["order_id"].as_str().expect("an order id").to_owned();
    let path = format!("/api/v1/orders/{order}");
    assert_eq!(bought.header("location"), Some(path.as_str()));
    assert_eq!(bought.json()["status"], "queued");

    let again = http.buy(sale.id, &ann, &[]).await;
    assert_eq!((again.status, again.code().as_str()), (409, "already_purchased"));
    assert_eq!(again.json()["order_id"], order.as_str());

    running.settle(sale.id).await;
    let read = http.get(&path, &ann).await;
    assert_eq!((read.status, read.json()["status"].as_str()), (200, Some("created")), "{}", read.text);
    assert_eq!(read.json()["amount_cents"], 9_900);
    let own = http.get(&format!("/api/v1/sales/{}/order", sale.id), &ann).await;
    assert_eq!(own.json(), read.json());
    let stranger = http.get(&path, &running.token("bob")).await;
    assert_eq!((stranger.status, stranger.code().as_str()), (404, "order_not_found"));

    let last = http.buy(sale.id, &running.token("cid"), &[]).await;
    assert_eq!(last.status, 202);
    let loser = http.buy(sale.id, &running.token("dan"), &[]).await;
    assert_eq!((loser.status, loser.code().as_str()), (409, "sold_out"));
    running.settle(sale.id).await;
    running.stop().await;
}

/// Units that come back are seen by every node, and exactly they are sold.
#[tokio::test]
async fn added_stock_lowers_the_flag_of_every_node_and_sells_exactly_that_much_more() {
    let settings = settings("added_stock").await;
    let (one, two) = (Running::start(&settings, Roles::ALL).await, Running::start(&settings, Roles::SERVE).await);
    let sale = one.open_sale(1).await;
    let mut nodes = [Connection::open(one.address()).await, Connection::open(two.address()).await];
    let known = format!("/api/v1/sales/{}", sale.id);
    for http in &mut nodes {
        let http = tokio::sync::Mutex::new(http);
        wait_until("the node knows the sale", PATIENCE, async || http.lock().await.get(&known, "").await.status == 200)
            .await;
    }
    let mut winners = 0;
    for n in 0..4 {
        winners += u32::from(nodes[n % 2].buy(sale.id, &one.token(&format!("early{n}")), &[]).await.status == 202);
    }
    assert_eq!(winners, 1);

    for _ in 0..2 {
        one.service.operator.add_stock(sale.id, 5, "the same operation").await.expect("added once");
    }
    for (node, http) in nodes.iter_mut().enumerate() {
        let http = tokio::sync::Mutex::new(http);
        let token = one.token(&format!("first{node}"));
        // Within a second: by the message, or by the probe that stands in for it.
        wait_until("the node sells again", PATIENCE, async || {
            http.lock().await.buy(sale.id, &token, &[]).await.status == 202
        })
        .await;
    }
    let mut more = 2;
    for n in 0..10 {
        more += u32::from(nodes[n % 2].buy(sale.id, &one.token(&format!("late{n}")), &[]).await.status == 202);
    }
    assert_eq!(more, 5, "exactly the five that were added once");
    one.settle(sale.id).await;
    two.stop().await;
    one.stop().await;
}

/// At the edge: too few for one buyer is not sold out for the next.
#[tokio::test]
async fn a_unit_that_is_too_few_for_one_buyer_is_sold_to_the_next() {
    let settings = settings("too_few").await;
    let running = Running::start(&settings, Roles::SERVE).await;
    let sale = running.open_sale(1).await.id;
    let mut http = Connection::open(running.address()).await;
    let bearer = format!("Bearer {}", running.token("ann"));
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let two = http.send("POST", &format!("/api/v1/sales/{sale}/purchases"), &headers, r#"{"quantity":2}"#).await;
    assert_eq!((two.status, two.code().as_str()), (409, "not_enough_left"));
    assert_eq!(two.json()["remaining"], 1);
    assert_eq!(http.buy(sale, &running.token("bob"), &[]).await.status, 202);
    running.stop().await;
}

/// Those who watch their orders wait for each other, not the operator or the other buyers for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_watches_its_orders_leaves_the_ledger_to_others() {
    let shop = Running::start(&settings("watchers").await, Roles::ALL).await;
    let sale = shop.open_sale(1).await;
    let token = shop.token("ann");
    let mut http = Connection::open(shop.address()).await;
    let bought = http.buy(sale.id, &token, &[]).await;
    let order = bought.json()["order_id"].as_str().expect("an order").to_owned();
    shop.settle(sale.id).await;
    let mut watchers = Vec::new();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(shop.address()).await.expect("a connection");
        let request = format!(
            "GET /api/v1/orders/{order}/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.expect("a request");
        assert!(stream.read(&mut [0; 4096]).await.expect("an event") > 0);
        watchers.push(stream);
    }
    // From now on a read of an order waits.
    let outside = PgPool::connect(shop.settings.postgres.url.expose_secret()).await.expect("PostgreSQL");
    let mut held = outside.begin().await.expect("a transaction");
    sqlx::query("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE").execute(&mut *held).await.expect("a lock");
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass";
    wait_until("watchers wait", PATIENCE, async || {
        sqlx::query_scalar::<_, i64>(waiting).fetch_one(&outside).await.expect("a count") >= 2
    })
    .await;
    for _ in 0..5 {
        assert!(shop.service.ledger.stock(sale.id).await.is_ok(), "there is a connection for the operator");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    held.rollback().await.expect("a rollback");
    drop(watchers);
    shop.stop().await;
}
