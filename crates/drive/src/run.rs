//! One whole run: opens a sale, sends the virtual users, waits until the pipeline is empty, and evaluates.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::admin_client::{AdminClient, AuditFinding, NewSale, OpenSale};
use super::checks::{self, Rules};
use super::client::Client;
use super::demand::{Demand, Plan};
use super::machine::Machine;
use super::observer::StoreObserver;
use super::progress;
use super::record::{ClientRecord, Tally};
use super::report::{Report, Setup};
use super::timeline::StoreSampler;
use super::tokens::Tokens;
use super::verdict::{Evaluation, Timeouts};
use super::virtual_users::{Pacing, VirtualUsers};
use seckill::promises::CheckResult;

/// What a run needs to know.
pub struct Run<'a, W> {
    pub name: String,
    pub client: Arc<Client>,
    pub tokens: &'a Tokens,
    pub observer: &'a W,
    pub demand: Demand,
    pub setup: Setup,
    pub pacing: Pacing,
    pub timeouts: Timeouts,
    pub rules: Rules,
    pub deliveries: Option<Deliveries>,
    /// May be shared with runs that go on at the same time.
    pub tally: Arc<Tally>,
    /// Stops the users early; the answers until then are still evaluated.
    pub stop: CancellationToken,
}

/// Units that are added while the sale is open.
#[derive(Clone, Copy, Debug)]
pub struct Deliveries {
    pub every: Duration,
    /// Units of each.
    pub units: u32,
    pub times: u32,
}

/// The result of a run.
pub struct FinishedRun {
    pub name: String,
    pub open_sale: OpenSale,
    pub plan: Arc<Plan>,
    pub record: ClientRecord,
    pub report: Report,
}

/// Time for every node to learn of the sale, on top of the early buyers' lead. Nodes poll once a second.
const NOTICE: Duration = Duration::from_secs(4);
/// Between two tries to deliver.
const PAUSE: Duration = Duration::from_millis(500);

impl<'a, W: StoreObserver> Run<'a, W> {
    /// A run without rules and deliveries.
    pub fn new(
        client: Arc<Client>,
        tokens: &'a Tokens,
        observer: &'a W,
        demand: Demand,
        setup: Setup,
        pacing: Pacing,
    ) -> Self {
        Self {
            name: "flash sale".to_owned(),
            client,
            tokens,
            observer,
            demand,
            setup,
            pacing,
            timeouts: Timeouts::default(),
            rules: Rules::default(),
            deliveries: None,
            tally: Arc::default(),
            stop: CancellationToken::new(),
        }
    }

    /// Executes the run from the draft of the sale to the report, and prints its progress.
    pub async fn execute_with_progress(self) -> anyhow::Result<FinishedRun> {
        let tally = Arc::clone(&self.tally);
        tokio::select! {
            never = progress::print(&tally) => match never {},
            finished = self.execute() => finished,
        }
    }

    /// Executes the run without printing anything.
    pub async fn execute(self) -> anyhow::Result<FinishedRun> {
        let plan = Arc::new(Plan::draw(&self.demand, self.tokens)?);
        let admin = AdminClient::new(&self.client, self.tokens)?;
        // Nodes learn of the blacklist within a second, and so before the sale starts.
        for user in plan.blocked(&self.demand) {
            admin.block(user, true).await?;
        }
        let finished = self.open_and_sell(&admin, Arc::clone(&plan)).await;
        for user in plan.blocked(&self.demand) {
            admin.block(user, false).await?;
        }
        let (open_sale, record, report) = finished?;
        Ok(FinishedRun { name: self.name, open_sale, plan, record, report })
    }

    async fn open_and_sell(
        &self,
        admin: &AdminClient<'_>,
        plan: Arc<Plan>,
    ) -> anyhow::Result<(OpenSale, ClientRecord, Report)> {
        let new_sale = NewSale {
            name: self.name.clone(),
            stock: self.setup.stock,
            reserve: None,
            max_quantity: self.demand.max_quantity,
            starts_in: NOTICE + self.demand.lead,
            lasts: Duration::from_secs(24 * 3600),
        };
        let open_sale = admin.open(&new_sale).await?;
        let (record, report) = self.sell_at(admin, plan, open_sale).await?;
        Ok((open_sale, record, report))
    }

    /// Executes a plan at a sale that is open already, from the first click to the report, and prints its progress.
    pub async fn execute_at(self, open_sale: OpenSale, plan: Arc<Plan>) -> anyhow::Result<FinishedRun> {
        let (tally, admin) = (Arc::clone(&self.tally), AdminClient::new(&self.client, self.tokens)?);
        let (record, report) = tokio::select! {
            never = progress::print(&tally) => match never {},
            result = self.sell_at(&admin, Arc::clone(&plan), open_sale) => result?,
        };
        Ok(FinishedRun { name: self.name, open_sale, plan, record, report })
    }

