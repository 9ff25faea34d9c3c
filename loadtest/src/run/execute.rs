//! Runs a scenario against a service: all of its sales at once, with one report.

use std::sync::Arc;
use std::time::Duration;

use drive::checks::Rules;
use drive::client::Client;
use drive::record::Tally;
use drive::report::{Report, Setup};
use drive::run::{Deliveries, Run};
use drive::stores::Stores;
use drive::tokens::Tokens;
use drive::{merge, progress};
use tokio_util::sync::CancellationToken;

use crate::scenario::demand::demand;
use crate::scenario::overrides::Overrides;
use crate::scenario::{Sale, Scenario};

/// The service that a scenario runs against.
pub struct Service {
    pub client: Arc<Client>,
    pub tokens: Tokens,
    pub observer: Stores,
    /// Of each sale, save for its stock.
    pub setup: Setup,
    /// Time in which the service wants orders paid, if that is known.
    pub pay_within: Option<Duration>,
}

/// Runs all sales of the scenario at once and returns one report; `stop` stops the buyers early.
///
/// # Errors
/// When a sale cannot be opened, or a store does not answer.
pub async fn execute(
    scenario: &Scenario,
    overrides: &Overrides,
    service: &Service,
    stop: &CancellationToken,
) -> anyhow::Result<Report> {
    let tally: Arc<Tally> = Arc::default();
    let mut runs = Vec::new();
    for sale in &scenario.sales {
        let setup = Setup { stock: sale.stock, ..service.setup.clone() };
        let demand = demand(sale, overrides.seed, service.pay_within)?;
        let (client, pacing) = (Arc::clone(&service.client), overrides.pacing(scenario)?);
        let run = Run::new(client, &service.tokens, &service.observer, demand, setup, pacing);
        runs.push(Run {
            name: sale.name.clone(),
            rules: Rules { allowed: Some(scenario.allows.clone()), expected: scenario.expects.clone() },
            deliveries: deliveries(sale)?,
            tally: Arc::clone(&tally),
            stop: stop.clone(),
            ..run
        });
    }
    let running = futures_util::future::try_join_all(runs.into_iter().map(|run| Box::pin(run.execute())));
    let finished = tokio::select! {
        never = progress::print(&tally) => match never {},
        finished = running => finished?,
    };
    merge::merge_reports(finished)
}

fn deliveries(sale: &Sale) -> anyhow::Result<Option<Deliveries>> {
    let Some(deliveries) = sale.deliveries else { return Ok(None) };
    let every = Duration::try_from_secs_f64(deliveries.every_s)?;
    Ok(Some(Deliveries { every, units: deliveries.units, times: deliveries.times }))
}
