//! Roles of the service that die, stop in their tracks, or come in numbers.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use seckill::sandbox::Process;
use seckill::stock::keys;
use tokio::time::sleep;

use super::ground::{Ground, PARTS};
use super::redis::crash_and_return;
use super::round::{Round, ms, until};
use super::{Fault, Figures};

pub const FAULTS: &[Fault] = &[
    Fault::new("serve-kill", "kill -9 of one node of two, twice", |g, r| Box::pin(serve_kill(g, r))).quick(),
    Fault::new("relay-kill", "kill -9 of the only relay, twice", |g, r| Box::pin(twice(g, r, "relay"))),
    Fault::new("consumer-kill", "kill -9 of the only consumer, twice", |g, r| Box::pin(twice(g, r, "consume"))),
    Fault::new("auditor-kill", "kill -9 of the auditor in the middle of a rebuild", |g, r| {
        Box::pin(auditor_kill(g, r))
    }),
    Fault::new(
        "auditor-paused-past-its-lease",
        "an auditor stops in mid-rebuild, another takes over, the first goes on",
        |g, r| Box::pin(auditor_paused(g, r)),
    ),
    Fault::new("three-auditors", "three auditors see one restarted Redis", |g, r| Box::pin(three_auditors(g, r))),
    Fault::new("everything-killed-at-once", "kill -9 of every role and every server", |g, r| {
        Box::pin(everything(g, r))
    }),
];

async fn serve_kill(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    for _ in 0..2 {
        ground.stage.part("node-1")?.kill()?;
        round.until_sold(20).await?;
        ground.stage.restart("node-1")?;
        ground.stage.wait_until_ready().await?;
    }
    Ok(Figures::new())
}

async fn twice(ground: &mut Ground, round: &Round, part: &str) -> anyhow::Result<Figures> {
    for _ in 0..2 {
        ground.kill_and_restart(part)?;
        round.until_sold(50).await?;
    }
    Ok(Figures::new())
}

/// Redis is restarted while the consumer stands still: the auditor has frozen the sale, and waits half-way for the
/// ledger to catch up.
async fn until_a_rebuild_waits(ground: &Ground, round: &Round) -> anyhow::Result<()> {
    ground.stage.part("consume")?.pause()?;
    round.until_sold(20).await?;
    ground.sandbox().redis().kill()?;
    ground.sandbox().redis().restart().await?;
    let mut redis = ground.redis().await?;
    until("the rebuild has frozen the sale", async || {
        let frozen: Option<u8> = redis.hget(keys::sale(round.sale), "frozen").await.unwrap_or_default();
        frozen == Some(1)
    })
    .await
}

async fn auditor_kill(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    until_a_rebuild_waits(ground, round).await?;
    let begun = Instant::now();
    ground.kill_and_restart("reconcile")?;
    ground.stage.part("consume")?.resume()?;
    round.until_sold(5).await?;
    Ok(Figures::from_iter([("selling_again_ms".to_owned(), ms(begun.elapsed()))]))
}

async fn auditor_paused(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    until_a_rebuild_waits(ground, round).await?;
    let begun = Instant::now();
    ground.stage.part("reconcile")?.pause()?;
    ground.stage.join("reconcile-2", "reconcile")?;
    ground.stage.part("consume")?.resume()?;
    // Only the second one can have done it, and only after the lease of the first.
    round.until_sold(5).await?;
    let took = ms(begun.elapsed());
    ground.stage.part("reconcile")?.resume()?;
    round.until_sold(20).await?;
    // Time for the first one to write what it must not: it looks five times a second.
    sleep(Duration::from_secs(1)).await;
    ground.stage.leave("reconcile-2")?;
    Ok(Figures::from_iter([("selling_again_ms".to_owned(), took)]))
}

async fn three_auditors(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    ground.stage.join("reconcile-2", "reconcile")?;
    ground.stage.join("reconcile-3", "reconcile")?;
    let before = ground.ledger.stock(round.sale).await?.map_or(0, |row| row.generation);
    let mut figures = crash_and_return(ground, round).await?;
    round.until_sold(50).await?;
    let after = ground.ledger.stock(round.sale).await?.map_or(0, |row| row.generation);
    figures.insert("rebuilds".to_owned(), (after - before).into());
    ground.stage.leave("reconcile-2")?;
    ground.stage.leave("reconcile-3")?;
    Ok(figures)
}

async fn everything(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    for part in PARTS {
        ground.stage.part(part).and_then(Process::kill)?;
    }
    let sandbox = ground.sandbox();
    sandbox.redis().kill()?;
    sandbox.postgres().kill()?;
    sandbox.kafka().kill()?;
    let begun = Instant::now();
    sandbox.postgres().restart().await?;
    sandbox.redis().restart().await?;
    sandbox.kafka().restart().await?;
    for part in PARTS {
        ground.stage.restart(part)?;
    }
    ground.stage.wait_until_ready().await?;
    round.until_sold(5).await?;
    Ok(Figures::from_iter([("selling_again_ms".to_owned(), ms(begun.elapsed()))]))
}
