//! A scenario: what is on sale, who buys, and which refusals the run allows. Small TOML files, compiled in by name.
//!
//! In: a name or a path. Guaranteed of a scenario: no unknown key, no unknown refusal code, no share above one, and at
//! least one buyer and one unit.

pub mod demand;
pub mod overrides;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use drive::answer::refusals;
use drive::demand::{Bots, Shape};
use serde::Deserialize;

/// The scenarios that are compiled in.
pub const SHIPPED: [(&str, &str); 8] = [
    ("rush", include_str!("../../scenarios/rush.toml")),
    ("flood", include_str!("../../scenarios/flood.toml")),
    ("replay", include_str!("../../scenarios/replay.toml")),
    ("bots", include_str!("../../scenarios/bots.toml")),
    ("drip", include_str!("../../scenarios/drip.toml")),
    ("restock", include_str!("../../scenarios/restock.toml")),
    ("mixed", include_str!("../../scenarios/mixed.toml")),
    ("storm", include_str!("../../scenarios/storm.toml")),
];

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    #[serde(skip)]
    pub name: String,
    /// One line.
    pub about: String,
    #[serde(default, alias = "doors")]
    pub limits: Limits,
    #[serde(default)]
    pub connections: Connections,
    /// Purchases in flight at most. A click that has to wait is late, and its latency includes the wait.
    #[serde(default = "in_flight")]
    pub in_flight: usize,
    /// Codes with which a purchase may be refused. Any other fails the run.
    pub allows: Vec<String>,
    /// Codes that must occur, or the run has not tested what it is for.
    #[serde(default)]
    pub expects: Vec<String>,
    /// They run at the same time.
    pub sales: Vec<Sale>,
}

/// The limits of a private service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limits {
    /// They hold back nobody who clicks like a person.
    #[default]
    #[serde(alias = "open")]
    Relaxed,
    /// The defaults of the service.
    #[serde(alias = "closed")]
    Default,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Connections {
    #[default]
    Kept,
    /// One for each first click.
    Fresh,
}

/// How first clicks spread over the seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// Thickest at the start.
    #[default]
    Rush,
    /// At one rate.
    Steady,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sale {
    pub name: String,
    /// Units.
    pub stock: u32,
    /// A buyer wants 1 to this many units.
    #[serde(default = "one")]
    pub max_quantity: u32,
    pub buyers: u32,
    /// From the start of the sale to the last first click.
    pub seconds: f64,
    #[serde(default)]
    pub shape: Spread,
    /// Share of buyers that click 2–5 times at once.
    #[serde(default)]
    pub hasty: f64,
    /// Share of buyers that also click within the second before the start.
    #[serde(default)]
    pub early: f64,
    /// Share of buyers that send an Idempotency-Key.
    #[serde(default)]
    pub keyed: f64,
    #[serde(default)]
    pub afterwards: Afterwards,
    pub deliveries: Option<Deliveries>,
    pub bots: Option<Scripts>,
}

/// What buyers do after the purchase. The others pay.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Afterwards {
    /// Share of buyers that cancel.
    pub cancel: f64,
    /// Share of buyers that let their order expire.
    pub forget: f64,
    /// Share of both that want a unit again.
    pub regret: f64,
}

impl Default for Afterwards {
    fn default() -> Self {
        Self { cancel: 0.05, forget: 0.05, regret: 0.5 }
    }
}

/// Units that the operator adds while the sale is on.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deliveries {
    pub every_s: f64,
    /// Of each.
    pub units: u32,
    pub times: u32,
}

/// Users that are scripts.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scripts {
    pub users: u32,
    /// Purchases of each, evenly over the seconds.
    pub clicks: u32,
    /// How many addresses they share.
    pub addresses: u32,
    /// How many of them are on the blacklist.
    pub blocked: u32,
}

const fn in_flight() -> usize {
    256
}

const fn one() -> u32 {
    1
}

impl Scenario {
    /// The shipped scenario of this name, or else the file at this path.
    ///
    /// # Errors
    /// When there is neither, or it is not a valid scenario.
    pub fn load(name: &str) -> anyhow::Result<Self> {
        if let Some((name, text)) = SHIPPED.iter().find(|(known, _)| *known == name) {
            return Self::parse(name, text);
        }
        let names: Vec<_> = SHIPPED.iter().map(|(name, _)| *name).collect();
        let unknown = || format!("{name:?} is neither a file nor one of {}", names.join(", "));
        let text = std::fs::read_to_string(name).with_context(unknown)?;
        let stem = Path::new(name).file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy());
        Self::parse(&stem, &text).with_context(|| format!("the scenario {name}"))
    }

    /// # Errors
    /// When it is not a valid scenario.
    pub fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        let mut scenario: Self = toml::from_str(text)?;
        name.clone_into(&mut scenario.name);
        scenario.check()?;
        Ok(scenario)
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.sales.is_empty(), "the scenario has no sale");
        ensure!(self.in_flight > 0, "in_flight must be above 0");
        for code in &self.allows {
            ensure!(refusals().any(|known| known == code), "no purchase is ever refused with {code:?}");
        }
        for code in &self.expects {
            ensure!(self.allows.contains(code), "{code:?} is expected, but not allowed");
        }
        for sale in &self.sales {
            sale.check().with_context(|| format!("the sale {:?}", sale.name))?;
        }
        Ok(())
    }
}

