//! How many purchases a second one sale's script decides, every write on disk before it is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use drive::evalsha::Evalsha;
use sandbox::Sandbox;
use seckill::domain::{Outcome, Purchase, SaleId};
use seckill::stock::Stock;
use secrecy::ExposeSecret;
use tokio::task::JoinSet;

use super::figures::Report;
use super::shop;

const BASELINE: &str = "script by redis-benchmark -c 50 -P 1";
const UNIT: &str = "purchases/s";
const TIME: Duration = Duration::from_millis(1500);
/// Calls of redis-benchmark, which takes a count and not a duration.
const CALLS: u32 = 20_000;

const BATCHES: [usize; 4] = [1, 16, 64, 256];
const CALLERS: [usize; 2] = [64, 512];

pub async fn measure(sandbox: &Sandbox, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let settings = shop::settings(sandbox, "bench_stock").await?;
    let url = settings.redis.url.expose_secret();
    let mut redis = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let stock = Stock::connect(&settings.redis)?;
    let benchmark = Evalsha::load(url, &mut redis).await;
    if let Err(reason) = &benchmark {
        super::say(format_args!("  no baseline for the script: {reason:#}"));
    }

    let mut sales = 1..;
    // Each measurement has a sale of its own, so that none searches larger tables than another.
    let mut next = || SaleId::new(sales.next().unwrap_or(1)).map(SaleId::get);
    for _ in 0..rounds {
        if let Ok(benchmark) = &benchmark {
            let sale = shop::open_in_redis(&stock, next()?).await?;
            report.note(BASELINE, UNIT, benchmark.run(sale, CALLS).await?);
            let left = stock.probe(sale).await?.context("a cold sale")?.remaining;
            // Two random numbers may be the same now and then.
            ensure!(shop::PLENTY - left > CALLS - CALLS / 1000, "redis-benchmark bought only {}", shop::PLENTY - left);
            shop::remove_from_redis(&mut redis, sale).await?;
        }
        for size in BATCHES {
            let sale = shop::open_in_redis(&stock, next()?).await?;
            let sold = in_batches(&stock, sale, size).await?;
            report.note_against(BASELINE, &format!("script, {size} a call"), UNIT, sold);
            shop::remove_from_redis(&mut redis, sale).await?;
        }
        for callers in CALLERS {
            let sale = shop::open_in_redis(&stock, next()?).await?;
            let sold = by_callers(&stock, sale, callers).await?;
            report.note_against(BASELINE, &format!("group commit, {callers} callers"), UNIT, sold);
            shop::remove_from_redis(&mut redis, sale).await?;
        }
    }
    Ok(())
}

/// One call after the other.
async fn in_batches(stock: &Stock, sale: SaleId, size: usize) -> anyhow::Result<f64> {
    let (begin, mut sold) = (Instant::now(), 0);
    while begin.elapsed() < TIME {
        let batch: Vec<Purchase> = (sold..sold + size as u64).map(|n| shop::purchase(sale, n)).collect();
        let answers = stock.purchase_batch(sale, &batch).await?;
        ensure!(answers.outcomes.iter().all(is_accepted), "{:?}", answers.outcomes);
        sold += size as u64;
    }
    Ok(sold as f64 / begin.elapsed().as_secs_f64())
}

/// Many buyers at once, each with one purchase at a time.
async fn by_callers(stock: &Stock, sale: SaleId, callers: usize) -> anyhow::Result<f64> {
    let (begin, numbers) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let mut buyers = JoinSet::new();
    for _ in 0..callers {
        let (stock, numbers) = (stock.clone(), Arc::clone(&numbers));
        buyers.spawn(async move {
            let mut sold = 0;
            while begin.elapsed() < TIME {
                let purchase = shop::purchase(sale, numbers.fetch_add(1, Ordering::Relaxed));
                let answer = stock.purchase(sale, purchase).await;
                ensure!(is_accepted(&answer.outcome), "{answer:?}");
                sold += 1;
            }
            Ok(sold)
        });
    }
    let mut sold = 0;
    while let Some(one) = buyers.join_next().await {
        sold += one??;
    }
    Ok(f64::from(sold) / begin.elapsed().as_secs_f64())
}

fn is_accepted(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Accepted(_))
}
