//! Orders that are paid, cancelled and overdue at the same time, and added stock whose response is lost.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use drive::client::{Caller, Client, Limits};
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use hyper::{Method, Uri};
use seckill::domain::{OrderStatus, UserId};
use seckill::promises::OrderFact;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::fault::{Fault, Figures};
use super::round::{Round, SaleSpec};
use super::testbed::TestBed;

/// How many orders are paid at the moment when they expire.
const ENCOUNTERS: usize = 1_000;
/// Time for others to buy, before the next rush.
const BETWEEN: Duration = Duration::from_millis(300);

pub const FAULTS: &[Fault] = &[
    Fault::new("pay-against-expiry", "orders are paid at the moment when they expire", |g, r| {
        Box::pin(pay_against_expiry(g, r))
    })
    .with(SaleSpec { buyers: 2_400, window: Duration::from_secs(12), ..SaleSpec::PLENTY }),
    Fault::new("cancel-and-expire-under-load", "orders are cancelled and expire while others are made", |g, r| {
        Box::pin(cancel_and_expire(g, r))
    })
    .with(SaleSpec::PLENTY),
    Fault::new("added-stock-reply-lost", "stock is added, the answer is lost, and the operator repeats it", |g, r| {
        Box::pin(added_stock(g, r))
    }),
];

/// Makes every unpaid order that is there now overdue within so many milliseconds, at random.
pub async fn rush_expiry(testbed: &TestBed, round: &Round, within_ms: i32) -> anyhow::Result<Vec<OrderFact>> {
    let soon = "UPDATE orders SET pay_before = clock_timestamp() + random() * $2 * interval '1 millisecond'
        WHERE sale_id = $1 AND status = 'created'";
    sqlx::query(soon).bind(round.sale.get()).bind(within_ms).execute(testbed.ledger.pool()).await?;
    let ledger = testbed.ledger.view(round.sale).await?.context("the ledger has no such sale")?;
    Ok(ledger.orders.into_iter().filter(|order| order.status == OrderStatus::Created).collect())
}

fn caller(testbed: &TestBed, user: &UserId) -> anyhow::Result<Caller> {
    Ok(Caller { authorization: Some(testbed.tokens.header(user, false)?), ..Caller::default() })
}

/// Requests the same transition of many orders at once, and returns those for which it succeeded.
pub async fn transition(testbed: &TestBed, orders: &[OrderFact], what: &str) -> anyhow::Result<Vec<OrderFact>> {
    let mut asked = JoinSet::new();
    for (node, order) in orders.iter().enumerate() {
        let (client, caller, order) = (Arc::clone(&testbed.client), caller(testbed, &order.user)?, order.clone());
        let path: Uri = format!("/api/v1/orders/{}/{what}", order.id).parse()?;
        asked.spawn(async move {
            let reply = client.send(node, Method::POST, &path, &caller, Bytes::new()).await;
            reply.is_ok_and(|reply| reply.status == 200).then_some(order)
        });
    }
    Ok(asked.join_all().await.into_iter().flatten().collect())
}

/// A buyer whose payment was confirmed holds a paid order, now and later.
async fn pay_against_expiry(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let (mut paid, mut tried) = (Vec::new(), 0);
    while tried < ENCOUNTERS {
        // Works while there are buyers; without them this times out.
        round.until_sold(50).await?;
        let open = rush_expiry(testbed, round, 800).await?;
        tried += open.len();
        sleep(Duration::from_millis(150)).await;
        paid.append(&mut transition(testbed, &open, "pay").await?);
        sleep(BETWEEN).await;
    }
    let ledger = testbed.ledger.view(round.sale).await?.context("the ledger has no such sale")?;
    for confirmed in &paid {
        let row = ledger.orders.iter().find(|order| order.id == confirmed.id);
        ensure!(
            row.is_some_and(|row| row.status == OrderStatus::Paid),
            "order {} was paid, and is {row:?}",
            confirmed.id
        );
    }
    let expired = ledger.orders.iter().filter(|order| order.status == OrderStatus::Expired).count();
    Ok(Figures::from_iter([
        ("tried".to_owned(), tried.into()),
        ("paid".to_owned(), paid.len().into()),
        ("expired".to_owned(), expired.into()),
    ]))
}

async fn cancel_and_expire(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let mut cancelled = 0;
    for _ in 0..4 {
        let open = rush_expiry(testbed, round, 400).await?;
        cancelled += transition(testbed, &open, "cancel").await?.len();
        sleep(BETWEEN).await;
    }
    Ok(Figures::from_iter([("cancelled".to_owned(), cancelled.into())]))
}

async fn added_stock(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    const UNITS: i64 = 40;
    let path: Uri = format!("/admin/v1/sales/{}/stock", round.sale).parse()?;
    let before = testbed.ledger.view(round.sale).await?.context("the ledger has no such sale")?.total;
    let impatient =
        Client::new(&testbed.cluster.urls, Limits { response: Duration::from_millis(1), ..Limits::default() })?;
    let operator = Caller {
        authorization: Some(testbed.tokens.header(&"operator".parse()?, true)?),
        idempotency_key: Some(HeaderValue::from_static("more")),
        ..Caller::default()
    };
    let body = Bytes::from(format!(r#"{{"add":{UNITS}}}"#));
    let mut lost = 0;
    for node in 0..4 {
        let first = impatient.send(node, Method::POST, &path, &operator, body.clone()).await;
        lost += u64::from(first.is_err());
    }
    for node in 0..2 {
        let reply = testbed.client.send(node, Method::POST, &path, &operator, body.clone()).await?;
        ensure!(reply.status == 200, "adding stock: {} {}", reply.status, String::from_utf8_lossy(&reply.body));
    }
    let after = testbed.ledger.view(round.sale).await?.context("the ledger has no such sale")?.total;
    ensure!(after == before + UNITS, "{UNITS} units were added to {before}, and there are {after}");
    Ok(Figures::from_iter([("answers_lost".to_owned(), lost.into()), ("added".to_owned(), UNITS.into())]))
}
