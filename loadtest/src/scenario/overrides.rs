//! What the command line changes in a scenario.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use drive::client::Limits;
use drive::virtual_users::Pacing;

use super::{Connections, Scenario};

/// Sizes that replace those of the scenario. If there are several sales, they apply to the first one, and the others
/// keep their proportions to it.
#[derive(Clone, Debug, Args)]
pub struct Overrides {
    /// Units on sale.
    #[arg(long)]
    stock: Option<u32>,
    /// Buyers who want them.
    #[arg(long)]
    buyers: Option<u32>,
    /// Seconds from the start of the sale to the last buyer's first click.
    #[arg(long, visible_alias = "window-s")]
    seconds: Option<f64>,
    /// Share of buyers that click 2 to 5 times at once.
    #[arg(long)]
    hasty: Option<f64>,
    /// Share of buyers that also click within the second before the start.
    #[arg(long)]
    early: Option<f64>,
    /// Share of buyers that send an Idempotency-Key.
    #[arg(long)]
    keyed: Option<f64>,
    /// A buyer wants 1 to this many units.
    #[arg(long)]
    max_quantity: Option<u32>,
    /// The same seed gives the same buyers and clicks.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Purchases in flight at most. A click that has to wait is late, and its latency includes the wait.
    #[arg(long)]
    in_flight: Option<usize>,
    /// Use N buyers at a time instead of the planned times, each of whom clicks when the answer before is there. Such
    /// buyers wait for a slow service, and their latencies hide that.
    #[arg(long, value_name = "N", conflicts_with = "in_flight")]
    closed_loop: Option<usize>,
    /// Seconds to wait for one answer.
    #[arg(long, default_value_t = 5.0)]
    timeout_s: f64,
    /// Seconds for which a buyer without a decision keeps asking.
    #[arg(long, default_value_t = 60.0)]
    patience_s: f64,
}

impl Overrides {
    /// Changes the scenario.
    ///
    /// # Errors
    /// When the changed scenario is not valid.
    pub fn apply(&self, scenario: &mut Scenario) -> anyhow::Result<()> {
        let Some(first) = scenario.sales.first().cloned() else { return Ok(()) };
        let ratio = |given: Option<f64>, own: f64| match given {
            Some(given) if own > 0.0 => given / own,
            _ => 1.0,
        };
        let more_stock = ratio(self.stock.map(f64::from), first.stock.into());
        let more_buyers = ratio(self.buyers.map(f64::from), first.buyers.into());
        let longer = ratio(self.seconds, first.seconds);
        for sale in &mut scenario.sales {
            sale.stock = scaled(sale.stock, more_stock);
            sale.buyers = scaled(sale.buyers, more_buyers);
            // A sale whose buyers all click at once has no duration to scale.
            sale.seconds =
                if first.seconds > 0.0 { sale.seconds * longer } else { self.seconds.unwrap_or(sale.seconds) };
            sale.hasty = self.hasty.unwrap_or(sale.hasty);
            sale.early = self.early.unwrap_or(sale.early);
            sale.keyed = self.keyed.unwrap_or(sale.keyed);
            sale.max_quantity = self.max_quantity.unwrap_or(sale.max_quantity);
            if let Some(deliveries) = &mut sale.deliveries {
                deliveries.units = scaled(deliveries.units, more_stock);
                deliveries.every_s *= longer;
            }
            if let Some(bots) = &mut sale.bots {
                bots.clicks = scaled(bots.clicks, longer);
            }
            sale.check()?;
        }
        scenario.in_flight = self.closed_loop.or(self.in_flight).unwrap_or(scenario.in_flight);
        ensure!(scenario.in_flight > 0, "--in-flight and --closed-loop must be above 0");
        Ok(())
    }

    /// # Errors
    /// When the patience is not a duration.
    pub fn pacing(&self, scenario: &Scenario) -> anyhow::Result<Pacing> {
        let follow_up_timeout = Duration::try_from_secs_f64(self.patience_s)?;
        let closed_loop = self.closed_loop.is_some();
        let fresh_connections = scenario.connections == Connections::Fresh;
        let in_flight = scenario.in_flight;
        Ok(Pacing { in_flight, follow_up_timeout, closed_loop, fresh_connections, ..Pacing::default() })
    }

