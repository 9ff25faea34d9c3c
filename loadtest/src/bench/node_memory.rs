//! `node-memory`: how much the memory of a node grows with very many users.
//!
//! Each user sends one purchase, with a token and an address of its own, and the answer is that the sale is sold out.
//! Nothing is timed here, so several requests travel in one write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::demo::say;
use anyhow::{Context, ensure};
use seckill::domain::SaleId;
use tokio::task::JoinSet;

use super::crowd;
use super::load::Connection;
use super::machine;
use super::plan::Plan;
use super::report::{Figure, Goal, Kind, Report};
use super::testbed::TestBed;

const CONNECTIONS: u32 = 32;
/// Requests in one write.
const TOGETHER: u32 = 16;
/// Far above what millions of users need.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// Users before the first measurement: connections, buffers and code are in memory by then.
const WARM_UP: u32 = 20_000;

const GROWTH: Figure = Figure {
    part: "node-memory",
    key: "node_growth_mib",
    about: "growth of a node after many distinct users",
    unit: "MiB",
    goal: Goal::AtMost { reach: 64.0, aim: 32.0 },
    kind: Kind::Figure,
};

pub async fn measure(plan: Plan, report: &mut Report) -> anyhow::Result<()> {
    let testbed = Arc::new(TestBed::with(&[]).await?);
    let sale = testbed.sold_out().await?;
    let pid = testbed.cluster.part("node-0")?.pid();
    ask(&testbed, sale, 0, WARM_UP).await?;
    let before = machine::resident_kib(pid)?;
    let counted = testbed.answers().await?;
    ask(&testbed, sale, WARM_UP, plan.users).await?;
    let after = machine::resident_kib(pid)?;
    let checked = testbed.answers().await?.only("sold_out", u64::from(plan.users), &counted);
    ensure!(checked.is_ok(), "not every answer was sold_out");
    let growth = (after as f64 - before as f64) / 1024.0;
    say(format_args!("  node-memory: {growth:.1} MiB more after {} users ({} MiB in all)", plan.users, after / 1024))?;
    report.add(GROWTH, [growth]);
    let side = |key, about, unit| Figure { part: "node-memory", key, about, unit, goal: Goal::None, kind: Kind::Side };
    report.add(side("node_users", "distinct users", "users"), [f64::from(plan.users)]);
    report.add(side("node_resident_mib", "resident memory of the node afterwards", "MiB"), [after as f64 / 1024.0]);
    Ok(())
}

/// `count` users from number `first` on ask once each. Their tokens are signed on the way.
async fn ask(testbed: &Arc<TestBed>, sale: SaleId, first: u32, count: u32) -> anyhow::Result<()> {
    let (next, mut asking) = (Arc::new(AtomicU32::new(0)), JoinSet::new());
    for _ in 0..CONNECTIONS {
        let (testbed, next) = (Arc::clone(testbed), Arc::clone(&next));
        asking.spawn(async move {
            let (mut connection, mut requests) = (Connection::open(testbed.node).await?, Vec::new());
            loop {
                let begin = next.fetch_add(TOGETHER, Ordering::Relaxed);
                let users = begin..(begin + TOGETHER).min(count);
                if users.is_empty() {
                    return anyhow::Ok(());
                }
                requests.clear();
                for n in users.clone() {
                    let n = (first + n) as usize;
                    crowd::write_request(&mut requests, sale, &crowd::token(&testbed.tokens, n)?, n);
                }
                connection.send(&requests).await?;
                for _ in users {
                    let (status, _) = connection.answer().await?;
                    ensure!(status == 409, "{status} instead of 409");
                }
            }
        });
    }
    let all = async {
        while let Some(one) = asking.join_next().await {
            one??;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(TIMEOUT, all).await.context("no answer in time")?
}
