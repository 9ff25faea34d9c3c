//! One whole run: a sale is put on, buyers come, things settle, and the verdict is spoken.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::buyers::{Crowd, Temper};
use super::checks::{self, Rules};
use super::client::Client;
use super::demand::{Demand, Plan};
use super::machine::Machine;
use super::operator::{Audited, Offer, OnSale, Operator};
use super::progress;
use super::record::{ClientRecord, Tally};
use super::report::{Report, Setting};
use super::timeline::Watch;
use super::tokens::Tokens;
use super::verdict::{Case, Patience};
use super::witness::Witness;
use seckill::promises::Standing;

/// What a run needs to know.
pub struct Scene<'a, W> {
    pub name: String,
    pub client: Arc<Client>,
    pub tokens: &'a Tokens,
    pub witness: &'a W,
    pub demand: Demand,
    pub setting: Setting,
    pub temper: Temper,
    pub patience: Patience,
    pub rules: Rules,
    pub deliveries: Option<Deliveries>,
    /// May be shared with scenes that play at the same time.
    pub tally: Arc<Tally>,
    /// Sends the buyers away early; what was said until then is still judged.
    pub stop: CancellationToken,
}

/// Units that come while the sale is on.
#[derive(Clone, Copy, Debug)]
pub struct Deliveries {
    pub every: Duration,
    /// Units of each.
    pub units: u32,
    pub times: u32,
}

/// What came of it.
pub struct Played {
    pub name: String,
    pub on_sale: OnSale,
    pub plan: Arc<Plan>,
    pub record: ClientRecord,
    pub report: Report,
}

/// Time for every node to hear of the sale, on top of the early buyers' lead. Nodes look once a second.
const NOTICE: Duration = Duration::from_secs(4);
/// Between two tries to deliver.
const PAUSE: Duration = Duration::from_millis(500);

impl<'a, W: Witness> Scene<'a, W> {
    /// A run without rules and deliveries.
    pub fn new(
        client: Arc<Client>,
        tokens: &'a Tokens,
        witness: &'a W,
        demand: Demand,
        setting: Setting,
        temper: Temper,
    ) -> Self {
        Self {
            name: "flash sale".to_owned(),
            client,
            tokens,
            witness,
            demand,
            setting,
            temper,
            patience: Patience::default(),
            rules: Rules::default(),
            deliveries: None,
            tally: Arc::default(),
            stop: CancellationToken::new(),
        }
    }

    /// Plays it from the draft of the sale to the report, with a line that says how it goes.
    pub async fn play(self) -> anyhow::Result<Played> {
        let tally = Arc::clone(&self.tally);
        tokio::select! {
            never = progress::show(&tally) => match never {},
            played = self.act() => played,
        }
    }

    /// Plays it without a word.
    pub async fn act(self) -> anyhow::Result<Played> {
        let plan = Arc::new(Plan::draw(&self.demand, self.tokens)?);
        let operator = Operator::new(&self.client, self.tokens)?;
        // Nodes hear of the blacklist within a second, and so before the sale starts.
        for user in plan.blocked(&self.demand) {
            operator.block(user, true).await?;
        }
        let played = self.attend(&operator, Arc::clone(&plan)).await;
        for user in plan.blocked(&self.demand) {
            operator.block(user, false).await?;
        }
        let (on_sale, record, report) = played?;
        Ok(Played { name: self.name, on_sale, plan, record, report })
    }

    async fn attend(&self, operator: &Operator<'_>, plan: Arc<Plan>) -> anyhow::Result<(OnSale, ClientRecord, Report)> {
        let offer = Offer {
            name: self.name.clone(),
            stock: self.setting.stock,
            reserve: None,
            max_quantity: self.demand.max_quantity,
            starts_in: NOTICE + self.demand.lead,
            lasts: Duration::from_secs(24 * 3600),
        };
        let on_sale = operator.open(&offer).await?;
        let (record, report) = self.attend_at(operator, plan, on_sale).await?;
        Ok((on_sale, record, report))
    }

    /// Plays a plan at a sale that is on, from the first click to the report, with a line that says how it goes.
    pub async fn play_at(self, on_sale: OnSale, plan: Arc<Plan>) -> anyhow::Result<Played> {
        let (tally, operator) = (Arc::clone(&self.tally), Operator::new(&self.client, self.tokens)?);
        let (record, report) = tokio::select! {
            never = progress::show(&tally) => match never {},
            attended = self.attend_at(&operator, Arc::clone(&plan), on_sale) => attended?,
        };
        Ok(Played { name: self.name, on_sale, plan, record, report })
    }

