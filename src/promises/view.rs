//! What a check compares: the ledger, Redis, and what the buyers were told.

use crate::domain::{OrderId, OrderStatus, Pool, Rejection, SaleId, UserId};

/// One sale as the ledger holds it, read in one transaction.
#[derive(Clone, Debug)]
pub struct LedgerView {
    pub sale: SaleId,
    /// Units in both pools, sold or not.
    pub total: i64,
    /// Units of pool `redis` without a live order.
    pub available: i64,
    /// Units of pool `reserve` without a live order.
    pub reserve: i64,
    /// Units ever given to Redis.
    pub redis_total: i64,
    pub generation: i64,
    pub version: i64,
    pub max_quantity: u32,
    pub orders: Vec<OrderFact>,
}

/// What the promises need to know of an order.
#[derive(Clone, Debug)]
pub struct OrderFact {
    pub id: OrderId,
    pub user: UserId,
    pub quantity: u32,
    pub status: OrderStatus,
    pub reason: Option<Rejection>,
    pub pool: Pool,
    pub generation: i64,
}

/// One sale as Redis holds it, read atomically.
#[derive(Clone, Debug)]
pub struct RedisView {
    /// Whether this Redis can prove that it may sell: warmed for `generation`, not frozen, the same process.
    pub selling: bool,
    pub generation: i64,
    pub total: i64,
    pub remaining: i64,
    pub claims: Vec<ClaimFact>,
    /// Entries of the outbox that Kafka has not confirmed.
    pub outbox: u64,
}

/// A buyer's claim on units in Redis.
#[derive(Clone, Debug)]
pub struct ClaimFact {
    pub user: UserId,
    pub order: OrderId,
    pub quantity: u32,
}

/// What is still on its way from Redis to the ledger. Read the outbox first: what leaves it is in Kafka by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Entries of the outbox that Kafka has not confirmed.
    pub outbox: u64,
    /// Messages between the consumers' committed offsets and the watermarks.
    pub backlog: u64,
    /// Whether Redis waits to be rebuilt: it does not sell at the ledger's generation.
    pub rebuilding: bool,
}

impl Flow {
    /// Nothing is on its way: Redis and the ledger must say the same from here on.
    pub const fn is_settled(self) -> bool {
        self.outbox == 0 && self.backlog == 0 && !self.rebuilding
    }
}

/// What the buyers were told. It speaks of a whole sale: buyers that it does not know bought nothing.
#[derive(Clone, Debug, Default)]
pub struct ClientView {
    /// Every order id that was answered 202, once per buyer.
    pub answers: Vec<AnswerFact>,
    /// Buyers that got at least one answer which decides nothing (503, timeout, reset): they may hold an order
    /// that no answer named.
    pub unconfirmed: Vec<UserId>,
    /// Accepted orders that their own buyers could not read over HTTP.
    pub unreadable: Vec<OrderId>,
}

/// One order that one buyer was promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerFact {
    pub user: UserId,
    pub order: OrderId,
    /// The Idempotency-Key that it was asked for with.
    pub key: Option<String>,
}

/// Everything that is known of one sale at one time.
///
/// The ledger and Redis cannot be read at one instant. Read the ledger first, then Redis, and believe a broken
/// `covered` or `agreement` only when a second snapshot still shows it: an order that was closed and released in
/// between the two looks like a live order without a claim.
#[derive(Clone, Debug)]
pub struct Snapshot<'a> {
    pub ledger: LedgerView,
    /// None: Redis does not answer, holds nothing of the sale, or cannot be seen from here.
    pub redis: Option<RedisView>,
    /// None: nobody can say what is still on its way.
    pub flow: Option<Flow>,
    pub client: Option<&'a ClientView>,
    /// Whether buyers asked for at least as many units as there are. None: nobody counted.
    pub demand_reached_stock: Option<bool>,
}
