//! Orders as messages in Kafka, and the same orders as rows.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use seckill::domain::{OrderId, OrderMessage, SaleId};
use seckill::kafka::{Delivery, Producer, Record, message};
use sqlx::{Connection, PgConnection, Row};
use time::OffsetDateTime;

use super::testbed::TestBed;

/// Rows of one statement.
const ROWS: usize = 500;

/// The rows of the ledger, by the same kind of statement and into the same columns, without any read before.
const INSERT: &str = "
    INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, status, reason, pool, generation,
                        request_key, fingerprint, created_at, pay_before)
    SELECT due.id, $1, due.user_id, due.quantity, 100 * due.quantity, due.status, due.reason, 'redis', due.generation,
           due.request_key, due.fingerprint, clock.now, clock.now + interval '15 minutes'
    FROM unnest($2::uuid[], $3::text[], $4::int[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::text[])
        AS due (id, user_id, quantity, status, reason, generation, request_key, fingerprint)
    CROSS JOIN (SELECT clock_timestamp() AS now) AS clock";

/// The orders of a sale, each of another buyer.
pub fn orders(sale: SaleId, count: u32) -> Vec<OrderMessage> {
    let now = OffsetDateTime::now_utc();
    let seconds = u32::try_from(now.unix_timestamp()).unwrap_or(0);
    let accepted_ms = i64::try_from(now.unix_timestamp_nanos() / 1_000_000).unwrap_or(0);
    let order = |n: u64| OrderMessage {
        // Spread like random numbers.
        id: OrderId::mint(sale, seconds, n.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        sale,
        user: format!("buyer-{n}").parse().unwrap_or_else(|_| unreachable!("letters and digits")),
        quantity: 1,
        generation: 1,
        accepted_ms,
        request: None,
    };
    (0..u64::from(count)).map(order).collect()
}

/// Hands them to Kafka, and returns when it has confirmed all of them.
pub async fn publish(testbed: &TestBed, producer: &Producer, orders: &[OrderMessage]) -> anyhow::Result<()> {
    let topic: Arc<str> = testbed.cluster.settings.kafka.topic.as_str().into();
    let record = |order: &OrderMessage| {
        let (topic, payload) = (Arc::clone(&topic), message::encode(order));
        Record { topic, key: order.user.as_str().into(), payload, headers: Vec::new() }
    };
    let mut deliveries: Vec<_> = orders.iter().map(|order| Delivery::new(record(order), ())).collect();
    producer.send(&mut deliveries).await?;
    producer.await_acks(&mut deliveries).await?;
    Ok(())
}

/// No rows, and nothing left to write from before: the same start for everybody.
pub async fn empty(testbed: &TestBed) -> anyhow::Result<()> {
    sqlx::query("TRUNCATE orders").execute(testbed.ledger.pool()).await?;
    sqlx::query("CHECKPOINT").execute(testbed.ledger.pool()).await?;
    Ok(())
}

/// Rows per second by bulk inserts on one connection.
pub async fn insert(testbed: &TestBed, sale: SaleId, orders: &[OrderMessage]) -> anyhow::Result<f64> {
    let mut connection = testbed.ledger.pool().acquire().await?;
    connection.ping().await?;
    let begin = Instant::now();
    for part in orders.chunks(ROWS) {
        insert_part(&mut connection, sale, part).await?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let row = sqlx::query("SELECT count(*) FROM orders").fetch_one(&mut *connection).await?;
    let rows: i64 = row.try_get(0)?;
    anyhow::ensure!(usize::try_from(rows).context("a negative count")? == orders.len(), "{rows} rows");
    Ok(orders.len() as f64 / seconds)
}

async fn insert_part(connection: &mut PgConnection, sale: SaleId, part: &[OrderMessage]) -> anyhow::Result<()> {
    let nothing = || vec![None::<&str>; part.len()];
    sqlx::query(INSERT)
        .bind(sale.get())
        .bind(part.iter().map(|order| order.id.uuid()).collect::<Vec<_>>())
        .bind(part.iter().map(|order| order.user.as_str()).collect::<Vec<_>>())
        .bind(part.iter().map(|order| order.quantity.cast_signed()).collect::<Vec<_>>())
        .bind(vec!["created"; part.len()])
        .bind(nothing())
        .bind(part.iter().map(|order| order.generation).collect::<Vec<_>>())
        .bind(nothing())
        .bind(nothing())
        .execute(connection)
        .await?;
    Ok(())
}
