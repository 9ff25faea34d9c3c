//! `drain`: a backlog in Kafka becomes rows, over a bulk insert of the same rows.
//!
//! The consumer has joined its group and is paused while the backlog is written. The clock starts when it resumes, a
//! little before it receives the first message, and stops when the ledger has taken the last unit.

use std::time::{Duration, Instant};

use seckill::kafka::Producer;
use tokio::time::sleep;

use super::backlog;
use super::plan::Plan;
use super::report::{Figure, Goal, Kind, Report};
use super::rounds::{self, Measured};
use super::testbed::{TestBed, until};

/// How often the ledger is polled, and so how exact the end is.
const POLL_INTERVAL: Duration = Duration::from_millis(3);

/// The share of a round that goes first, to warm everything up.
const WARM_UP: u32 = 10;

const RATIO: Figure = Figure {
    part: "drain",
    key: "persisted_over_sql",
    about: "orders persisted from a backlog over a bulk insert of the same rows",
    unit: "",
    goal: Goal::AtLeast { reach: 0.5, aim: 0.8 },
    kind: Kind::Ratio,
};

const PERSISTED: Figure = Figure {
    part: "drain",
    key: "persisted_per_s",
    about: "orders persisted from a backlog",
    unit: "orders/s",
    goal: Goal::AtLeast { reach: 20_000.0, aim: 20_000.0 },
    kind: Kind::Figure,
};

const INSERTED: Figure = Figure {
    part: "drain",
    key: "sql_per_s",
    about: "bulk insert, 500 rows a statement",
    unit: "rows/s",
    goal: Goal::None,
    kind: Kind::Side,
};

pub async fn measure(plan: Plan, report: &mut Report) -> anyhow::Result<()> {
    let testbed = TestBed::with(&["consume"]).await?;
    let producer = Producer::new(&testbed.cluster.settings.kafka)?;
    // The first drain waits until the consumer has its partitions.
    drain(&testbed, &producer, plan.orders / WARM_UP).await?;
    insert(&testbed, plan.orders / WARM_UP).await?;
    let round = async |baseline_first: bool| -> Measured<(f64, f64)> {
        let early = if baseline_first { Some(insert(&testbed, plan.orders).await?) } else { None };
        let persisted = drain(&testbed, &producer, plan.orders).await?;
        let inserted = match early {
            Some(early) => early,
            None => insert(&testbed, plan.orders).await?,
        };
        Ok(Ok((persisted, inserted)))
    };
    let show = |(persisted, inserted): &(f64, f64)| {
        format!("consumer {persisted:.0} orders/s, insert {inserted:.0} orders/s, ratio {:.3}", persisted / inserted)
    };
    let taken = rounds::take("drain", plan.rounds, round, show).await?;
    report.add(RATIO, taken.kept.iter().map(|(persisted, inserted)| persisted / inserted));
    report.add(PERSISTED, taken.kept.iter().map(|pair| pair.0));
    report.add(INSERTED, taken.kept.iter().map(|pair| pair.1));
    Ok(())
}

/// Orders per second that the consumer writes.
async fn drain(testbed: &TestBed, producer: &Producer, count: u32) -> anyhow::Result<f64> {
    let sale = testbed.open(count).await?;
    let orders = backlog::orders(sale, count);
    backlog::empty(testbed).await?;
    let consumer = testbed.cluster.part("consume")?;
    consumer.pause()?;
    backlog::publish(testbed, producer, &orders).await?;
    let begin = Instant::now();
    consumer.resume()?;
    while testbed.sold_in_ledger(sale).await? < count {
        sleep(POLL_INTERVAL).await;
        if begin.elapsed() > Duration::from_secs(120) {
            testbed.cluster.check()?;
            anyhow::bail!("the backlog was not drained in time:\n{}", consumer.log_tail());
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(testbed.ledger.pool()).await?;
    anyhow::ensure!(rows == i64::from(count), "{rows} rows of {count} orders");
    // Orders whose offsets are not committed yet would be consumed again in the next round.
    until("the offsets are committed", async || {
        let kafka = testbed.cluster.settings.kafka.clone();
        let left = tokio::task::spawn_blocking(move || seckill::kafka::lag::backlog(&kafka)).await;
        left.is_ok_and(|left| left.is_ok_and(|left| left == 0))
    })
    .await?;
    Ok(f64::from(count) / seconds)
}

/// Rows per second of the same orders.
async fn insert(testbed: &TestBed, count: u32) -> anyhow::Result<f64> {
    let sale = testbed.open(count).await?;
    let orders = backlog::orders(sale, count);
    backlog::empty(testbed).await?;
    backlog::insert(testbed, sale, &orders).await
}
