//! `accepted`: purchases that the service accepts, over its script alone.
//!
//! Only the node runs besides the servers: the relay is stopped, so nothing but purchases reaches Redis. Accepted is
//! what Redis has sold, and the answers must agree with it.

use std::sync::Arc;

use anyhow::ensure;
use seckill::domain::SaleId;

use super::crowd::Crowd;
use super::evalsha::Evalsha;
use super::machine;
use super::plan::Plan;
use super::report::{Figure, Goal, Kind, Report};
use super::rounds::{self, Discarded, Measured};
use super::testbed::TestBed;
use super::wrk::Saturation;

/// Purchases in flight: each waits for the disk, and one write serves all that wait.
pub const CONNECTIONS: usize = 256;

/// More than one run serves, so that nobody buys twice.
const BUYERS_PER_CORE: usize = 100_000;

const RATIO: Figure = Figure {
    part: "accepted",
    key: "accepted_over_evalsha",
    about: "accepted purchases over the script by redis-benchmark",
    unit: "",
    goal: Goal::AtLeast { reach: 0.8, aim: 1.2 },
    kind: Kind::Ratio,
};

const fn side(key: &'static str, about: &'static str) -> Figure {
    Figure { part: "accepted", key, about, unit: "purchases/s", goal: Goal::None, kind: Kind::Side }
}

/// A node, a generator, and a new sale for each run.
pub struct Purchases {
    pub testbed: TestBed,
    pub crowd: Arc<Crowd>,
    generator: Saturation,
    units: u32,
}

impl Purchases {
    pub async fn prepare() -> anyhow::Result<Self> {
        let testbed = TestBed::with(&[]).await?;
        let buyers = machine::cores() * BUYERS_PER_CORE;
        let crowd = Arc::new(Crowd::sign(&testbed.tokens, buyers)?);
        let generator =
            Saturation::new(Arc::clone(&crowd), CONNECTIONS, machine::cores(), testbed.cluster.sandbox.folder())?;
        // One more than there are buyers: it never sells out.
        Ok(Self { testbed, crowd, generator, units: u32::try_from(buyers + 1)? })
    }

    pub async fn sale(&self) -> anyhow::Result<SaleId> {
        self.testbed.open(self.units).await
    }

    /// Purchases that Redis accepted, per second.
    pub async fn run(&self, seconds: f64) -> Measured<f64> {
        let sale = self.sale().await?;
        let seen = self.generator.run(self.testbed.node, sale, seconds).await?;
        let sold = u64::from(self.sold(sale).await?);
        self.clear(sale).await?;
        if seen.refused > 0 {
            return Ok(Err(Discarded("refused purchases".to_owned())));
        }
        // The generator hangs up on those that are in flight at the end; they may be sold, and do not count.
        ensure!(sold >= seen.answers, "{} were answered, and Redis sold {sold}", seen.answers);
        ensure!(sold <= seen.answers + CONNECTIONS as u64, "{} were answered, and Redis sold {sold}", seen.answers);
        Ok(Ok(seen.per_second()))
    }

    pub async fn sold(&self, sale: SaleId) -> anyhow::Result<u32> {
        self.testbed.sold_in_redis(sale, self.units).await
    }

    pub async fn clear(&self, sale: SaleId) -> anyhow::Result<()> {
        self.testbed.close_sale(sale).await?;
        self.testbed.forget_keys(sale).await
    }
}

pub async fn measure(plan: Plan, report: &mut Report) -> anyhow::Result<()> {
    let purchases = Purchases::prepare().await?;
    let mut evalsha = Evalsha::new(&purchases.testbed, plan.seconds).await?;
    let _ = purchases.run(plan.seconds).await?;
    let round = async |baseline_first: bool| -> Measured<(f64, f64)> {
        let early = if baseline_first { Some(evalsha.run(&purchases.testbed).await?) } else { None };
        let accepted = purchases.run(plan.seconds).await?;
        let alone = match early {
            Some(early) => early,
            None => evalsha.run(&purchases.testbed).await?,
        };
        Ok(accepted.map(|accepted| (accepted, alone)))
    };
    let show = |(accepted, alone): &(f64, f64)| {
        format!("service {accepted:.0} purchases/s, script {alone:.0} purchases/s, ratio {:.3}", accepted / alone)
    };
    let taken = rounds::take("accepted", plan.rounds, round, show).await?;
    report.note_discarded("accepted", &taken);
    report.add(RATIO, taken.kept.iter().map(|(accepted, alone)| accepted / alone));
    report.add(side("accepted_per_s", "accepted purchases"), taken.kept.iter().map(|pair| pair.0));
    report.add(side("evalsha_per_s", "the script by redis-benchmark"), taken.kept.iter().map(|pair| pair.1));
    Ok(())
}
