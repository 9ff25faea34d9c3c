//! PostgreSQL is down, hangs, is slow, drops connections, fails to serialize, or comes back from an older copy.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use seckill::domain::{OrderStatus, Pool};
use tokio::time::sleep;

use super::fault::{Fault, Figures};
use super::orders::{rush_expiry, transition};
use super::redis::crash_and_return;
use super::repair::remove_triggers;
use super::round::{Round, SaleSpec, ms, until};
use super::testbed::TestBed;

/// How long PostgreSQL is down where that is the fault.
const DOWN_TIME: Duration = Duration::from_secs(2);

pub const FAULTS: &[Fault] = &[
    Fault::new("postgres-down", "kill -9 of PostgreSQL, down for 2 s", |g, r| Box::pin(down(g, r))).quick(),
    Fault::new("postgres-paused", "PostgreSQL answers nothing for 2 s", |g, r| Box::pin(paused(g, r))),
    Fault::new("postgres-slow", "PostgreSQL hangs for 300 ms, again and again", |g, r| Box::pin(slow(g, r))),
    Fault::new("postgres-connection-cut", "every connection to PostgreSQL breaks, three times", |g, r| {
        Box::pin(cut(g, r))
    }),
    Fault::new("postgres-replies-dropped", "PostgreSQL commits for 1 s, and its responses are lost", |g, r| {
        Box::pin(replies_dropped(g, r))
    }),
    Fault::new(
        "postgres-serialization-failures",
        "every third write of the stock cannot be serialized, at once or at COMMIT",
        |g, r| Box::pin(serialization_failures(g, r)),
    )
    .with(SaleSpec { reserve: 300, ..SaleSpec::PLENTY }),
    Fault::new(
        "postgres-restored-from-an-older-copy",
        "PostgreSQL comes back as it was before the last rebuild of the sale",
        |g, r| Box::pin(restored(g, r)),
    )
    .with(SaleSpec { stock: 1_500, buyers: 2_400, window: Duration::from_secs(12), ..SaleSpec::USUAL }),
];

/// Triggers of the drill raise the error, since PostgreSQL itself rarely does at the service's isolation level. The
/// sequences also count what is rolled back.
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

/// Purchases accepted while the ledger was down: Redis sells on without it.
fn meanwhile(round: &Round, before: u64) -> Figures {
    Figures::from_iter([("accepted_meanwhile".to_owned(), (round.accepted() - before).into())])
}

async fn down(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let before = round.accepted();
    testbed.sandbox().postgres().kill()?;
    sleep(DOWN_TIME).await;
    let figures = meanwhile(round, before);
    testbed.sandbox().postgres().restart().await?;
    Ok(figures)
}

async fn paused(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let before = round.accepted();
    testbed.sandbox().postgres().pause()?;
    sleep(DOWN_TIME).await;
    testbed.sandbox().postgres().resume()?;
    Ok(meanwhile(round, before))
}

async fn slow(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let before = round.accepted();
    let proxy = testbed.sandbox().postgres().proxy()?;
    for _ in 0..5 {
        proxy.stall().await;
        sleep(Duration::from_millis(300)).await;
        proxy.heal().await;
        sleep(Duration::from_millis(100)).await;
    }
    Ok(meanwhile(round, before))
}

async fn cut(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let before = round.accepted();
    let proxy = testbed.sandbox().postgres().proxy()?;
    for _ in 0..3 {
        proxy.cut().await;
        sleep(Duration::from_millis(300)).await;
        proxy.heal().await;
        sleep(Duration::from_millis(300)).await;
    }
    Ok(meanwhile(round, before))
}

async fn replies_dropped(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let before = round.accepted();
    let proxy = testbed.sandbox().postgres().proxy()?;
    proxy.drop_responses().await;
    sleep(Duration::from_secs(1)).await;
    proxy.heal().await;
    Ok(meanwhile(round, before))
}

/// Purchases come by Redis and out of the reserve, orders are cancelled and expire: all who write the stock are
/// refused.
async fn serialization_failures(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    sqlx::raw_sql(REFUSE).execute(testbed.ledger.pool()).await?;
    let cancelled = everybody_writes(testbed, round).await;
    let counted = sqlx::query_as::<_, (i64, i64)>(COUNT).fetch_one(testbed.ledger.pool()).await;
    remove_triggers(&testbed.ledger).await?;
    let (cancelled, (at_once, at_commit)) = (cancelled?, counted?);
    let ledger = testbed.ledger.view(round.sale).await?.context("the ledger has no such sale")?;
    let out_of_the_reserve = ledger.orders.iter().filter(|order| order.pool == Pool::Reserve).count();
    let expired = ledger.orders.iter().filter(|order| order.status == OrderStatus::Expired).count();
    let figures = [
        ("cancelled", cancelled),
        ("expired", expired),
        ("out_of_the_reserve", out_of_the_reserve),
        ("refused_at_once", usize::try_from(at_once)?),
        ("refused_at_commit", usize::try_from(at_commit)?),
    ];
    ensure!(figures.iter().all(|(_, count)| *count > 0), "not everything was tried: {figures:?}");
    Ok(figures.into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect())
}

async fn everybody_writes(testbed: &TestBed, round: &Round) -> anyhow::Result<usize> {
    let proxy = testbed.sandbox().redis().proxy()?;
    let mut cancelled = 0;
    for _ in 0..3 {
        // One of the two nodes, which sells the reserve now, and the relay.
        proxy.cut().await;
        round.until_sold(50).await?;
        let open = rush_expiry(testbed, round, 400).await?;
        cancelled += transition(testbed, &open, "cancel").await?.len();
        proxy.heal().await;
        round.until_sold(50).await?;
    }
    Ok(cancelled)
}

/// The lost rows come back from the claims in Redis, and the messages in Kafka are of a generation that the restored
/// ledger does not know.
async fn restored(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let data = testbed.sandbox().postgres().data()?.to_owned();
    let (older, newer) = (data.with_extension("as-it-was"), data.with_extension("to-be-lost"));
    let in_the_copy = testbed.generation(round.sale).await?;
    testbed.sandbox().postgres().stop().await?;
    // With its owner, which is not always the one who copies.
    let copied = Command::new("cp").arg("-a").args([&data, &older]).status()?;
    ensure!(copied.success(), "cp: {copied}");
    testbed.sandbox().postgres().restart().await?;
    crash_and_return(testbed, round).await?;
    round.until_sold(50).await?;
    let (had, before) = (rows(testbed, round).await?, testbed.generation(round.sale).await?);
    testbed.sandbox().postgres().stop().await?;
    fs::rename(&data, &newer)?;
    fs::rename(&older, &data)?;
    testbed.sandbox().postgres().restart().await?;
    let since = Instant::now();
    let left = rows(testbed, round).await?;
    ensure!(in_the_copy < before && left < had, "the copy is no older: {left} of {had} rows");
    until("the sale is rebuilt", async || testbed.generation(round.sale).await.is_ok_and(|now| now > before)).await?;
    round.until_sold(5).await?;
    fs::remove_dir_all(&newer)?;
    Ok(Figures::from_iter([
        ("rows_gone".to_owned(), (had - left).into()),
        ("selling_again_ms".to_owned(), ms(since.elapsed())),
    ]))
}

async fn rows(testbed: &TestBed, round: &Round) -> anyhow::Result<usize> {
    Ok(testbed.ledger.view(round.sale).await?.context("the ledger has no such sale")?.orders.len())
}
