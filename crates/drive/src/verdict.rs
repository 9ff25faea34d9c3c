//! The verdict: waits until nothing is in flight, reads the stores, and compares them with what buyers were told.
//!
//! Every accepted order is looked up in the ledger, and a sample of them is read over HTTP by their own buyers. Errors
//! on the way (503, timeouts) are counted and are no failure: what decides is whether promises were kept.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::StreamExt;
use hyper::body::Bytes;
use hyper::{Method, Uri};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::checks;
use super::client::Client;
use super::demand::Plan;
use super::distribution::{Distribution, Distributions};
use super::machine::Machine;
use super::observer::StoreObserver;
use super::record::ClientRecord;
use super::report::{Latencies, Quantiles, Rates, Report, Setup, Verdict};
use super::timeline::Timeline;
use super::virtual_users::OwnOrder;
use seckill::domain::{OrderId, OrderStatus, Rejection, SaleId, UserId};
use seckill::promises::{self, CheckResult, ClientView, Finding, Flow, LedgerView, NAMES, OrderFact, Snapshot};

/// Orders that are read over HTTP at most if there is access to the ledger, and how many at once.
const SAMPLE: usize = 2000;
const AT_ONCE: usize = 32;

/// Snapshots at most while something is broken: as orders expire, each snapshot may meet some that were closed between
/// the reads of the two stores.
const SNAPSHOTS: u32 = 4;

/// How long an evaluation waits.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the outbox and Kafka to run empty.
    pub settle: Duration,
    /// For the two stores to agree: a broken finding is checked again for so long.
    pub recheck: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        // The reconciler compares claims with rows every five seconds, and a closed order's claim may wait for it.
        Self { settle: Duration::from_secs(120), recheck: Duration::from_secs(6) }
    }
}

/// Violations of promises that only the ledger decides. Its view is one snapshot, so such a finding stays true whatever
/// a later snapshot shows.
#[derive(Debug, Default)]
pub struct ConfirmedViolations(Vec<Finding>);

impl ConfirmedViolations {
    const OF_THE_LEDGER: [&str; 3] = ["no_oversell", "one_per_user", "ledger_conserved"];

    /// Keeps the first violation of each promise.
    pub fn record(&mut self, findings: &[Finding]) {
        for finding in findings.iter().filter(|finding| finding.holds == CheckResult::Broken) {
            let known = self.0.iter().any(|confirmed| confirmed.name == finding.name);
            if Self::OF_THE_LEDGER.contains(&finding.name) && !known {
                self.0.push(finding.clone());
            }
        }
    }

    /// Replaces later findings of the same promises by the violations.
    pub fn restore(&self, findings: &mut [Finding]) {
        for finding in findings {
            if let Some(confirmed) = self.0.iter().find(|confirmed| confirmed.name == finding.name) {
                finding.clone_from(confirmed);
            }
        }
    }
}

/// What one run is evaluated by.
pub struct Evaluation<'a, W> {
    pub observer: &'a W,
    pub client: &'a Client,
    pub plan: &'a Plan,
    pub sale: SaleId,
    pub record: &'a ClientRecord,
    pub setup: Setup,
    pub timeouts: Timeouts,
}

