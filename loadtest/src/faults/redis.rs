//! Redis crashes, hangs, loses its data, or comes back from an older copy.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use redis::AsyncCommands;
use redis::streams::StreamRangeReply;
use seckill::domain::SaleId;
use seckill::stock::keys;
use tokio::time::sleep;

use super::execute::AT_RISK;
use super::fault::{Fault, Figures};
use super::round::{Round, SaleSpec, ms, until};
use super::testbed::TestBed;

/// How long Redis is unavailable where that is the fault.
const DOWN_TIME: Duration = Duration::from_secs(2);
/// The most that `everysec` leaves unsynced.
const UNSYNCED: Duration = Duration::from_secs(2);

pub const FAULTS: &[Fault] = &[
    Fault::new("redis-kill-restart", "kill -9 of Redis, which restarts from its append-only file", |g, r| {
        Box::pin(crash_and_return(g, r))
    })
    .quick(),
    Fault::new("redis-pause", "Redis accepts connections and answers nothing for 2 s", |g, r| Box::pin(pause(g, r))),
    Fault::new(
        "redis-replies-dropped",
        "for 2 s Redis executes commands and its responses to one node and the relay are lost",
        |g, r| Box::pin(replies_dropped(g, r)),
    ),
    Fault::new("redis-script-flush", "Redis forgets its scripts during the sale, five times", |g, r| {
        Box::pin(script_flush(g, r))
    }),
    Fault::new("redis-empty-restart", "Redis restarts without any data", |g, r| Box::pin(empty_restart(g, r)))
        .loses_data(),
    Fault::new("redis-flushall-same-process", "Redis loses all data and keeps running", |g, r| {
        Box::pin(flushall(g, r))
    })
    .loses_data()
    .quick(),
    Fault::new("redis-stale-replica", "Redis restarts with its data of 100 purchases ago", |g, r| {
        Box::pin(stale_replica(g, r))
    })
    .loses_data(),
    Fault::new(
        "redis-everysec-and-the-machine-dies",
        "with appendfsync everysec and a slow disk, the last two seconds of the file are gone",
        |g, r| Box::pin(every_second(g, r)),
    )
    .loses_data(),
    Fault::new(
        "relay-stopped-across-a-rebuild",
        "the relay pauses with orders that it has read, Redis loses all data, the relay resumes",
        |g, r| Box::pin(relay_stopped(g, r)),
    )
    .loses_data(),
    Fault::new("node-cut-off-from-redis", "one node sells from the reserve while the other one sells on", |g, r| {
        Box::pin(node_cut_off(g, r))
    })
    .with(SaleSpec::WITH_RESERVE),
];

/// Kills Redis, starts it on what it has, and measures until somebody buys again.
pub async fn crash_and_return(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let before = testbed.generation(round.sale).await?;
    testbed.sandbox().redis().kill()?;
    come_back(testbed, round, before).await
}

async fn come_back(testbed: &TestBed, round: &Round, before: i64) -> anyhow::Result<Figures> {
    let gone = Instant::now();
    testbed.sandbox().redis().restart().await?;
    let answering = ms(gone.elapsed());
    let mut figures = until_rebuilt(testbed, round, before, gone).await?;
    figures.insert("redis_answers_ms".to_owned(), answering);
    Ok(figures)
}

/// Waits until the sale sells in a new generation. An answer from before the loss may still come after it, so that
/// answers alone do not tell.
async fn until_rebuilt(testbed: &TestBed, round: &Round, before: i64, since: Instant) -> anyhow::Result<Figures> {
    until("the sale is rebuilt", async || testbed.generation(round.sale).await.is_ok_and(|now| now > before)).await?;
    round.until_sold(5).await?;
    Ok(Figures::from_iter([("selling_again_ms".to_owned(), ms(since.elapsed()))]))
}

async fn pause(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    testbed.sandbox().redis().pause()?;
    sleep(DOWN_TIME).await;
    testbed.sandbox().redis().resume()?;
    Ok(Figures::from_iter([("selling_again_ms".to_owned(), ms(round.until_sold(5).await?))]))
}

async fn replies_dropped(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let proxy = testbed.sandbox().redis().proxy()?;
    proxy.drop_responses().await;
    sleep(DOWN_TIME).await;
    proxy.heal().await;
    Ok(Figures::from_iter([("selling_again_ms".to_owned(), ms(round.until_sold(5).await?))]))
}

async fn script_flush(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let mut redis = testbed.redis().await?;
    for _ in 0..5 {
        redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut redis).await?;
        round.until_sold(20).await?;
    }
    Ok(Figures::new())
}

/// What a loss of data took with it.
pub struct Lost {
    /// The generation that it ended.
    pub generation: i64,
    /// The outbox at that instant: orders of which it is not certain that Kafka has them.
    pub waiting: StreamRangeReply,
    at: Instant,
}

