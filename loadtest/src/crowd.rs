//! The crowd, as the command line describes it.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use seckill::drive::buyers::Temper;
use seckill::drive::client::Limits;
use seckill::drive::demand::{Demand, Shape};

#[derive(Debug, Args)]
pub struct Crowd {
    /// Units on sale.
    #[arg(long, default_value_t = 1000)]
    pub stock: u32,
    /// Buyers who come for them.
    #[arg(long, default_value_t = 20_000)]
    buyers: u32,
    /// Seconds from the start of the sale to the last buyer's first click.
    #[arg(long, default_value_t = 10.0)]
    window_s: f64,
    /// Share of buyers that click 2 to 5 times at once.
    #[arg(long, default_value_t = 0.1)]
    hasty: f64,
    /// Share of buyers that also click within the second before the start.
    #[arg(long, default_value_t = 0.05)]
    early: f64,
    /// Share of buyers that send an Idempotency-Key.
    #[arg(long, default_value_t = 0.1)]
    keyed: f64,
    /// A buyer wants 1 to this many units.
    #[arg(long, default_value_t = 1)]
    max_quantity: u32,
    /// The same seed draws the same buyers and clicks.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Purchases in flight at most. Clicks that have to wait are late, and their latency says so.
    #[arg(long, default_value_t = 256)]
    in_flight: usize,
    /// Seconds to wait for one answer.
    #[arg(long, default_value_t = 5.0)]
    timeout_s: f64,
    /// Seconds for which a buyer without a decision goes on asking.
    #[arg(long, default_value_t = 60.0)]
    patience_s: f64,
}

impl Crowd {
    /// # Errors
    /// When a share is not one, or a time is not a time.
    pub fn demand(&self, shape: Shape) -> anyhow::Result<Demand> {
        let shares = [self.hasty, self.early, self.keyed];
        ensure!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "shares go from 0 to 1");
        ensure!(self.buyers > 0 && self.stock > 0 && self.max_quantity > 0, "there must be buyers, and units for them");
        Ok(Demand {
            buyers: self.buyers,
            window: Duration::try_from_secs_f64(self.window_s)?,
            shape,
            hasty: self.hasty,
            early: self.early,
            lead: Duration::from_secs(1),
            keyed: self.keyed,
            max_quantity: self.max_quantity,
            seed: self.seed,
            ..Demand::default()
        })
    }

    pub fn temper(&self) -> anyhow::Result<Temper> {
        let patience = Duration::try_from_secs_f64(self.patience_s)?;
        Ok(Temper { in_flight: self.in_flight.max(1), patience, ..Temper::default() })
    }

    pub fn limits(&self, nodes: usize) -> anyhow::Result<Limits> {
        let response = Duration::try_from_secs_f64(self.timeout_s)?;
        // Somewhat more than an even share: clicks do not spread evenly over nodes at every moment.
        let connections = (self.in_flight * 3 / 2).div_ceil(nodes.max(1)).max(1);
        Ok(Limits { connections, response, ..Limits::default() })
    }
}
