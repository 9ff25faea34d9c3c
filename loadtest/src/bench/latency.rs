//! `latency`: latency at half of saturation, open loop, beside the handler that does nothing at the same rate.

use std::sync::Arc;

use crate::demo::say;
use anyhow::ensure;

use super::accepted::Purchases;
use super::open_loop::{self, Latencies};
use super::plan::Plan;
use super::report::{Figure, Goal, Kind, Report, median};
use super::rounds::{self, Discarded, Measured};
use super::sold_out::{BUYERS, CONNECTIONS, Refusals};
use super::wrk::Saturation;

/// A round in which even the handler that does nothing takes longer only shows that the machine is busy.
const MOST_NO_OP_MS: f64 = 5.0;

/// Runs at saturation, the median of which is halved: a single one was off by a fifth.
const SATURATIONS: u16 = 3;

/// Seconds of each of them.
const SATURATION_SECONDS: f64 = 2.0;

/// Percentiles of one run, in milliseconds.
#[derive(Clone, Copy)]
struct Tail {
    p50: f64,
    p99: f64,
    p999: f64,
}

impl Tail {
    fn of(latencies: &Latencies) -> Self {
        Self { p50: latencies.ms(0.5), p99: latencies.ms(0.99), p999: latencies.ms(0.999) }
    }
}

/// One side beside the handler that does nothing.
#[derive(Clone, Copy)]
struct Beside {
    tail: Tail,
    no_op: Tail,
}

const fn figure(key: &'static str, about: &'static str, goal: Goal, kind: Kind) -> Figure {
    Figure { part: "latency", key, about, unit: "ms", goal, kind }
}

const fn at_most(ms: f64) -> Goal {
    Goal::AtMost { reach: ms, aim: ms / 2.0 }
}

const REFUSED: Figure =
    figure("refused_over_noop_p99_ms", "refused, p99 above that of the no-op handler", at_most(4.0), Kind::Figure);

const ACCEPTED: Figure =
    figure("accepted_over_noop_p99_ms", "accepted, p99 above that of the no-op handler", at_most(15.0), Kind::Figure);

pub async fn measure(plan: Plan, report: &mut Report) -> anyhow::Result<()> {
    refused(plan, report).await?;
    accepted(plan, report).await
}

/// Half of the rate at which the service saturates: the median of some runs after a warm-up. None if every run was
/// discarded, which the report then says.
async fn half_of_saturation(
    name: &str,
    saturate: impl AsyncFn() -> Measured<f64>,
    report: &mut Report,
) -> anyhow::Result<Option<f64>> {
    let _ = saturate().await?;
    let show = |per_second: &f64| format!("{per_second:.0}/s");
    let taken = rounds::take(name, SATURATIONS, async |_| saturate().await, show).await?;
    report.note_discarded(name, &taken);
    let rate = median(&taken.kept).map(|saturation| saturation / 2.0);
    if let Some(rate) = rate {
        say(format_args!("  {name}: the rate is half of it, {rate:.0}/s"))?;
    }
    Ok(rate)
}

async fn refused(plan: Plan, report: &mut Report) -> anyhow::Result<()> {
    let refusals = Refusals::prepare(BUYERS).await?;
    let generator = Saturation::new(
        Arc::clone(&refusals.crowd),
        CONNECTIONS,
        super::machine::cores(),
        refusals.testbed.cluster.sandbox.folder(),
    )?;
    // A warm-up, as in `sold-out`.
    let _ = refusals.nothing(&generator, plan.seconds).await?;
    let saturate = async || -> Measured<f64> {
        Ok(refusals.node(&generator, SATURATION_SECONDS).await?.map(|seen| seen.per_second()))
    };
    let Some(rate) = half_of_saturation("latency, saturation by refusals", saturate, report).await? else {
        report.add(REFUSED, []);
        return Ok(());
    };
    let side =
        async |server, status| open_loop::run(server, &refusals.crowd, refusals.sale, rate, plan.seconds, status).await;
    let round = async |no_op_first: bool| -> Measured<Beside> {
        let early = if no_op_first { Some(side(refusals.no_op, 409).await?) } else { None };
        let before = refusals.testbed.answers().await?;
        let node = side(refusals.testbed.node, 409).await?;
        let checked = refusals.testbed.answers().await?.only("sold_out", node.count() as u64, &before);
        let no_op = match early {
            Some(early) => early,
            None => side(refusals.no_op, 409).await?,
        };
        Ok(checked.and_then(|()| beside(&node, &no_op)))
    };
    let taken = rounds::take("latency, refused", plan.rounds, round, show).await?;
    report.note_discarded("latency, refused", &taken);
    let each = |of: fn(&Beside) -> f64| taken.kept.iter().map(of);
    report.add(REFUSED, each(|beside| beside.tail.p99 - beside.no_op.p99));
    let shown = |key, about| figure(key, about, Goal::None, Kind::Figure);
    report.add(shown("refused_p50_ms", "refused, p50"), each(|beside| beside.tail.p50));
    report.add(shown("refused_p99_ms", "refused, p99"), each(|beside| beside.tail.p99));
    report.add(shown("refused_p999_ms", "refused, p99.9"), each(|beside| beside.tail.p999));
    report.add(shown("noop_p50_ms", "no-op handler at the rate of refusals, p50"), each(|beside| beside.no_op.p50));
    report.add(shown("noop_p99_ms", "no-op handler at the rate of refusals, p99"), each(|beside| beside.no_op.p99));
    report.add(shown("noop_p999_ms", "no-op handler at the rate of refusals, p99.9"), each(|beside| beside.no_op.p999));
    report.add(rate_of("refused_rate_per_s", "rate of refusals, half of saturation"), [rate]);
    Ok(())
}

