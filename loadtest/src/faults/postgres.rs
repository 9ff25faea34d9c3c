//! A PostgreSQL that is away, hangs, is slow, or cuts its connections.

use std::time::Duration;

use tokio::time::sleep;

use super::ground::Ground;
use super::round::Round;
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
];

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
