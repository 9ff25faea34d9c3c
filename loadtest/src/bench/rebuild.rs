//! `rebuild`: how long a sale cannot sell after a restart of Redis, with many claims to restore.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use seckill::domain::SaleId;
use tokio::time::sleep;

use super::crowd::Crowd;
use super::load::{self, Until};
use super::plan::Plan;
use super::report::{Figure, Goal, Kind, Report};
use super::rounds::{self, Discarded, Measured};
use super::testbed::{TestBed, until};

/// How often a buyer tries to buy, and so how exact the end is.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const TIMEOUT: Duration = Duration::from_secs(60);

const REBUILD: Figure = Figure {
    part: "rebuild",
    key: "rebuild_ms",
    about: "from the restart of Redis to the next accepted purchase",
    unit: "ms",
    goal: Goal::AtMost { reach: 3000.0, aim: 1000.0 },
    kind: Kind::Figure,
};

const ANSWERING: Figure = Figure {
    part: "rebuild",
    key: "redis_answers_ms",
    about: "of that, until Redis answers",
    unit: "ms",
    goal: Goal::None,
    kind: Kind::Side,
};

pub async fn measure(plan: Plan, report: &mut Report) -> anyhow::Result<()> {
    let mut testbed = TestBed::with(&["relay", "consume", "reconcile"]).await?;
    let crowd = Arc::new(Crowd::sign(&testbed.tokens, plan.claims as usize)?);
    let sale = testbed.open(plan.claims + 100_000).await?;
    let count = Until::Count(plan.claims as usize);
    let ran = load::closed(testbed.node, &crowd, sale, super::accepted::CONNECTIONS, 0, count).await?;
    ensure!(ran.accepted == u64::from(plan.claims), "{ran:?}");
    let (mut sold, mut asked) = (plan.claims, 0);
    let mut round = async |_: bool| -> Measured<(f64, f64)> {
        settle(&testbed, sale, sold).await?;
        let times = restart(&testbed, sale, &mut asked).await?;
        sold += 1;
        // The restart closed the connection of this program.
        testbed.redis = redis::Client::open(redis_url(&testbed))?.get_multiplexed_async_connection().await?;
        Ok(times)
    };
    // A warm-up: the first rebuild also prepares statements and loads code.
    let _ = round(false).await?;
    let show = |(all, redis): &(f64, f64)| format!("selling after {all:.0} ms, Redis answered after {redis:.0} ms");
    let taken = rounds::take("rebuild", plan.rounds, round, show).await?;
    report.note_discarded("rebuild", &taken);
    report.add(REBUILD, taken.kept.iter().map(|times| times.0));
    report.add(ANSWERING, taken.kept.iter().map(|times| times.1));
    Ok(())
}

fn redis_url(testbed: &TestBed) -> String {
    secrecy::ExposeSecret::expose_secret(&testbed.cluster.settings.redis.url).to_owned()
}

/// Waits until every order is a row and the outbox is empty, so that all rounds start alike.
async fn settle(testbed: &TestBed, sale: SaleId, sold: u32) -> anyhow::Result<()> {
    until("every order is a row", async || testbed.sold_in_ledger(sale).await.is_ok_and(|rows| rows >= sold)).await?;
    until("the outbox is empty", async || testbed.outbox(sale).await.is_ok_and(|left| left == 0)).await
}

/// Kills Redis and starts it again. Milliseconds from then on to the next accepted purchase, and to the first answer of
/// Redis. Discarded if a buyer got any other answer than 503 in between.
async fn restart(testbed: &TestBed, sale: SaleId, asked: &mut usize) -> Measured<(f64, f64)> {
    let redis = testbed.cluster.sandbox.redis();
    redis.kill()?;
    let begin = Instant::now();
    redis.restart().await?;
    let answering = begin.elapsed();
    let mut other = None;
    loop {
        // Another buyer each time: an earlier purchase may have an unknown outcome, and its buyer would get that
        // answer.
        *asked += 1;
        let (status, body) = testbed.buy(sale, *asked).await?;
        match status {
            202 => break,
            503 => {}
            _ => other = Some(Discarded(format!("answers of status {status}"))),
        }
        let last = || format!("the sale does not sell after the restart: {status} {}", String::from_utf8_lossy(&body));
        ensure!(begin.elapsed() < TIMEOUT, last());
        sleep(POLL_INTERVAL).await;
    }
    let times = (begin.elapsed().as_secs_f64() * 1e3, answering.as_secs_f64() * 1e3);
    Ok(other.map_or(Ok(times), Err))
}
