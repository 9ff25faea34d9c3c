//! `sold-out`: sold-out answers of a node, over a handler that does nothing.
//!
//! Every request brings a signed token of a buyer of its own, from an address of its own, and goes through all
//! limiters. The node's metrics say afterwards what it answered: only `sold_out` counts.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::demo::say;
use anyhow::ensure;
use sandbox::Process;
use seckill::domain::SaleId;

use super::crowd::Crowd;
use super::load;
use super::machine;
use super::plan::Plan;
use super::report::{Figure, Goal, Kind, Report};
use super::rounds::{self, Discarded, Measured};
use super::testbed::TestBed;
use super::wrk::{Saturation, Seen};

/// Enough connections that no worker ever idles.
pub const CONNECTIONS: usize = 64;

/// Buyers who send purchases in turn. Each may send 5 a second, so together they may send 300,000 a second.
pub const BUYERS: usize = 60_000;

const RATIO: Figure = Figure {
    part: "sold-out",
    key: "flag_over_noop",
    about: "sold-out answers over a no-op handler",
    unit: "",
    goal: Goal::AtLeast { reach: 0.85, aim: 0.95 },
    kind: Kind::Ratio,
};

const fn side(key: &'static str, about: &'static str) -> Figure {
    Figure { part: "sold-out", key, about, unit: "answers/s", goal: Goal::None, kind: Kind::Side }
}

/// The node with a sale that is sold out, and the handler that does nothing.
pub struct Refusals {
    pub testbed: TestBed,
    pub sale: SaleId,
    pub crowd: Arc<Crowd>,
    pub no_op: SocketAddr,
    _no_op: Process,
}

impl Refusals {
    pub async fn prepare(buyers: usize) -> anyhow::Result<Self> {
        let testbed = TestBed::with(&[]).await?;
        let workers = machine::cores().to_string();
        let (process, no_op) = testbed.helper("no-op", &[&workers]).await?;
        let sale = testbed.sold_out().await?;
        let crowd = Arc::new(Crowd::sign(&testbed.tokens, buyers)?);
        let refusals = Self { testbed, sale, crowd, no_op, _no_op: process };
        refusals.compare().await?;
        Ok(refusals)
    }

    /// Both sides answer the same request with as many bytes, or the ratio would say something about bytes.
    async fn compare(&self) -> anyhow::Result<()> {
        let mut request = Vec::new();
        self.crowd.write(&mut request, self.sale, 0);
        let node = load::answer_length(self.testbed.node, &request).await?;
        let no_op = load::answer_length(self.no_op, &request).await?;
        ensure!(node == no_op && node.0 == 409, "status and bytes: the node {node:?}, the no-op {no_op:?}");
        Ok(())
    }

    /// One run against the node, discarded if it answered anything but `sold_out`.
    pub async fn node(&self, generator: &Saturation, seconds: f64) -> Measured<Seen> {
        let before = self.testbed.answers().await?;
        let seen = generator.run(self.testbed.node, self.sale, seconds).await?;
        let answers = self.testbed.answers().await?;
        Ok(answers.only("sold_out", seen.answers, &before).and_then(|()| all_refused(seen)))
    }

    /// One run against the handler that does nothing.
    pub async fn nothing(&self, generator: &Saturation, seconds: f64) -> Measured<Seen> {
        Ok(all_refused(generator.run(self.no_op, self.sale, seconds).await?))
    }
}

/// Both sides answer 409 and nothing else.
fn all_refused(seen: Seen) -> Result<Seen, Discarded> {
    if seen.refused == seen.answers { Ok(seen) } else { Err(Discarded("answers other than 409".to_owned())) }
}

pub async fn measure(plan: Plan, report: &mut Report) -> anyhow::Result<()> {
    let refusals = Refusals::prepare(BUYERS).await?;
    let folder = refusals.testbed.cluster.sandbox.folder();
    let generator = Saturation::new(Arc::clone(&refusals.crowd), CONNECTIONS, machine::cores(), folder)?;

    let (server, address) = refusals.testbed.helper("canned-answer", &[]).await?;
    let ceiling = generator.run(address, refusals.sale, plan.seconds).await?.per_second();
    drop(server);
    say(format_args!("  the generator alone: {ceiling:.0} answers/s"))?;
    report.add(side("generator_ceiling_per_s", "the generator, answered without HTTP"), [ceiling]);

    // A warm-up for connections, buckets and branch predictors.
    let _ = refusals.nothing(&generator, plan.seconds).await?;
    let _ = refusals.node(&generator, plan.seconds).await?;
    let round = async |no_op_first: bool| -> Measured<(f64, f64)> {
        let early = if no_op_first { Some(refusals.nothing(&generator, plan.seconds).await?) } else { None };
        let node = refusals.node(&generator, plan.seconds).await?;
        let no_op = match early {
            Some(early) => early,
            None => refusals.nothing(&generator, plan.seconds).await?,
        };
        Ok(node.and_then(|node| Ok((node.per_second(), no_op?.per_second()))))
    };
    let show = |(node, no_op): &(f64, f64)| {
        format!("node {node:.0} answers/s, no-op {no_op:.0} answers/s, ratio {:.3}", node / no_op)
    };
    let taken = rounds::take("sold-out", plan.rounds, round, show).await?;
    report.note_discarded("sold-out", &taken);
    report.add(RATIO, taken.kept.iter().map(|(node, no_op)| node / no_op));
    report.add(side("refused_per_s", "sold-out answers"), taken.kept.iter().map(|pair| pair.0));
    report.add(side("noop_per_s", "no-op handler"), taken.kept.iter().map(|pair| pair.1));
    Ok(())
}