    async fn attend_at(
        &self,
        operator: &Operator<'_>,
        plan: Arc<Plan>,
        on_sale: OnSale,
    ) -> anyhow::Result<(ClientRecord, Report)> {
        let watch = Watch::default();
        tokio::select! {
            never = watch.run(self.witness, on_sale.id, on_sale.start) => match never {},
            judged = self.sell(operator, plan, on_sale, &watch) => judged,
        }
    }

    async fn sell(
        &self,
        operator: &Operator<'_>,
        plan: Arc<Plan>,
        on_sale: OnSale,
        watch: &Watch,
    ) -> anyhow::Result<(ClientRecord, Report)> {
        let (client, tally, habits) = (Arc::clone(&self.client), Arc::clone(&self.tally), self.demand.habits);
        let crowd = Crowd::counted(client, Arc::clone(&plan), on_sale, self.temper, habits, tally)?;
        let listening = async {
            self.stop.cancelled().await;
            crowd.leave();
            std::future::pending().await
        };
        let selling = async { tokio::join!(crowd.run_before(self.witness), self.deliver(operator, on_sale, &crowd)).1 };
        let delivered = tokio::select! {
            delivered = selling => delivered,
            never = listening => never,
        };
        let mut record = crowd.into_record().context("a buyer is still at it")?;
        record.keep_first_round(&plan, self.setting.stock);
        let case = Case {
            witness: self.witness,
            client: &self.client,
            plan: &plan,
            sale: on_sale.id,
            record: &record,
            setting: self.setting.clone(),
            patience: self.patience,
        };
        let mut report = case.judge().await?;
        report.stock += delivered;
        self.check(&mut report, operator, &plan, on_sale, &record).await?;
        report.timeline = watch.timeline(&record.over_time);
        report.rates.persisted = report.timeline.persisted_per_second();
        report.machine = Machine::here(self.witness.versions().await);
        Ok((record, report))
    }

    /// Brings the units that were announced, each delivery twice: the second time must change nothing. Returns how many
    /// were brought until the crowd left.
    async fn deliver(&self, operator: &Operator<'_>, on_sale: OnSale, crowd: &Crowd) -> u32 {
        let Some(deliveries) = self.deliveries else { return 0 };
        crowd.expect(deliveries.times as usize);
        let leaving = crowd.leaving();
        let mut delivered = 0;
        // Only the waits are cut short: a delivery that is under way is waited for, and counted.
        for nth in 1..=deliveries.times {
            let due = sleep_until((on_sale.start + deliveries.every * nth).into());
            if leaving.run_until_cancelled(due).await.is_none() {
                break;
            }
            let operation = format!("delivery-{nth}");
            for again in [false, true] {
                while let Err(error) = operator.add_stock(on_sale.id, deliveries.units, &operation).await {
                    tracing::warn!(%error, "a delivery is tried again");
                    if leaving.run_until_cancelled(sleep(PAUSE)).await.is_none() {
                        return delivered;
                    }
                }
                delivered += if again { 0 } else { deliveries.units };
            }
            crowd.expect((deliveries.times - nth) as usize);
        }
        delivered
    }

    /// What this scene in particular has to show.
    async fn check(
        &self,
        report: &mut Report,
        operator: &Operator<'_>,
        plan: &Plan,
        on_sale: OnSale,
        record: &ClientRecord,
    ) -> anyhow::Result<()> {
        let mut findings = self.rules.check(&report.refused, record);
        if self.demand.bots.is_some() {
            findings.push(checks::only_scripts_limited(record, self.demand.buyers));
        }
        let blocked: HashSet<_> = plan.blocked(&self.demand).collect();
        if self.deliveries.is_some() || !blocked.is_empty() {
            let ledger = self.witness.ledger(on_sale.id).await?;
            if self.deliveries.is_some() {
                findings.push(checks::stock_as_delivered(ledger.as_ref().map(|ledger| ledger.total), report.stock));
            }
            if !blocked.is_empty() {
                findings.push(checks::blocked_got_nothing(&blocked, ledger.as_ref()));
            }
        }
        if report.unsold.is_none() {
            // The stores cannot be seen from here, but the service can see them.
            take_over(report, operator.audit(on_sale.id).await?);
        }
        report.add_checks(findings);
        Ok(())
    }
}

/// Where buyers alone cannot judge, the service's own audit speaks, and is named.
fn take_over(report: &mut Report, audit: Vec<Audited>) {
    for audited in audit {
        let mut findings = report.promises.iter_mut();
        let Some(finding) = findings.find(|finding| finding.name == audited.name) else { continue };
        if let (Standing::NotChecked, Some(holds)) = (finding.holds, audited.holds) {
            finding.holds = if holds { Standing::Holds } else { Standing::Broken };
            finding.detail = format!("{}, by the service's own audit", audited.detail);
        }
    }
}