impl<W: StoreObserver> Evaluation<'_, W> {
    /// Waits until everything has settled, reads the stores, and checks all promises.
    pub async fn evaluate(&self) -> anyhow::Result<Report> {
        let flow = self.settle().await?;
        let mut client_view = self.record.view(self.plan);
        let Some(ledger) = self.observer.ledger(self.sale).await.context("the ledger does not answer")? else {
            return self.evaluate_from_outside(client_view).await;
        };
        client_view.unreadable = self.unreadable(SAMPLE).await;
        let redis = self.observer.redis(self.sale).await.context("Redis does not answer")?;
        let demand_reached_stock = self.record.demand_reached_stock(self.plan, self.setup.stock);
        let mut snapshot = Snapshot { ledger, redis, flow, client: Some(&client_view), demand_reached_stock };
        let mut confirmed = ConfirmedViolations::default();
        let mut oversold = 0;
        for _ in 0..SNAPSHOTS {
            let findings = promises::check(&snapshot);
            confirmed.record(&findings);
            oversold = oversold.max(promises::shortfalls(&snapshot).oversold);
            if !is_broken(&findings) {
                break;
            }
            // The two stores cannot be read at one instant, and the reconciler may be at work: a real violation is
            // still there in the next snapshot.
            sleep(self.timeouts.recheck / SNAPSHOTS).await;
            snapshot.ledger =
                self.observer.ledger(self.sale).await?.context("the ledger does not know the sale any more")?;
            snapshot.redis = self.observer.redis(self.sale).await?;
        }
        let mut orders = BTreeMap::new();
        for order in &snapshot.ledger.orders {
            *orders.entry(order.status.as_str()).or_default() += 1;
        }
        let short = promises::shortfalls(&snapshot);
        // Without access to Kafka nothing is known to wait; orders that are known to wait fail the run.
        let settled = snapshot.flow.is_none_or(Flow::is_settled);
        let checks = self.checks(Some(&snapshot.ledger));
        let mut findings = promises::check(&snapshot);
        confirmed.restore(&mut findings);
        let mut report = self.report(findings, checks, settled);
        report.orders = orders;
        report.unanswered_orders = unanswered(&snapshot.ledger, &client_view);
        report.oversold = Some(short.oversold.max(oversold));
        report.unsold = Some(short.unsold);
        report.duplicates = Some(short.duplicates);
        report.lost = short.lost;
        report.dishonoured = short.dishonoured;
        Ok(report)
    }

    /// Polls until nothing is in flight or the timeout passes. The promises are checked with the last poll.
    async fn settle(&self) -> anyhow::Result<Option<Flow>> {
        let deadline = Instant::now() + self.timeouts.settle;
        let mut ticks = interval(Duration::from_millis(200));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let seen = self.observer.flow(self.sale).await;
            let done = match &seen {
                Ok(None) => true,
                Ok(Some(flow)) => flow.is_settled(),
                Err(_) => false,
            };
            if done || Instant::now() >= deadline {
                return seen.context("what is in flight cannot be read");
            }
        }
    }

    /// Accepted orders that their buyers cannot read, among at most `most` spread over all.
    async fn unreadable(&self, most: usize) -> Vec<OrderId> {
        let mut accepted: Vec<_> = self.record.accepted.iter().copied().collect();
        accepted.sort_unstable();
        let step = accepted.len().div_ceil(most.max(1)).max(1);
        let read = async |(order, buyer)| (order, self.read(order, buyer).await.is_some());
        let asked = futures_util::stream::iter(accepted.into_iter().step_by(step)).map(read);
        let answers: Vec<_> = asked.buffer_unordered(AT_ONCE).collect().await;
        answers.into_iter().filter(|(_, readable)| !readable).map(|(order, _)| order).collect()
    }

    /// An order as its buyer reads it, from any node that answers.
    async fn read(&self, order: OrderId, buyer: u32) -> Option<OwnOrder> {
        self.get_order(&format!("/api/v1/orders/{order}"), buyer).await.filter(|own| own.order_id == order)
    }

    /// Whether the buyer has another order of the sale that was not rejected.
    async fn has_another(&self, order: OrderId, buyer: u32) -> bool {
        let own = self.get_order(&format!("/api/v1/sales/{}/order", self.sale), buyer).await;
        own.is_some_and(|own| own.order_id != order && own.status != OrderStatus::Rejected)
    }

    /// An order from any node that has it.
    async fn get_order(&self, path: &str, buyer: u32) -> Option<OwnOrder> {
        let path: Uri = path.parse().ok()?;
        let caller = &self.plan.buyers[buyer as usize].caller;
        for node in 0..self.client.nodes() {
            let reply = self.client.send(buyer as usize + node, Method::GET, &path, caller, Bytes::new()).await;
            let Some(reply) = reply.ok().filter(|reply| reply.status == 200) else { continue };
            return serde_json::from_slice::<OwnOrder>(&reply.body).ok();
        }
        None
    }

    /// Without access to the stores, only what buyers read counts: every accepted order must become readable and
    /// leave the queue. The other promises are left to the service's own audit.
    async fn evaluate_from_outside(&self, client_view: ClientView) -> anyhow::Result<Report> {
        let deadline = Instant::now() + self.timeouts.settle;
        let mut pending: Vec<_> = self.record.accepted.iter().copied().collect();
        let mut orders: BTreeMap<&'static str, u64> = BTreeMap::new();
        let mut dishonoured = 0;
        while !pending.is_empty() {
            let mut unsettled = Vec::new();
            for (order, buyer) in pending {
                match self.read(order, buyer).await {
                    Some(own) if own.status != OrderStatus::Queued => {
                        *orders.entry(own.status.as_str()).or_default() += 1;
                        let rejected = own.status == OrderStatus::Rejected;
                        // Only a buyer with another order may be rejected for it.
                        let excused = rejected
                            && own.reason == Some(Rejection::AlreadyPurchased)
                            && self.has_another(order, buyer).await;
                        dishonoured += u64::from(rejected && !excused);
                    }
                    _ => unsettled.push((order, buyer)),
                }
            }
            pending = unsettled;
            if pending.is_empty() || Instant::now() >= deadline {
                break;
            }
            sleep(Duration::from_millis(500)).await;
        }
        let lost = pending.len() as u64;
        let of_all = format!("of {} accepted orders, read by their buyers", client_view.answers.len());
        let found = |promise: &'static str| match promise {
            "nothing_lost" => (CheckResult::from(lost == 0), format!("{lost} lost {of_all}")),
            "honoured" => (CheckResult::from(dishonoured == 0), format!("{dishonoured} rejected {of_all}")),
            _ => (CheckResult::Unknown, "no access to the stores".to_owned()),
        };
        let findings = NAMES.map(|name| {
            let (holds, detail) = found(name);
            Finding { name, holds, detail }
        });
        let mut report = self.report(findings.to_vec(), self.checks(None), true);
        report.orders = orders;
        report.lost = lost;
        report.dishonoured = dishonoured;
        Ok(report)
    }

    /// The checks of this run besides the promises.
    fn checks(&self, ledger: Option<&LedgerView>) -> Vec<Finding> {
        self.record.final_state.map_or_else(Vec::new, |state| {
            vec![
                checks::everybody_decided(self.record),
                checks::orders_ended(state),
                checks::moves_kept(self.record, ledger),
            ]
        })
    }

    fn report(&self, promises: Vec<Finding>, checks: Vec<Finding>, settled: bool) -> Report {
        let record = self.record;
        let accepted = distinct(record);
        let Setup { broker, redis_fsync, nodes, stock } = self.setup.clone();
        Report {
            broker,
            redis_fsync,
            nodes,
            stock,
            requests: record.requests,
            accepted,
            refused: record.refused.clone(),
            http: record.http.clone(),
            no_answer: record.no_answer,
            unconfirmed: record.unconfirmed,
            gave_up: record.gave_up.len() as u64,
            orders: BTreeMap::new(),
            afterwards: record.afterwards(),
            unanswered_orders: 0,
            oversold: None,
            unsold: None,
            duplicates: None,
            lost: 0,
            dishonoured: 0,
            http_5xx: record.http_5xx,
            client_errors: record.client_errors,
            rates: Rates { accepted: record.accepted_per_second(), refused: record.refused_per_second(), persisted: 0 },
            latency_ms: Latencies {
                accepted: Quantiles::of(&record.accepted_us),
                refused: Quantiles::of(&record.refused_us),
            },
            latency_distribution: Distributions {
                accepted: Distribution::of(&record.accepted_us),
                refused: Distribution::of(&record.refused_us),
            },
            timeline: Timeline::default(),
            machine: Machine::default(),
            verdict: Verdict::of(promises.iter().chain(&checks), accepted, settled),
            promises,
            checks,
            sales: Vec::new(),
            settled,
        }
    }
}

