//! An order and the moves it may make.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::{OrderId, SaleId, UserId};

/// Where an order stands.
///
/// `Queued` is never stored in the ledger: it means that the order is in Redis or in Kafka and has no row yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OrderStatus {
    Queued,
    Created,
    Paid,
    Cancelled,
    Expired,
    Rejected,
}

impl OrderStatus {
    pub const ALL: [Self; 6] =
        [Self::Queued, Self::Created, Self::Paid, Self::Cancelled, Self::Expired, Self::Rejected];

    /// Whether the order holds units and its buyer's place: the ledger allows one live order per user and sale.
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Created | Self::Paid)
    }

    /// Whether no further move is possible.
    pub fn is_final(self) -> bool {
        !Self::ALL.into_iter().any(|next| self.may_become(next))
    }

    /// The one table of legal moves.
    pub const fn may_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Queued, Self::Created | Self::Rejected)
                | (Self::Created, Self::Paid | Self::Cancelled | Self::Expired)
        )
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Created => "created",
            Self::Paid => "paid",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Rejected => "rejected",
        }
    }
}

/// Why an order was rejected. Final, whatever the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// The ledger had fewer units than the order asks for.
    SoldOut,
    /// The buyer holds another live order in the sale.
    AlreadyPurchased,
    /// The order was accepted at an earlier generation of the sale's Redis state.
    Superseded,
}

impl Rejection {
    pub const ALL: [Self; 3] = [Self::SoldOut, Self::AlreadyPurchased, Self::Superseded];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SoldOut => "sold_out",
            Self::AlreadyPurchased => "already_purchased",
            Self::Superseded => "superseded",
        }
    }
}

/// Which of the two disjoint pools of units an order was sold from. Never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Units that Redis sells.
    Redis,
    /// Units that only the ledger sells, while Redis cannot be reached.
    Reserve,
}

impl Pool {
    pub const ALL: [Self; 2] = [Self::Redis, Self::Reserve];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Reserve => "reserve",
        }
    }
}

/// A word that is not one of an enum's names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a known {1}")]
pub struct UnknownWord(pub String, pub &'static str);

macro_rules! spelled {
    ($($word:ty => $what:literal),*) => {$(
        impl fmt::Display for $word {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $word {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                let known = Self::ALL.into_iter().find(|word| word.as_str() == text);
                known.ok_or_else(|| UnknownWord(text.to_owned(), $what))
            }
        }
    )*};
}

spelled!(OrderStatus => "order status", Rejection => "reason", Pool => "pool");

/// An order as the ledger holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub id: OrderId,
    pub sale: SaleId,
    pub user: UserId,
    /// Units.
    pub quantity: u32,
    /// Price of the sale times quantity, in cents.
    pub amount_cents: i64,
    pub status: OrderStatus,
    /// Set if and only if the status is `rejected`.
    pub reason: Option<Rejection>,
    pub pool: Pool,
    pub generation: i64,
    pub request_key: Option<String>,
    pub created_at: OffsetDateTime,
    pub pay_before: OffsetDateTime,
    /// The provider's id of the payment, if it is paid.
    pub payment_id: Option<String>,
}

/// An accepted purchase on its way to the ledger: one entry of the outbox, one message in Kafka.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderMessage {
    pub id: OrderId,
    pub sale: SaleId,
    pub user: UserId,
    /// Units, at least 1.
    pub quantity: u32,
    /// The generation of the sale's Redis state that accepted it.
    pub generation: i64,
    /// Milliseconds since the Unix epoch, by the clock of Redis.
    pub accepted_ms: i64,
    pub request: Option<super::RequestKey>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_final_states_are_exactly_these() {
        let finals: Vec<_> = OrderStatus::ALL.into_iter().filter(|status| status.is_final()).collect();
        use OrderStatus::{Cancelled, Expired, Paid, Rejected};
        assert_eq!(finals, [Paid, Cancelled, Expired, Rejected]);
    }

    #[test]
    fn only_created_and_paid_orders_are_live() {
        let live: Vec<_> = OrderStatus::ALL.into_iter().filter(|status| status.is_live()).collect();
        assert_eq!(live, [OrderStatus::Created, OrderStatus::Paid]);
    }
}
