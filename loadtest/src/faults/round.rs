//! One round of the drill: a sale under load, into which a fault is injected.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use drive::admin_client::{AdminClient, NewSale, OpenSale};
use drive::demand::{Demand, Plan, Shape};
use drive::record::ClientRecord;
use drive::virtual_users::{Pacing, VirtualUsers};
use seckill::domain::SaleId;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::testbed::TestBed;

/// How long a test waits for anything that must happen.
pub const TIMEOUT: Duration = Duration::from_secs(40);
/// From the call to the start of the sale. Nodes poll for new sales once a second; a busy machine may need the longer
/// one.
const NOTICES: [Duration; 2] = [Duration::from_millis(2_200), Duration::from_secs(8)];

/// The sale that a fault needs.
#[derive(Clone, Copy)]
pub struct SaleSpec {
    pub stock: u32,
    pub reserve: u32,
    pub buyers: u32,
    pub window: Duration,
    /// Share of buyers that send an Idempotency-Key.
    pub keyed: f64,
}

impl SaleSpec {
    /// More buyers than units, so that whatever stays unsold is a fault.
    pub const USUAL: Self = Self { stock: 500, reserve: 0, buyers: 800, window: Duration::from_secs(5), keyed: 0.1 };
    /// More units than buyers: where orders close, units come back when their buyers have gone.
    pub const PLENTY: Self = Self { stock: 5_000, ..Self::USUAL };
    pub const WITH_RESERVE: Self = Self { reserve: 60, ..Self::USUAL };
}

/// A sale that is under way.
pub struct Round {
    pub sale: SaleId,
    /// Units that the sale began with outside of Redis.
    pub reserve: u32,
    pub start: Instant,
    pub plan: Arc<Plan>,
    users: Arc<VirtualUsers>,
    buying: JoinHandle<()>,
}

impl Round {
    /// Opens a sale and starts its buyers, and returns once they buy.
    pub async fn begin(testbed: &TestBed, sale: &SaleSpec, seed: u64) -> anyhow::Result<Self> {
        let demand = Demand {
            buyers: sale.buyers,
            window: sale.window,
            shape: Shape::Steady,
            early: 0.0,
            keyed: sale.keyed,
            seed,
            ..Demand::default()
        };
        let plan = Arc::new(Plan::draw(&demand, &testbed.tokens)?);
        let OpenSale { id, start } = match open(testbed, sale, NOTICES[0]).await {
            Ok(open_sale) => open_sale,
            Err(_) => open(testbed, sale, NOTICES[1]).await?,
        };
        let pacing = Pacing { in_flight: 64, follow_up_timeout: TIMEOUT, ..Pacing::default() };
        let users = VirtualUsers::new(Arc::clone(&testbed.client), Arc::clone(&plan), id, start, pacing)?;
        let buyers = Arc::clone(&users);
        let buying = tokio::spawn(async move { buyers.run().await });
        let round = Self { sale: id, reserve: sale.reserve, start, plan, users, buying };
        round.until_sold(50).await?;
        Ok(round)
    }

    /// Purchases that were answered 202 so far.
    pub fn accepted(&self) -> u64 {
        self.users.recorder.tally.accepted.load(Relaxed)
    }

    /// Waits until so many more purchases are accepted than now, and says for how long.
    pub async fn until_sold(&self, more: u64) -> anyhow::Result<Duration> {
        let (from, begun) = (self.accepted(), Instant::now());
        while self.accepted() < from + more {
            if begun.elapsed() > TIMEOUT {
                bail!("nothing is sold any more: {} accepted, {more} more expected", self.accepted());
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(begun.elapsed())
    }

    /// Waits until every buyer has a decision or gave up, and returns their answers.
    pub async fn end(self) -> anyhow::Result<(SaleId, Arc<Plan>, ClientRecord)> {
        self.buying.await.context("the buyers")?;
        let record = self.users.into_record().context("a buyer is still running")?;
        Ok((self.sale, self.plan, record))
    }
}

async fn open(testbed: &TestBed, sale: &SaleSpec, notice: Duration) -> anyhow::Result<OpenSale> {
    let new_sale = NewSale {
        name: "drill".to_owned(),
        stock: sale.stock,
        reserve: Some(sale.reserve),
        max_quantity: 1,
        starts_in: notice,
        lasts: Duration::from_secs(24 * 3600),
    };
    AdminClient::new(&testbed.client, &testbed.tokens)?.open(&new_sale).await
}

/// Waits until a condition holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !holds().await {
        if begun.elapsed() > TIMEOUT {
            bail!("timed out after {TIMEOUT:?}, waiting until {what}");
        }
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Whole milliseconds, for a figure.
pub fn ms(duration: Duration) -> serde_json::Value {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).into()
}
