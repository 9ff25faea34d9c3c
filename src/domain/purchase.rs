//! A purchase as it is asked for, and every way it can be answered.

use time::OffsetDateTime;

use super::{OrderId, StockVersion, UserId};

/// What one buyer asks of the stock of one sale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purchase {
    /// Chosen before it is sent. With an Idempotency-Key it follows from the key, so that a buyer's repeat has it again;
    /// without one a repeat has another id, and is told `AlreadyPurchased`.
    pub order: OrderId,
    pub user: UserId,
    /// Units, at least 1.
    pub quantity: u32,
    /// The generation that this purchase was first sent to. A retry never crosses into a newer one.
    pub generation: i64,
    pub request: Option<RequestKey>,
}

/// An Idempotency-Key and the fingerprint of the body that it came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestKey {
    /// The header's value, 1–64 printable ASCII characters.
    pub key: String,
    /// Lower-case hex of the first 8 bytes of SHA-256 over what the body asks for.
    pub fingerprint: String,
}

/// The answer of the stock to one purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// 202: the order stands in the outbox.
    Accepted(Accepted),
    /// A decided no. Nothing was written.
    Refused(Refusal),
    /// A Redis that answered cannot prove that it may sell at the purchase's generation. Nothing was written.
    Cold,
    /// It certainly did not run: there is no way to Redis now, it refuses to run anything, or the queue to it is full.
    /// Says nothing of the sale. Nothing was written.
    NotTried,
    /// No answer: the script may or may not have run. The buyer can ask for this order.
    Unknown(OrderId),
}

/// An order that the buyer holds now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub order: OrderId,
    /// Units of that order.
    pub quantity: u32,
    /// True if this answer repeats an earlier one (same Idempotency-Key; or the same order id, sent by a node once more).
    pub replayed: bool,
}

/// Every decided no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    SoldOut,
    /// Fewer units are left than were asked for.
    NotEnoughLeft {
        remaining: u32,
    },
    /// The buyer already holds this order in the sale.
    AlreadyPurchased {
        order: OrderId,
    },
    NotStarted {
        starts_at: OffsetDateTime,
    },
    Ended,
    Paused,
    /// More units than one order of this sale may hold.
    TooMany {
        max_quantity: u32,
    },
    /// The Idempotency-Key was used before with another body.
    KeyReused,
}

/// What an answer of Redis says about the stock of the whole sale, for any buyer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StockUpdate {
    pub version: StockVersion,
    /// Units left.
    pub remaining: u32,
}