async fn accepted(plan: Plan, report: &mut Report) -> anyhow::Result<()> {
    let purchases = Purchases::prepare().await?;
    let workers = super::machine::cores().to_string();
    let (_process, no_op) = purchases.testbed.helper("no-op", &[&workers]).await?;
    let saturate = async || purchases.run(SATURATION_SECONDS).await;
    let Some(rate) = half_of_saturation("latency, saturation by purchases", saturate, report).await? else {
        report.add(ACCEPTED, []);
        return Ok(());
    };
    let round = async |no_op_first: bool| -> Measured<Beside> {
        let sale = purchases.sale().await?;
        let side =
            async |server, status| open_loop::run(server, &purchases.crowd, sale, rate, plan.seconds, status).await;
        let early = if no_op_first { Some(side(no_op, 409).await?) } else { None };
        let node = side(purchases.testbed.node, 202).await?;
        let sold = purchases.sold(sale).await? as usize;
        let nothing = match early {
            Some(early) => early,
            None => side(no_op, 409).await?,
        };
        purchases.clear(sale).await?;
        ensure!(sold + node.others as usize >= node.count(), "Redis sold {sold} of {}", node.count());
        Ok(beside(&node, &nothing))
    };
    let taken = rounds::take("latency, accepted", plan.rounds, round, show).await?;
    report.note_discarded("latency, accepted", &taken);
    let each = |of: fn(&Beside) -> f64| taken.kept.iter().map(of);
    report.add(ACCEPTED, each(|beside| beside.tail.p99 - beside.no_op.p99));
    let shown = |key, about| figure(key, about, Goal::None, Kind::Figure);
    report.add(shown("accepted_p50_ms", "accepted, p50"), each(|beside| beside.tail.p50));
    report.add(shown("accepted_p99_ms", "accepted, p99"), each(|beside| beside.tail.p99));
    report.add(shown("accepted_p999_ms", "accepted, p99.9"), each(|beside| beside.tail.p999));
    report.add(
        shown("noop_at_accepted_p99_ms", "no-op handler at the rate of purchases, p99"),
        each(|beside| beside.no_op.p99),
    );
    report.add(rate_of("accepted_rate_per_s", "rate of purchases, half of saturation"), [rate]);
    Ok(())
}

const fn rate_of(key: &'static str, about: &'static str) -> Figure {
    Figure { part: "latency", key, about, unit: "requests/s", goal: Goal::None, kind: Kind::Side }
}

fn beside(node: &Latencies, no_op: &Latencies) -> Result<Beside, Discarded> {
    if node.others + no_op.others > 0 {
        return Err(Discarded("answers of another status".to_owned()));
    }
    let beside = Beside { tail: Tail::of(node), no_op: Tail::of(no_op) };
    if beside.no_op.p99 > MOST_NO_OP_MS {
        return Err(Discarded(format!("the no-op handler took more than {MOST_NO_OP_MS} ms")));
    }
    Ok(beside)
}

fn show(beside: &Beside) -> String {
    let text = |tail: &Tail| format!("p50 {:.2}, p99 {:.2}, p99.9 {:.2} ms", tail.p50, tail.p99, tail.p999);
    format!("{}; no-op {}", text(&beside.tail), text(&beside.no_op))
}
