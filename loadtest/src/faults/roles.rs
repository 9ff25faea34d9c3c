//! Roles of the service that are killed, paused, or run several times.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::demo::Program;
use anyhow::{Context, ensure};
use drive::client::Caller;
use hyper::Method;
use hyper::body::Bytes;
use redis::AsyncCommands;
use sandbox::{Process, Timing};
use seckill::stock::keys;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::sleep;

use super::crashes::{Route, WARM, hold, restart_redis};
use super::fault::{Fault, Figures};
use super::redis::crash_and_return;
use super::round::{Round, ms, until};
use super::testbed::{PARTS, TestBed};

pub const FAULTS: &[Fault] = &[
    Fault::new("serve-kill", "kill -9 of one node of two, twice", |g, r| Box::pin(serve_kill(g, r))).quick(),
    Fault::new("relay-kill", "kill -9 of the only relay, twice", |g, r| Box::pin(twice(g, r, "relay"))),
    Fault::new("consumer-kill", "kill -9 of the only consumer, twice", |g, r| Box::pin(twice(g, r, "consume"))),
    Fault::new("reconciler-kill", "kill -9 of the reconciler in the middle of a rebuild", |g, r| {
        Box::pin(reconciler_kill(g, r))
    }),
    Fault::new(
        "reconciler-paused-past-its-lease",
        "a reconciler pauses between snapshot and warm, another takes over, the first resumes",
        |g, r| Box::pin(reconciler_paused(g, r)),
    ),
    Fault::new("three-reconcilers", "three reconcilers see one restarted Redis", |g, r| {
        Box::pin(three_reconcilers(g, r))
    }),
    Fault::new("one-clock-two-seconds-off", "the clock of one node is two seconds ahead, then two behind", |g, r| {
        Box::pin(clock_off(g, r))
    }),
    Fault::new("everything-killed-at-once", "kill -9 of every role and every server", |g, r| {
        Box::pin(everything(g, r))
    }),
];

async fn serve_kill(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    for _ in 0..2 {
        testbed.cluster.part("node-1")?.kill()?;
        round.until_sold(20).await?;
        testbed.cluster.restart("node-1")?;
        testbed.cluster.wait_until_ready().await?;
    }
    Ok(Figures::new())
}

async fn twice(testbed: &mut TestBed, round: &Round, part: &str) -> anyhow::Result<Figures> {
    for _ in 0..2 {
        testbed.kill_and_restart(part)?;
        round.until_sold(50).await?;
    }
    Ok(Figures::new())
}

/// Redis is restarted while the consumer is paused: the reconciler has frozen the sale, and waits for the ledger to
/// catch up.
async fn until_a_rebuild_waits(testbed: &TestBed, round: &Round) -> anyhow::Result<()> {
    testbed.cluster.part("consume")?.pause()?;
    round.until_sold(20).await?;
    testbed.sandbox().redis().kill()?;
    testbed.sandbox().redis().restart().await?;
    let mut redis = testbed.redis().await?;
    until("the rebuild has frozen the sale", async || {
        let frozen: Option<u8> = redis.hget(keys::sale(round.sale), "frozen").await.unwrap_or_default();
        frozen == Some(1)
    })
    .await
}

async fn reconciler_kill(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    until_a_rebuild_waits(testbed, round).await?;
    let begun = Instant::now();
    testbed.kill_and_restart("reconcile")?;
    testbed.cluster.part("consume")?.resume()?;
    round.until_sold(5).await?;
    Ok(Figures::from_iter([("selling_again_ms".to_owned(), ms(begun.elapsed()))]))
}

