//! A PostgreSQL that is away, hangs, is slow, cuts its connections, refuses what it need not, or
//! comes back older.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::time::sleep;

use super::ground::Ground;
use super::orders::{moved, rush_expiry};
use super::redis::crash_and_return;
use super::round::{Round, Wish, ms, until};
use super::{Fault, Figures};

/// How long PostgreSQL is away where being away is the fault.
const AWAY: Duration = Duration::from_secs(2);

pub const FAULTS: &[Fault] = &[
    Fault::new("postgres-down", "kill -9 of PostgreSQL, away for 2 s", |g, r| Box::pin(down(g, r))).quick(),
    Fault::new("postgres-paused", "PostgreSQL answers nothing for 2 s", |g, r| Box::pin(paused(g, r))),
    Fault::new("postgres-slow", "PostgreSQL hangs for 300 ms, again and again", |g, r| Box::pin(slow(g, r))),
    Fault::new("postgres-connection-cut", "every connection to PostgreSQL breaks, three times", |g, r| {
        Box::pin(cut(g, r))
    }),
    Fault::new("postgres-replies-dropped", "PostgreSQL commits for 1 s, and nobody learns of it", |g, r| {
        Box::pin(replies_dropped(g, r))
    }),
    Fault::new(
        "postgres-serialization-failures",
        "every third write of the stock cannot be serialized, at once or at COMMIT",
        |g, r| Box::pin(serialization_failures(g, r)),
    )
    .with(Wish { reserve: 300, ..Wish::PLENTY }),
    Fault::new(
        "postgres-restored-from-an-older-copy",
        "PostgreSQL comes back as it was before the last rebuild of the sale",
        |g, r| Box::pin(restored(g, r)),
    )
    .with(Wish { stock: 1_500, buyers: 2_400, window: Duration::from_secs(12), ..Wish::USUAL }),
];

/// Own triggers refuse, as the service asks for a level at which PostgreSQL itself rarely would. The sequences count
/// what is rolled back, too.
const REFUSE: &str = "
    CREATE SEQUENCE drill_before;
    CREATE SEQUENCE drill_after;
    CREATE FUNCTION drill_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('drill_' || lower(TG_WHEN)) % 3 = 0 THEN
            RAISE EXCEPTION 'could not serialize access: the drill says so' USING ERRCODE = 'serialization_failure';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER drill_at_once BEFORE UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION drill_refuse();
    CREATE CONSTRAINT TRIGGER drill_at_commit AFTER UPDATE ON stock DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION drill_refuse();";
const COUNT: &str = "SELECT a.last_value / 3, b.last_value / 3 FROM drill_before a, drill_after b";
const REFUSE_NO_MORE: &str = "DROP FUNCTION drill_refuse CASCADE; DROP SEQUENCE drill_before, drill_after";

/// What was accepted while the ledger was away: Redis sells on without it.
fn meanwhile(round: &Round, before: u64) -> Figures {
    Figures::from_iter([("accepted_meanwhile".to_owned(), (round.accepted() - before).into())])
}

async fn down(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    let before = round.accepted();
    ground.sandbox().postgres().kill()?;
    sleep(AWAY).await;
    let figures = meanwhile(round, before);
    ground.sandbox().postgres().restart().await?;
    Ok(figures)
}

async fn paused(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    let before = round.accepted();
    ground.sandbox().postgres().pause()?;
    sleep(AWAY).await;
    ground.sandbox().postgres().resume()?;
    Ok(meanwhile(round, before))
}

async fn slow(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    let before = round.accepted();
    let proxy = ground.sandbox().postgres().proxy()?;
    for _ in 0..5 {
        proxy.stall().await;
        sleep(Duration::from_millis(300)).await;
        proxy.heal().await;
        sleep(Duration::from_millis(100)).await;
    }
    Ok(meanwhile(round, before))
}

async fn cut(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    let before = round.accepted();
    let proxy = ground.sandbox().postgres().proxy()?;
    for _ in 0..3 {
        proxy.cut().await;
        sleep(Duration::from_millis(300)).await;
        proxy.heal().await;
        sleep(Duration::from_millis(300)).await;
    }
    Ok(meanwhile(round, before))
}

async fn replies_dropped(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    let before = round.accepted();
    let proxy = ground.sandbox().postgres().proxy()?;
    proxy.drop_replies().await;
    sleep(Duration::from_secs(1)).await;
    proxy.heal().await;
    Ok(meanwhile(round, before))
}

/// Purchases come by Redis and out of the reserve, orders are cancelled and expire: all who write the stock are refused.
async fn serialization_failures(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    sqlx::raw_sql(REFUSE).execute(ground.ledger.pool()).await?;
    let done = everybody_writes(ground, round).await;
    let (at_once, at_commit): (i64, i64) = sqlx::query_as(COUNT).fetch_one(ground.ledger.pool()).await?;
    sqlx::raw_sql(REFUSE_NO_MORE).execute(ground.ledger.pool()).await?;
    let cancelled = done?;
    ensure!(at_once > 0 && at_commit > 0, "refused were {at_once} writes at once and {at_commit} at COMMIT");
    Ok(Figures::from_iter([
        ("cancelled".to_owned(), cancelled.into()),
        ("refused_at_once".to_owned(), at_once.into()),
        ("refused_at_commit".to_owned(), at_commit.into()),
    ]))
}

async fn everybody_writes(ground: &Ground, round: &Round) -> anyhow::Result<usize> {
    let proxy = ground.sandbox().redis().proxy()?;
    let mut cancelled = 0;
    for _ in 0..3 {
        // One of the two nodes, which sells the reserve now, and the relay.
        proxy.cut().await;
        round.until_sold(50).await?;
        let open = rush_expiry(ground, round, 400).await?;
        cancelled += moved(ground, &open, "cancel").await?.len();
        proxy.heal().await;
        round.until_sold(50).await?;
    }
    Ok(cancelled)
}

/// The rows that are gone come back from the claims in Redis, and what is still in Kafka is of a life that the ledger
/// has not heard of.
async fn restored(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    let data = ground.sandbox().postgres().data()?.to_owned();
    let older = data.with_extension("as-it-was");
    ground.sandbox().postgres().stop().await?;
    // With its owner, which is not always the one who copies.
    let copied = Command::new("cp").arg("-a").args([&data, &older]).status()?;
    ensure!(copied.success(), "cp: {copied}");
    ground.sandbox().postgres().restart().await?;
    crash_and_return(ground, round).await?;
    round.until_sold(50).await?;
    let rows = async || Ok::<_, anyhow::Error>(ground.ledger.view(round.sale).await?.map_or(0, |it| it.orders.len()));
    let generation = async || ground.ledger.stock(round.sale).await.ok().flatten().map_or(0, |row| row.generation);
    let (had, before) = (rows().await?, generation().await);
    ground.sandbox().postgres().kill()?;
    fs::remove_dir_all(&data)?;
    fs::rename(&older, &data)?;
    ground.sandbox().postgres().restart().await?;
    let since = Instant::now();
    let left = rows().await?;
    ensure!(left < had && generation().await < before, "the copy is no older: {left} of {had} rows");
    until("the sale is rebuilt", async || generation().await > before).await?;
    round.until_sold(5).await?;
    Ok(Figures::from_iter([
        ("rows_gone".to_owned(), (had - left).into()),
        ("selling_again_ms".to_owned(), ms(since.elapsed())),
    ]))
}
