//! A scenario on its ground: every sale becomes a scene, all of them play at once, and one report comes out.

use std::sync::Arc;
use std::time::Duration;

use drive::checks::Rules;
use drive::client::Client;
use drive::demand::{Demand, Habits};
use drive::record::Tally;
use drive::report::{Report, Setting};
use drive::scene::{Deliveries, Scene};
use drive::stores::Stores;
use drive::tokens::Tokens;
use drive::{joint, progress};
use tokio_util::sync::CancellationToken;

use super::overrides::Overrides;
use super::scenario::{Sale, Scenario};

/// Where a scenario is played.
pub struct Ground {
    pub client: Arc<Client>,
    pub tokens: Tokens,
    pub witness: Stores,
    /// Of each sale, save for its stock.
    pub setting: Setting,
    /// Time in which the service wants orders paid, if that is known.
    pub pay_within: Option<Duration>,
}

/// Plays it to its report; `stop` sends the buyers away early.
///
/// # Errors
/// When a sale cannot be put on, or the stores do not answer to the verdict.
pub async fn play(
    scenario: &Scenario,
    overrides: &Overrides,
    ground: &Ground,
    stop: &CancellationToken,
) -> anyhow::Result<Report> {
    let tally: Arc<Tally> = Arc::default();
    let mut scenes = Vec::new();
    for sale in &scenario.sales {
        let setting = Setting { stock: sale.stock, ..ground.setting.clone() };
        let demand = demand(sale, overrides.seed, ground.pay_within)?;
        let (client, temper) = (Arc::clone(&ground.client), overrides.temper(scenario)?);
        let scene = Scene::new(client, &ground.tokens, &ground.witness, demand, setting, temper);
        scenes.push(Scene {
            name: sale.name.clone(),
            rules: Rules { allowed: Some(scenario.allows.clone()), expected: scenario.expects.clone() },
            deliveries: deliveries(sale)?,
            tally: Arc::clone(&tally),
            stop: stop.clone(),
            ..scene
        });
    }
    let acts = futures_util::future::try_join_all(scenes.into_iter().map(|scene| Box::pin(scene.act())));
    let played = tokio::select! {
        never = progress::show(&tally) => match never {},
        played = acts => played?,
    };
    joint::report(played)
}

/// Who comes to a sale of the scenario.
///
/// # Errors
/// When its times are none.
pub fn demand(sale: &Sale, seed: u64, pay_within: Option<Duration>) -> anyhow::Result<Demand> {
    let usual = Habits::of_a_sale_paid_within(pay_within.unwrap_or_default());
    let habits = Habits {
        cancel: sale.afterwards.cancel,
        // The end of a forgotten order can only be waited for where it is known to come.
        forget: if pay_within.is_some() { sale.afterwards.forget } else { 0.0 },
        regret: sale.afterwards.regret,
        ..usual
    };
    Ok(Demand {
        buyers: sale.buyers,
        window: Duration::try_from_secs_f64(sale.seconds)?,
        shape: sale.shape.into(),
        hasty: sale.hasty,
        early: sale.early,
        lead: Duration::from_secs(1),
        keyed: sale.keyed,
        max_quantity: sale.max_quantity,
        habits: Some(habits),
        bots: sale.bots.map(Into::into),
        seed,
    })
}

fn deliveries(sale: &Sale) -> anyhow::Result<Option<Deliveries>> {
    let Some(deliveries) = sale.deliveries else { return Ok(None) };
    let every = Duration::try_from_secs_f64(deliveries.every_s)?;
    Ok(Some(Deliveries { every, units: deliveries.units, times: deliveries.times }))
}