impl Sale {
    fn check(&self) -> anyhow::Result<()> {
        let Afterwards { cancel, forget, regret } = self.afterwards;
        let shares = [self.hasty, self.early, self.keyed, cancel, forget, cancel + forget, regret];
        ensure!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "shares must be between 0 and 1");
        ensure!(
            self.stock > 0 && self.buyers > 0 && self.max_quantity > 0,
            "stock, buyers and max_quantity must be above 0"
        );
        Duration::try_from_secs_f64(self.seconds).context("seconds")?;
        if let Some(deliveries) = self.deliveries {
            ensure!(deliveries.units > 0, "units of deliveries must be above 0");
            Duration::try_from_secs_f64(deliveries.every_s).context("every_s")?;
        }
        if let Some(bots) = self.bots {
            ensure!(bots.addresses > 0 && bots.clicks > 0, "addresses and clicks of bots must be above 0");
            ensure!(bots.blocked <= bots.users, "blocked must not be above users");
        }
        Ok(())
    }
}

impl From<Spread> for Shape {
    fn from(spread: Spread) -> Self {
        match spread {
            Spread::Rush => Self::Rush,
            Spread::Steady => Self::Steady,
        }
    }
}

impl From<Scripts> for Bots {
    fn from(Scripts { users, clicks, addresses, blocked }: Scripts) -> Self {
        Self { users, clicks, addresses, blocked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(line: &str) -> anyhow::Result<Scenario> {
        let sale = "[[sales]]\nname = \"one\"\nstock = 1\nbuyers = 1\nseconds = 0\n";
        Scenario::parse("test", &format!("about = \"a test\"\nallows = [\"sold_out\"]\n{sale}{line}"))
    }

    #[test]
    fn every_shipped_scenario_parses_and_says_what_it_is_for() {
        for (name, text) in SHIPPED {
            let scenario = Scenario::load(name).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert_eq!(scenario.name, name);
            assert!(text.starts_with("# ") && text.contains("# Sizes:"), "{name}");
            assert!(text.contains("Allows:") && text.contains("Rules out:"), "{name}");
        }
    }

    #[test]
    fn every_file_in_the_folder_is_shipped() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .expect("a folder")
            .map(|file| file.expect("a file").file_name().to_string_lossy().into_owned())
            .collect();
        files.sort_unstable();
        let mut shipped: Vec<_> = SHIPPED.iter().map(|(name, _)| format!("{name}.toml")).collect();
        shipped.sort_unstable();
        assert_eq!(files, shipped);
    }

    #[test]
    fn a_key_that_nobody_reads_is_an_error() {
        assert!(with("").is_ok());
        for line in ["hurry = 1", "deliveries = { every_s = 1.0, units = 1, times = 1, from = 2 }", "bots = {}"] {
            assert!(with(line).is_err(), "{line}");
        }
        let text = "about = \"\"\nallows = []\nspeed = 1\n[[sales]]\nname = \"\"\nstock = 1\nbuyers = 1\nseconds = 0\n";
        assert!(Scenario::parse("test", text).is_err_and(|error| error.to_string().contains("speed")));
    }

    #[test]
    fn nonsense_is_refused_before_anything_runs() {
        for line in ["hasty = 1.5", "afterwards = { cancel = 0.6, forget = 0.6, regret = 0 }"] {
            assert!(with(line).is_err(), "{line}");
        }
        for seconds in ["-1.0", "nan", "inf"] {
            let sale = format!("[[sales]]\nname = \"\"\nstock = 1\nbuyers = 1\nseconds = {seconds}\n");
            let scenario = Scenario::parse("test", &format!("about = \"\"\nallows = []\n{sale}"));
            assert!(scenario.is_err_and(|error| format!("{error:#}").contains(": seconds: ")), "{seconds}");
        }
        let refused = |allows: &str, expects: &str| {
            let text = format!(
                "about = \"\"\nallows = [{allows}]\nexpects = [{expects}]\n[[sales]]\nname = \"\"\nstock = 1\nbuyers = 1\nseconds = 0\n"
            );
            Scenario::parse("test", &text).is_err()
        };
        assert!(refused("\"sold_ut\"", ""), "no such code");
        assert!(refused("\"sold_out\"", "\"blocked\""), "expected, but not allowed");
        assert!(!refused("\"sold_out\"", "\"sold_out\""));
        assert!(Scenario::load("no such scenario").is_err());
    }
}
