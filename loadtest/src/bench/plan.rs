//! How much a bench measures.

use clap::Args;

/// How much is measured.
#[derive(Clone, Copy, Debug, Args)]
pub struct Plan {
    /// Rounds per part.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Seconds of load on the service, and again on the baseline, in each round.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Purchases in one round of `pipeline`, and orders in the backlog of `drain`.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..))]
    pub orders: u32,
    /// Distinct users in `node-memory`.
    #[arg(long, default_value_t = 5_000_000)]
    pub users: u32,
    /// Claims of the sale in `rebuild`.
    #[arg(long, default_value_t = 10_000)]
    pub claims: u32,
}