/// Orders that no 202 named, of buyers with an unconfirmed answer. Of other buyers, such orders break a promise, and
/// are not counted here.
fn unanswered(ledger: &LedgerView, client_view: &ClientView) -> u64 {
    let named: HashSet<OrderId> = client_view.answers.iter().map(|answer| answer.order).collect();
    let without: HashSet<&UserId> = client_view.unconfirmed.iter().collect();
    let unnamed = |order: &&OrderFact| !named.contains(&order.id) && without.contains(&order.user);
    ledger.orders.iter().filter(unnamed).count() as u64
}

fn distinct(record: &ClientRecord) -> u64 {
    let mut ids: Vec<_> = record.accepted.iter().map(|(order, _)| *order).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.len() as u64
}

fn is_broken(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.holds == CheckResult::Broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_that_one_ledger_snapshot_shows_stays_confirmed() {
        let findings = |holds, detail: &str| {
            let finding = |name| Finding { name, holds, detail: detail.to_owned() };
            NAMES.map(finding).to_vec()
        };
        let mut confirmed = ConfirmedViolations::default();
        confirmed.record(&findings(CheckResult::Holds, "well"));
        confirmed.record(&findings(CheckResult::Broken, "first"));
        confirmed.record(&findings(CheckResult::Broken, "second"));
        let mut last = findings(CheckResult::Holds, "last");
        confirmed.restore(&mut last);
        let broken: Vec<_> = last.iter().filter(|finding| finding.holds == CheckResult::Broken).collect();
        assert_eq!(broken.iter().map(|finding| finding.name).collect::<Vec<_>>(), ConfirmedViolations::OF_THE_LEDGER);
        assert!(broken.iter().all(|finding| finding.detail == "first"));
        assert_eq!(last.iter().filter(|finding| finding.detail == "last").count(), NAMES.len() - broken.len());
    }
}