impl Lost {
    /// Waits until the sale sells again; the figures hold what was at risk.
    pub async fn until_rebuilt(&self, testbed: &TestBed, round: &Round) -> anyhow::Result<Figures> {
        let mut figures = until_rebuilt(testbed, round, self.generation, self.at).await?;
        figures.insert(AT_RISK.to_owned(), self.waiting.ids.len().into());
        Ok(figures)
    }
}

/// Makes Redis forget everything, and keeps the outbox of the sale as it was at that instant.
pub async fn forget(testbed: &TestBed, sale: SaleId) -> anyhow::Result<Lost> {
    let mut redis = testbed.redis().await?;
    let generation = testbed.generation(sale).await?;
    let mut both = redis::pipe();
    both.atomic().xrange_all(keys::outbox(sale)).cmd("FLUSHALL").arg("SYNC").ignore();
    let (waiting,) = both.query_async(&mut redis).await?;
    Ok(Lost { generation, waiting, at: Instant::now() })
}

async fn empty_restart(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let lost = forget(testbed, round.sale).await?;
    testbed.sandbox().redis().kill()?;
    testbed.sandbox().redis().restart().await?;
    lost.until_rebuilt(testbed, round).await
}

async fn flushall(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    forget(testbed, round.sale).await?.until_rebuilt(testbed, round).await
}

async fn stale_replica(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let file = testbed.sandbox().folder().join("redis").join("appendonlydir");
    let older = testbed.sandbox().folder().join("redis-as-it-was");
    copy(&file, &older)?;
    round.until_sold(100).await?;
    let before = testbed.generation(round.sale).await?;
    let mut redis = testbed.redis().await?;
    // Nothing is accepted between the count and the end.
    redis::cmd("CLIENT").arg("PAUSE").arg(60_000).arg("WRITE").exec_async(&mut redis).await?;
    let at_risk: u64 = redis.xlen(keys::outbox(round.sale)).await?;
    testbed.sandbox().redis().kill()?;
    fs::remove_dir_all(&file)?;
    fs::rename(&older, &file)?;
    let mut figures = come_back(testbed, round, before).await?;
    figures.insert(AT_RISK.to_owned(), at_risk.into());
    Ok(figures)
}

/// With `everysec` a write is answered before it is on disk, and a sync that is still under way holds the next one off
/// for up to two seconds. A process that dies leaves the rest to the kernel; a machine that dies does not.
async fn every_second(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let mut redis = testbed.redis().await?;
    redis::cmd("CONFIG").arg("SET").arg("appendfsync").arg("everysec").exec_async(&mut redis).await?;
    let file = newest(&testbed.sandbox().folder().join("redis").join("appendonlydir"))?;
    let synced = fs::metadata(&file)?.len();
    let before = (testbed.generation(round.sale).await?, round.accepted());
    sleep(UNSYNCED).await;
    let accepted = round.accepted() - before.1;
    // Nothing is accepted between the count and the end.
    redis::cmd("CLIENT").arg("PAUSE").arg(60_000).arg("WRITE").exec_async(&mut redis).await?;
    let at_risk: u64 = redis.xlen(keys::outbox(round.sale)).await?;
    testbed.sandbox().redis().kill()?;
    fs::File::options().write(true).open(&file)?.set_len(synced)?;
    let mut figures = come_back(testbed, round, before.0).await?;
    figures.insert("accepted_in_the_lost_seconds".to_owned(), accepted.into());
    figures.insert(AT_RISK.to_owned(), at_risk.into());
    Ok(figures)
}

/// The file that grows.
fn newest(folder: &Path) -> anyhow::Result<std::path::PathBuf> {
    let files = fs::read_dir(folder)?.map(|file| Ok(file?.path())).collect::<std::io::Result<Vec<_>>>()?;
    let growing = files.into_iter().find(|file| file.to_string_lossy().ends_with(".incr.aof"));
    growing.context("Redis has no file that grows")
}

/// A folder of files. The newest of them may grow meanwhile: Redis reads what is complete of it.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir(to)?;
    for file in fs::read_dir(from).with_context(|| format!("no {}", from.display()))? {
        let file = file?;
        fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}

async fn relay_stopped(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    testbed.cluster.part("relay")?.pause()?;
    round.until_sold(50).await?;
    let figures = forget(testbed, round.sale).await?.until_rebuilt(testbed, round).await?;
    // Now it sends the orders that it had read, which are of an old generation.
    testbed.cluster.part("relay")?.resume()?;
    round.until_sold(20).await?;
    Ok(figures)
}

async fn node_cut_off(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let proxy = testbed.sandbox().redis().proxy()?;
    proxy.cut().await;
    let selling = round.until_sold(50).await?;
    sleep(DOWN_TIME).await;
    let row = testbed.ledger.stock(round.sale).await?.context("the ledger has no such sale")?;
    proxy.heal().await;
    Ok(Figures::from_iter([
        ("50_sold_in_ms".to_owned(), ms(selling)),
        ("sold_from_reserve".to_owned(), (i64::from(round.reserve) - i64::from(row.reserve)).into()),
    ]))
}
