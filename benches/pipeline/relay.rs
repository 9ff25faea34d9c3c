//! How fast a full outbox reaches Kafka.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use sandbox::Sandbox;
use seckill::domain::SaleId;
use seckill::kafka::{Delivery, Producer, Record, message};
use seckill::outbox::{Metrics, RelayFlushStatus, Worker};
use seckill::stock::{MAX_BATCH, Stock, keys};
use secrecy::ExposeSecret;
use tokio_util::sync::CancellationToken;

use super::figures::Report;
use super::shop;

const BASELINE: &str = "same messages produced from memory";
const UNIT: &str = "orders/s";
/// How often the outbox is polled, and so how exact the end is.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

pub async fn measure(sandbox: &Sandbox, rounds: usize, orders: usize, report: &mut Report) -> anyhow::Result<()> {
    let settings = shop::settings(sandbox, "bench_relay").await?;
    let mut redis = redis::Client::open(settings.redis.url.expose_secret())?.get_multiplexed_async_connection().await?;
    let stock = Stock::connect(&settings.redis)?;
    let producer = Producer::new(&settings.kafka)?;
    let metrics = Metrics::registered(&prometheus::Registry::new())?;
    let topic: Arc<str> = settings.kafka.topic.as_str().into();
    // The first record waits for the producer to find its broker.
    produce(&producer, &topic, SaleId::new(1)?, 1).await?;

    for round in 1_i32.. {
        if usize::try_from(round)? > rounds {
            break;
        }
        let sale = shop::open_in_redis(&stock, round).await?;
        report.note(BASELINE, UNIT, produce(&producer, &topic, sale, orders).await?);

        fill(&stock, sale, orders).await?;
        let worker = Worker::new(
            &settings,
            sale,
            &format!("bench-{round}"),
            producer.clone(),
            metrics.clone(),
            RelayFlushStatus::default(),
        )?;
        let (stop, acknowledging, begin) =
            (CancellationToken::new(), metrics.ack_seconds.get_sample_sum(), Instant::now());
        let until = stop.clone();
        let running = tokio::spawn(async move { worker.run(&until).await });
        while length(&mut redis, sale).await? > 0 {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let seconds = begin.elapsed().as_secs_f64();
        report.note_against(BASELINE, "relay", UNIT, orders as f64 / seconds);
        let acknowledged = metrics.ack_seconds.get_sample_sum() - acknowledging;
        report.note("relay: time spent on removing what Kafka has", "%", 100.0 * acknowledged / seconds);
        stop.cancel();
        running.await?;
        shop::remove_from_redis(&mut redis, sale).await?;
    }
    Ok(())
}

/// Sells that many units, as buyers would: their orders wait in the outbox.
async fn fill(stock: &Stock, sale: SaleId, orders: usize) -> anyhow::Result<()> {
    let purchases: Vec<_> = (0..orders as u64).map(|n| shop::purchase(sale, n)).collect();
    for batch in purchases.chunks(MAX_BATCH) {
        stock.purchase_batch(sale, batch).await?;
    }
    Ok(())
}

async fn length(redis: &mut MultiplexedConnection, sale: SaleId) -> anyhow::Result<u64> {
    Ok(redis::cmd("XLEN").arg(keys::outbox(sale)).query_async(redis).await?)
}

/// Orders per second when nothing has to be read first.
async fn produce(producer: &Producer, topic: &Arc<str>, sale: SaleId, orders: usize) -> anyhow::Result<f64> {
    let record = |order| {
        let payload = message::encode(&order);
        Record { topic: Arc::clone(topic), key: order.user.as_str().into(), payload, headers: Vec::new() }
    };
    let mut deliveries: Vec<_> =
        shop::orders(sale, orders).into_iter().map(|order| Delivery::new(record(order), ())).collect();
    let begin = Instant::now();
    producer.send(&mut deliveries).await?;
    producer.await_acks(&mut deliveries).await?;
    Ok(orders as f64 / begin.elapsed().as_secs_f64())
}
