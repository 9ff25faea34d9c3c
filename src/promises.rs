//! What the system promises, as checks over a snapshot of Redis and PostgreSQL.

use crate::domain::{OrderId, OrderStatus, Pool, Reason, SaleId, UserId};

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
    pub reason: Option<Reason>,
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
