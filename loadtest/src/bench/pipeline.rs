//! `pipeline` and `redis-memory`: every role runs, on real Kafka. Purchases are sent and counted once they are rows,
//! and so is the memory that a sold unit takes in Redis.

use std::sync::Arc;
use std::time::Instant;

use anyhow::ensure;

use super::crowd::Crowd;
use super::evalsha::Evalsha;
use super::load::{self, Until};
use super::plan::Plan;
use super::report::{Figure, Goal, Kind, Report};
use super::rounds::{self, Discarded, Measured};
use super::testbed::{TestBed, until};

const CONNECTIONS: usize = super::accepted::CONNECTIONS;

/// The share of a round that goes first, to warm everything up.
const WARM_UP: u32 = 10;

const RATIO: Figure = Figure {
    part: "pipeline",
    key: "pipeline_over_evalsha",
    about: "accepted and persisted over the script by redis-benchmark",
    unit: "",
    goal: Goal::AtLeast { reach: 0.25, aim: 0.5 },
    kind: Kind::Ratio,
};

const BYTES: Figure = Figure {
    part: "redis-memory",
    key: "redis_bytes_per_unit",
    about: "Redis memory for each sold unit, once its order is a row",
    unit: "bytes",
    goal: Goal::None,
    kind: Kind::Figure,
};

const fn side(key: &'static str, about: &'static str, unit: &'static str) -> Figure {
    Figure { part: "pipeline", key, about, unit, goal: Goal::None, kind: Kind::Side }
}

/// How one sale went.
struct Sold {
    /// Purchases accepted and persisted, per second from the first one sent to the last row.
    persisted: f64,
    /// Per second from the first one sent to the last answer.
    accepted: f64,
    bytes_per_unit: f64,
}

pub async fn measure(plan: Plan, report: &mut Report) -> anyhow::Result<()> {
    let testbed = TestBed::with(&["relay", "consume", "reconcile"]).await?;
    let crowd = Arc::new(Crowd::sign(&testbed.tokens, plan.orders as usize)?);
    let mut evalsha = Evalsha::new(&testbed, plan.seconds).await?;
    let _ = sell(&testbed, &crowd, plan.orders / WARM_UP).await?;
    let round = async |baseline_first: bool| -> Measured<(Sold, f64)> {
        let early = if baseline_first { Some(evalsha.run(&testbed).await?) } else { None };
        let sold = sell(&testbed, &crowd, plan.orders).await?;
        let alone = match early {
            Some(early) => early,
            None => evalsha.run(&testbed).await?,
        };
        Ok(sold.map(|sold| (sold, alone)))
    };
    let show = |(sold, alone): &(Sold, f64)| {
        let Sold { persisted, accepted, bytes_per_unit } = sold;
        format!(
            "service {persisted:.0} orders/s, script {alone:.0} orders/s, ratio {:.3}; {accepted:.0}/s until the last \
             answer; {bytes_per_unit:.0} bytes per unit",
            persisted / alone
        )
    };
    let taken = rounds::take("pipeline, redis-memory", plan.rounds, round, show).await?;
    report.note_discarded("pipeline, redis-memory", &taken);
    let each = |figure: fn(&Sold) -> f64| taken.kept.iter().map(move |(sold, _)| figure(sold));
    report.add(RATIO, taken.kept.iter().map(|(sold, alone)| sold.persisted / alone));
    report.add(BYTES, each(|sold| sold.bytes_per_unit));
    report.add(side("pipeline_per_s", "accepted and persisted", "orders/s"), each(|sold| sold.persisted));
    report.add(
        side("pipeline_answered_per_s", "the same, until the last answer only", "purchases/s"),
        each(|sold| sold.accepted),
    );
    report.add(
        side("pipeline_evalsha_per_s", "the script by redis-benchmark", "purchases/s"),
        taken.kept.iter().map(|pair| pair.1),
    );
    Ok(())
}

/// Sells units, one to each buyer, and waits until each is a row. Discarded if a buyer was refused.
async fn sell(testbed: &TestBed, crowd: &Arc<Crowd>, count: u32) -> Measured<Sold> {
    // One unit is left over, so that the sold-out flag stays out of it.
    let units = count + 1;
    let sale = testbed.open(units).await?;
    let bytes_before = testbed.redis_bytes().await?;
    let begin = Instant::now();
    let ran = load::closed(testbed.node, crowd, sale, CONNECTIONS, 0, Until::Count(count as usize)).await?;
    let answered = begin.elapsed();
    let sold = testbed.sold_in_redis(sale, units).await?;
    until("every order is a row", async || testbed.sold_in_ledger(sale).await.is_ok_and(|rows| rows >= sold)).await?;
    let persisted = begin.elapsed();
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'created'")
        .bind(sale.get())
        .fetch_one(testbed.ledger.pool())
        .await?;
    until("the outbox is empty", async || testbed.outbox(sale).await.is_ok_and(|left| left == 0)).await?;
    let bytes = testbed.redis_bytes().await?.saturating_sub(bytes_before);
    testbed.close_sale(sale).await?;
    if ran.refused > 0 {
        return Ok(Err(Discarded("refused purchases".to_owned())));
    }
    // Nobody was refused, so load is no explanation: the service broke a promise.
    ensure!(sold == count, "{ran:?}, and Redis sold {sold}");
    ensure!(rows == i64::from(count), "{rows} rows of {count} orders");
    Ok(Ok(Sold {
        persisted: f64::from(count) / persisted.as_secs_f64(),
        accepted: f64::from(count) / answered.as_secs_f64(),
        bytes_per_unit: bytes as f64 / f64::from(count),
    }))
}
