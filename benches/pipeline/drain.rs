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
        report.note_against(BASELINE, "consumer", UNIT, drained);
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
async fn drain(settings: &Settings, round: usize, ledger: &Ledger, messages: &[OrderMessage]) -> anyhow::Result<f64> {
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
    let seconds = watch.seconds();
    stop.cancel();
    running.await??;
    done.context("the topic was not drained in time")?;
    Ok(messages.len() as f64 / seconds)
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

#[derive(Default)]
struct Watch {
    state: Mutex<State>,
    done: Notify,
}

#[derive(Default)]
struct State {
    first: Option<Instant>,
    last: Option<Instant>,
    written: usize,
}

impl Watch {
    fn seconds(&self) -> f64 {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.first.zip(state.last).map_or(f64::NAN, |(first, last)| (last - first).as_secs_f64())
    }
}

impl Record for Timed {
    async fn record(&self, orders: &[OrderMessage]) -> Result<(), Fault> {
        let now = Instant::now();
        self.watch.state.lock().unwrap_or_else(PoisonError::into_inner).first.get_or_insert(now);
        Record::record(&self.ledger, orders).await?;
        let mut state = self.watch.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.written += orders.len();
        state.last = Some(Instant::now());
        if state.written >= self.expected {
            self.watch.done.notify_one();
        }
        Ok(())
    }
}
