//! How fast a full topic becomes rows.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use seckill::config::Settings;
use seckill::consumer::{Consumer, Fault, Record};
use seckill::domain::{OrderMessage, SaleId};
use seckill::ledger::Ledger;
use seckill::outbox::{self, Letter, Parcel, Publisher, message};
use seckill::reconcile::opening;
use seckill::sandbox::Sandbox;
use seckill::stock::Stock;
use seckill::{app, catalogue::Catalogue};
use sqlx::Connection;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::figures::Report;
use super::shop;

const BASELINE: &str = "bulk insert, 500 rows a statement";
const UNIT: &str = "orders/s";
const ROWS: usize = 500;

/// Far above what a round takes: reached when something is broken.
const PATIENCE: Duration = Duration::from_secs(120);

/// The rows of the ledger, by the same kind of statement, without looking at anything first.
const INSERT: &str = "
    INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, status, pool, generation, created_at, pay_before)
    SELECT due.id, $1, due.user_id, due.quantity, 9900 * due.quantity, 'created', 'redis', due.generation,
           clock.now, clock.now + interval '15 minutes'
    FROM unnest($2::uuid[], $3::text[], $4::int[], $5::bigint[]) AS due (id, user_id, quantity, generation)
    CROSS JOIN (SELECT clock_timestamp() AS now) AS clock";

pub async fn measure(sandbox: &Sandbox, rounds: usize, orders: usize, report: &mut Report) -> anyhow::Result<()> {
    let settings = shop::settings(sandbox, "bench_drain").await?;
    let ledger = app::ledger(&settings).await?;
    let catalogue = Catalogue::load(ledger.pool().clone(), settings.redis.retention()).await?;
    let stock = Stock::connect(&settings.redis)?;

    for round in 0..rounds {
        let sale = catalogue.create(shop::new_sale(shop::PLENTY)).await?.id;
        opening::open(&ledger, &stock, sale).await?;
        let messages = shop::orders(sale, orders);

        empty(&ledger).await?;
        report.note(BASELINE, UNIT, insert(&ledger, sale, &messages).await?);
        empty(&ledger).await?;
        report.note_against(BASELINE, "ledger alone, from memory", UNIT, record(&ledger, &messages).await?);
        empty(&ledger).await?;
        let drained = drain(&settings, round, &ledger, &messages).await?;
        report.note_against(BASELINE, "consumer", UNIT, orders as f64 / drained.seconds);
        report.note("consumer: orders in a batch", "orders", orders as f64 / f64::from(drained.batches));
        report.note("consumer: time that the ledger has a batch", "%", 100.0 * drained.in_ledger / drained.seconds);
    }
    Ok(())
}

/// The same start for everybody: no rows, and nothing left to write from before.
async fn empty(ledger: &Ledger) -> anyhow::Result<()> {
    sqlx::query("TRUNCATE orders").execute(ledger.pool()).await?;
    sqlx::query("CHECKPOINT").execute(ledger.pool()).await?;
    Ok(())
}

async fn insert(ledger: &Ledger, sale: SaleId, messages: &[OrderMessage]) -> anyhow::Result<f64> {
    let mut connection = ledger.pool().acquire().await?;
    connection.ping().await?;
    let begin = Instant::now();
    for part in messages.chunks(ROWS) {
        sqlx::query(INSERT)
            .bind(sale.get())
            .bind(part.iter().map(|order| order.id.uuid()).collect::<Vec<_>>())
            .bind(part.iter().map(|order| order.user.as_str()).collect::<Vec<_>>())
            .bind(part.iter().map(|order| order.quantity.cast_signed()).collect::<Vec<_>>())
            .bind(part.iter().map(|order| order.generation).collect::<Vec<_>>())
            .execute(&mut *connection)
            .await?;
    }
    Ok(messages.len() as f64 / begin.elapsed().as_secs_f64())
}

async fn record(ledger: &Ledger, messages: &[OrderMessage]) -> anyhow::Result<f64> {
    let begin = Instant::now();
    for part in messages.chunks(ROWS) {
        ledger.record(part).await?;
    }
    Ok(messages.len() as f64 / begin.elapsed().as_secs_f64())
}

/// From the first message that came out of Kafka to the commit of the last row.
async fn drain(
    settings: &Settings,
    round: usize,
    ledger: &Ledger,
    messages: &[OrderMessage],
) -> anyhow::Result<Drained> {
    let mut settings = settings.clone();
    settings.kafka.topic = format!("{}.{round}", settings.kafka.topic);
    settings.kafka.group = format!("{}.{round}", settings.kafka.group);
    outbox::topics::ensure(&settings.kafka).await?;
    publish(&settings, messages).await?;

    let timed = Timed { ledger: ledger.clone(), expected: messages.len(), watch: Arc::default() };
    let watch = Arc::clone(&timed.watch);
    let stop = CancellationToken::new();
    let consumer = Consumer::new(&settings, timed, &prometheus::Registry::new())?;
    let running = tokio::spawn(consumer.run(stop.clone()));
    let done = tokio::time::timeout(PATIENCE, watch.done.notified()).await;
    stop.cancel();
    running.await??;
    done.context("the topic was not drained in time")?;
    Ok(watch.read())
}

async fn publish(settings: &Settings, messages: &[OrderMessage]) -> anyhow::Result<()> {
    let publisher = Publisher::new(&settings.kafka)?;
    let topic: Arc<str> = settings.kafka.topic.as_str().into();
    let letter = |order: &OrderMessage| {
        let (topic, payload) = (Arc::clone(&topic), message::encode(order));
        Letter { topic, key: order.user.as_str().into(), payload, headers: Vec::new() }
    };
    let mut parcels: Vec<_> = messages.iter().map(|order| Parcel::new(letter(order), ())).collect();
    publisher.send(&mut parcels).await?;
    publisher.reports(&mut parcels).await?;
    Ok(())
}

/// The ledger, and a look at the clock before the first batch and after the last.
struct Timed {
    ledger: Ledger,
    expected: usize,
    watch: Arc<Watch>,
}

/// How a drain went.
#[derive(Clone, Copy, Default)]
struct Drained {
    /// From the first batch to the last commit.
    seconds: f64,
    /// Of these, seconds in which the ledger had a batch.
    in_ledger: f64,
    batches: u32,
}

#[derive(Default)]
struct Watch {
    state: Mutex<State>,
    done: Notify,
}

#[derive(Default)]
struct State {
    first: Option<Instant>,
    written: usize,
    so_far: Drained,
}

impl Watch {
    fn read(&self) -> Drained {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).so_far
    }

    /// Notes a batch that was written from `begin` until now. True when it was the last one.
    fn note(&self, begin: Instant, orders: usize, expected: usize) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let first = *state.first.get_or_insert(begin);
        state.written += orders;
        state.so_far.batches += 1;
        state.so_far.in_ledger += begin.elapsed().as_secs_f64();
        state.so_far.seconds = first.elapsed().as_secs_f64();
        state.written >= expected
    }
}

impl Record for Timed {
    async fn record(&self, orders: &[OrderMessage]) -> Result<(), Fault> {
        let begin = Instant::now();
        Record::record(&self.ledger, orders).await?;
        if self.watch.note(begin, orders.len(), self.expected) {
            self.watch.done.notify_one();
        }
        Ok(())
    }
}