/// The first reconciler has read what it will warm Redis with, and is paused with the request in flight. When the
/// request arrives, another reconciler has rebuilt the sale, and the sale has sold units.
async fn reconciler_paused(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let warm = (Route::SecondRedis, WARM, Timing::Before);
    let (held, _) = hold(testbed, round, warm, |g, r| Box::pin(restart_redis(g, r))).await?;
    let begun = Instant::now();
    testbed.cluster.part("reconcile")?.pause()?;
    testbed.cluster.add("reconcile-2", "reconcile")?;
    // Only the second one can have done it, and only after the lease of the first.
    round.until_sold(5).await?;
    let took = ms(begun.elapsed());
    let before = testbed.generation(round.sale).await?;
    held.resume();
    testbed.cluster.part("reconcile")?.resume()?;
    round.until_sold(20).await?;
    // Time for the first one to write what it must not: it runs five rounds a second.
    sleep(Duration::from_secs(1)).await;
    let after = testbed.generation(round.sale).await?;
    ensure!(before == after, "the sale was rebuilt once more: the late request had an effect");
    testbed.cluster.remove("reconcile-2")?;
    Ok(Figures::from_iter([("selling_again_ms".to_owned(), took)]))
}

async fn three_reconcilers(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    testbed.cluster.add("reconcile-2", "reconcile")?;
    testbed.cluster.add("reconcile-3", "reconcile")?;
    let before = testbed.generation(round.sale).await?;
    let mut figures = crash_and_return(testbed, round).await?;
    round.until_sold(50).await?;
    let after = testbed.generation(round.sale).await?;
    figures.insert("rebuilds".to_owned(), (after - before).into());
    testbed.cluster.remove("reconcile-2")?;
    testbed.cluster.remove("reconcile-3")?;
    Ok(figures)
}

/// Where systems keep the library that gives a process another time.
const FAKETIME: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib64/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
];

async fn clock_off(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let library = FAKETIME.into_iter().find(|file| Path::new(file).is_file());
    let library = library.context("libfaketime is not installed: run `make setup`")?;
    for offset in ["+2s", "-2s"] {
        let usual = testbed.cluster.program();
        let words = [format!("LD_PRELOAD={library}"), format!("FAKETIME={offset}"), "DONT_FAKE_MONOTONIC=1".to_owned()];
        let command = usual.path.display().to_string();
        let leading_args = words.into_iter().chain([command]).chain(usual.leading_args.clone()).collect();
        testbed.cluster.restart_as("node-1", &Program { path: "/usr/bin/env".into(), leading_args })?;
        testbed.cluster.wait_until_ready().await?;
        let apart = (clock_of(testbed, round, 1).await? - clock_of(testbed, round, 0).await?).abs();
        ensure!(apart.as_seconds_f64() > 1.5, "the clocks are only {apart} apart");
        round.until_sold(50).await?;
    }
    testbed.cluster.restart("node-1")?;
    testbed.cluster.wait_until_ready().await?;
    Ok(Figures::new())
}

/// What time a node believes it is.
async fn clock_of(testbed: &TestBed, round: &Round, node: usize) -> anyhow::Result<OffsetDateTime> {
    let path = format!("/api/v1/sales/{}", round.sale).parse()?;
    let reply = testbed.client.send(node, Method::GET, &path, &Caller::default(), Bytes::new()).await?;
    let sale: serde_json::Value = serde_json::from_slice(&reply.body)?;
    let time = sale["server_time"].as_str().context("no server_time")?;
    Ok(OffsetDateTime::parse(time, &Rfc3339)?)
}

async fn everything(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    for part in PARTS {
        testbed.cluster.part(part).and_then(Process::kill)?;
    }
    let sandbox = testbed.sandbox();
    sandbox.redis().kill()?;
    sandbox.postgres().kill()?;
    sandbox.kafka().kill()?;
    let begun = Instant::now();
    sandbox.postgres().restart().await?;
    sandbox.redis().restart().await?;
    sandbox.kafka().restart().await?;
    for part in PARTS {
        testbed.cluster.restart(part)?;
    }
    testbed.cluster.wait_until_ready().await?;
    round.until_sold(5).await?;
    Ok(Figures::from_iter([("selling_again_ms".to_owned(), ms(begun.elapsed()))]))
}
