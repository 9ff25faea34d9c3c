//! A sale: what is sold, when, and at what price.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::{SaleId, UnknownWord};

/// What the operator has said of a sale. Opening hours are separate: an open sale sells only between its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SaleState {
    /// Created, never opened: Redis knows nothing of it.
    Draft,
    Open,
    Paused,
    /// Final.
    Ended,
}

impl SaleState {
    pub const ALL: [Self; 4] = [Self::Draft, Self::Open, Self::Paused, Self::Ended];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Open => "open",
            Self::Paused => "paused",
            Self::Ended => "ended",
        }
    }

    /// The legal moves of a sale. Saying again what is already so is always legal.
    pub const fn may_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Draft, Self::Draft | Self::Open | Self::Ended)
                | (Self::Open | Self::Paused, Self::Open | Self::Paused | Self::Ended)
                | (Self::Ended, Self::Ended)
        )
    }
}

impl fmt::Display for SaleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SaleState {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        let known = Self::ALL.into_iter().find(|state| state.as_str() == text);
        known.ok_or_else(|| UnknownWord(text.to_owned(), "sale state"))
    }
}

/// A sale as the catalogue knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sale {
    pub id: SaleId,
    pub name: String,
    /// Price of one unit, in cents.
    pub price_cents: i64,
    /// Most units that one order may hold.
    pub max_quantity: u32,
    pub starts_at: OffsetDateTime,
    pub ends_at: OffsetDateTime,
    pub state: SaleState,
    /// Whether a purchase must carry a token earned by a challenge.
    pub challenge: bool,
    /// Raised by every change of state or times; an older one never overwrites a newer one in Redis.
    pub revision: i64,
    /// The generation of the sale's Redis state; 0 until the sale is first opened.
    pub generation: i64,
    /// Units put on sale, in both pools.
    pub total: u32,
    /// Units that only the ledger sells, while Redis cannot be reached; those that are left.
    pub reserve: u32,
}