    /// # Errors
    /// When the timeout is not a duration.
    pub fn limits(&self, scenario: &Scenario, nodes: usize) -> anyhow::Result<Limits> {
        let response = Duration::try_from_secs_f64(self.timeout_s)?;
        // All clicks in flight may go to one node for a moment, and those who pay need connections, too.
        let connections = (scenario.in_flight * 3 / 2).div_ceil(nodes.max(1)).max(1) + 256;
        Ok(Limits { connections, response, ..Limits::default() })
    }
}

/// At least one.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float that is too large saturates")]
fn scaled(count: u32, ratio: f64) -> u32 {
    (f64::from(count) * ratio).round().max(1.0) as u32
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        overrides: Overrides,
    }

    fn changed(name: &str, flags: &[&str]) -> anyhow::Result<Scenario> {
        let mut scenario = Scenario::load(name)?;
        let line = Line::try_parse_from(["line"].iter().chain(flags))?;
        line.overrides.apply(&mut scenario)?;
        Ok(scenario)
    }

    #[test]
    fn without_flags_a_scenario_stays_as_it_is() {
        for (name, _) in super::super::SHIPPED {
            let own = Scenario::load(name).expect("it is shipped");
            assert_eq!(format!("{:?}", changed(name, &[]).expect("it is shipped")), format!("{own:?}"));
        }
    }

    #[test]
    fn sizes_are_those_of_the_first_sale_and_the_others_keep_their_proportions() {
        let mixed = changed("mixed", &["--stock", "20", "--buyers", "200", "--seconds", "1"]).expect("a scenario");
        let sizes: Vec<_> = mixed.sales.iter().map(|sale| (sale.stock, sale.buyers, sale.seconds)).collect();
        assert_eq!(sizes, [(20, 200, 1.0), (40, 30, 3.0), (30, 30, 3.0), (15, 30, 3.0)]);
    }

    #[test]
    fn seconds_stay_as_they_are_where_none_are_given_and_the_first_sale_has_none() {
        let sale = |seconds| format!("[[sales]]\nname = \"{seconds}\"\nstock = 1\nbuyers = 1\nseconds = {seconds}\n");
        let seconds = |flags: &[&str]| {
            let text = format!("about = \"\"\nallows = []\n{}{}", sale(0), sale(3));
            let mut scenario = Scenario::parse("test", &text).expect("a scenario");
            let line = Line::try_parse_from(["line"].iter().chain(flags)).expect("flags");
            line.overrides.apply(&mut scenario).expect("a scenario");
            scenario.sales.iter().map(|sale| sale.seconds).collect::<Vec<_>>()
        };
        assert_eq!(seconds(&["--stock", "5"]), [0.0, 3.0]);
        assert_eq!(seconds(&["--seconds", "2"]), [2.0, 2.0]);
    }

    #[test]
    fn a_closed_loop_is_only_made_by_its_flag() {
        let line = |flags: &[&str]| Line::try_parse_from(["line"].iter().chain(flags)).map(|line| line.overrides);
        let scenario = Scenario::load("drip").expect("it is shipped");
        let closed = |flags: &[&str]| line(flags).expect("flags").pacing(&scenario).expect("times").closed_loop;
        assert!(!closed(&[]) && !closed(&["--in-flight", "3"]) && closed(&["--closed-loop", "3"]));
        assert!(line(&["--closed-loop", "3", "--in-flight", "3"]).is_err());
        assert_eq!(changed("drip", &["--closed-loop", "3"]).expect("a scenario").in_flight, 3);
        assert!(changed("drip", &["--closed-loop", "0"]).is_err());
    }

    #[test]
    fn what_is_no_share_and_no_time_is_refused() {
        for flags in [["--hasty", "2"], ["--seconds", "-1"], ["--early", "-0.5"]] {
            assert!(changed("rush", &flags.map(|flag| flag)).is_err(), "{flags:?}");
        }
    }
}
