//! One whole run: a sale is put on, buyers come, things settle, and the verdict is spoken.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use super::buyers::{Crowd, Temper};
use super::client::Client;
use super::demand::{Demand, Plan};
use super::machine::Machine;
use super::operator::{Offer, OnSale, Operator};
use super::progress;
use super::record::ClientRecord;
use super::report::{Report, Setting};
use super::timeline::Watch;
use super::tokens::Tokens;
use super::verdict::{Case, Patience};
use super::witness::Witness;

/// What a run needs to know.
pub struct Scene<'a, W> {
    pub client: Arc<Client>,
    pub tokens: &'a Tokens,
    pub witness: &'a W,
    pub demand: Demand,
    pub setting: Setting,
    pub temper: Temper,
    pub patience: Patience,
}

/// What came of it.
pub struct Played {
    pub on_sale: OnSale,
    pub plan: Arc<Plan>,
    pub record: ClientRecord,
    pub report: Report,
}

/// Time for every node to hear of the sale, on top of the early buyers' lead. Nodes look once a second.
const NOTICE: Duration = Duration::from_secs(4);

impl<W: Witness> Scene<'_, W> {
    /// Plays it from the draft of the sale to the report.
    pub async fn play(self) -> anyhow::Result<Played> {
        let plan = Arc::new(Plan::draw(&self.demand, self.tokens)?);
        let offer = Offer {
            name: "flash sale".to_owned(),
            stock: self.setting.stock,
            reserve: None,
            max_quantity: self.demand.max_quantity,
            starts_in: NOTICE + self.demand.lead,
            lasts: Duration::from_secs(24 * 3600),
        };
        let on_sale = Operator::new(&self.client, self.tokens)?.open(&offer).await?;
        self.play_at(on_sale, plan).await
    }

    /// Plays a plan at a sale that is on, from the first click to the report.
    pub async fn play_at(self, on_sale: OnSale, plan: Arc<Plan>) -> anyhow::Result<Played> {
        let (client, habits) = (Arc::clone(&self.client), self.demand.habits);
        let crowd = Crowd::with_habits(client, Arc::clone(&plan), on_sale.id, on_sale.start, self.temper, habits)?;
        let watch = Watch::default();
        let watching = watch.run(self.witness, on_sale.id, on_sale.start);
        let (record, report) = tokio::select! {
            never = watching => match never {},
            judged = self.attend(&plan, on_sale, crowd, &watch) => judged?,
        };
        Ok(Played { on_sale, plan, record, report })
    }

    async fn attend(
        &self,
        plan: &Plan,
        on_sale: OnSale,
        crowd: Arc<Crowd>,
        watch: &Watch,
    ) -> anyhow::Result<(ClientRecord, Report)> {
        tokio::select! {
            never = progress::show(&crowd.recorder.tally, plan.clicks.len(), on_sale.start) => match never {},
            () = crowd.run_before(self.witness) => {}
        }
        let record = crowd.into_record().context("a buyer is still at it")?;
        let case = Case {
            witness: self.witness,
            client: &self.client,
            plan,
            sale: on_sale.id,
            record: &record,
            setting: self.setting.clone(),
            rise: &watch.rise,
            patience: self.patience,
        };
        let mut report = case.judge().await?;
        report.timeline = watch.timeline(&record.over_time);
        report.machine = Machine::here(self.witness.versions().await);
        Ok((record, report))
    }
}