    async fn sell_at(
        &self,
        admin: &AdminClient<'_>,
        plan: Arc<Plan>,
        open_sale: OpenSale,
    ) -> anyhow::Result<(ClientRecord, Report)> {
        let sampler = StoreSampler::default();
        tokio::select! {
            never = sampler.run(self.observer, open_sale.id, open_sale.start) => match never {},
            result = self.sell(admin, plan, open_sale, &sampler) => result,
        }
    }

    async fn sell(
        &self,
        admin: &AdminClient<'_>,
        plan: Arc<Plan>,
        open_sale: OpenSale,
        sampler: &StoreSampler,
    ) -> anyhow::Result<(ClientRecord, Report)> {
        let (client, tally, post_purchase) =
            (Arc::clone(&self.client), Arc::clone(&self.tally), self.demand.post_purchase);
        let users = VirtualUsers::with_tally(client, Arc::clone(&plan), open_sale, self.pacing, post_purchase, tally)?;
        let stop_requested = async {
            self.stop.cancelled().await;
            users.stop();
            std::future::pending().await
        };
        let selling =
            async { tokio::join!(users.run_observed(self.observer), self.deliver(admin, open_sale, &users)).1 };
        let delivered = tokio::select! {
            delivered = selling => delivered,
            never = stop_requested => never,
        };
        let mut record = users.into_record().context("a buyer has not finished")?;
        record.drop_resold_orders(&plan, self.setup.stock);
        let evaluation = Evaluation {
            observer: self.observer,
            client: &self.client,
            plan: &plan,
            sale: open_sale.id,
            record: &record,
            setup: self.setup.clone(),
            timeouts: self.timeouts,
        };
        let mut report = evaluation.evaluate().await?;
        report.stock += delivered;
        self.check(&mut report, admin, &plan, open_sale, &record).await?;
        report.timeline = sampler.timeline(&record.over_time);
        report.rates.persisted = report.timeline.persisted_per_second();
        report.machine = Machine::here(self.observer.versions().await);
        Ok((record, report))
    }

    /// Adds the units of each delivery, twice: the second time must change nothing. Returns how many units were added
    /// until the users stopped.
    async fn deliver(&self, admin: &AdminClient<'_>, open_sale: OpenSale, users: &VirtualUsers) -> u32 {
        let Some(deliveries) = self.deliveries else { return 0 };
        users.expect_deliveries(deliveries.times as usize);
        let stopping = users.stopping();
        let mut delivered = 0;
        // Only the waits are cut short: a delivery that is under way is waited for, and counted.
        for nth in 1..=deliveries.times {
            let due = sleep_until((open_sale.start + deliveries.every * nth).into());
            if stopping.run_until_cancelled(due).await.is_none() {
                break;
            }
            let operation = format!("delivery-{nth}");
            for again in [false, true] {
                while let Err(error) = admin.add_stock(open_sale.id, deliveries.units, &operation).await {
                    tracing::warn!(%error, "a delivery is tried again");
                    if stopping.run_until_cancelled(sleep(PAUSE)).await.is_none() {
                        return delivered;
                    }
                }
                delivered += if again { 0 } else { deliveries.units };
            }
            users.expect_deliveries((deliveries.times - nth) as usize);
        }
        delivered
    }

    /// The checks of this run besides the promises.
    async fn check(
        &self,
        report: &mut Report,
        admin: &AdminClient<'_>,
        plan: &Plan,
        open_sale: OpenSale,
        record: &ClientRecord,
    ) -> anyhow::Result<()> {
        let mut findings = self.rules.check(&report.refused, record);
        if self.demand.bots.is_some() {
            findings.push(checks::only_scripts_limited(record, self.demand.buyers));
        }
        let blocked: HashSet<_> = plan.blocked(&self.demand).collect();
        if self.deliveries.is_some() || !blocked.is_empty() {
            let ledger = self.observer.ledger(open_sale.id).await?;
            if self.deliveries.is_some() {
                findings.push(checks::stock_as_delivered(ledger.as_ref().map(|ledger| ledger.total), report.stock));
            }
            if !blocked.is_empty() {
                findings.push(checks::blocked_got_nothing(&blocked, ledger.as_ref()));
            }
        }
        if report.unsold.is_none() {
            // No access to the stores from here; the service has it.
            use_audit(report, admin.audit(open_sale.id).await?);
        }
        report.add_checks(findings);
        Ok(())
    }
}

/// Fills promises that are not checked with the findings of the service's own audit, and says so.
fn use_audit(report: &mut Report, audit: Vec<AuditFinding>) {
    for audited in audit {
        let mut findings = report.promises.iter_mut();
        let Some(finding) = findings.find(|finding| finding.name == audited.name) else { continue };
        if let (CheckResult::Unknown, Some(holds)) = (finding.holds, audited.holds) {
            finding.holds = CheckResult::from(holds);
            finding.detail = format!("{}, by the service's own audit", audited.detail);
        }
    }
}
