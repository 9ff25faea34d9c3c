//! What the reconciler reads from the ledger and writes to it. Every write checks the fence first.

use std::collections::HashMap;

use sqlx::Row;

use super::rows::parsed;
use super::{Error, Ledger, StockRow, run_detached};
use crate::domain::{OrderId, OrderStatus, Pool, Rejection, SaleId, UserId};
use crate::lock::Fence;

/// The state of an order, as far as its claim is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderState {
    pub status: OrderStatus,
    pub reason: Option<Rejection>,
    pub pool: Pool,
}

impl OrderState {
    /// Whether a claim in Redis may name this order.
    pub const fn deserves_a_claim(self) -> bool {
        self.status.is_live() && matches!(self.pool, Pool::Redis)
    }
}

/// An order that was closed, and has to be released in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    pub user: UserId,
    pub order: OrderId,
}

const ORDER_STATES: &str = "
    SELECT orders.id, orders.status, orders.reason, orders.pool
    FROM unnest($1::uuid[]) AS asked (id)
    CROSS JOIN LATERAL (SELECT * FROM orders WHERE orders.id = asked.id LIMIT 1) AS orders";

/// Live orders that Redis sold, old enough for their claims to be expected.
const CLAIMED: &str = "
    SELECT id, user_id FROM orders
    WHERE sale_id = $1 AND pool = 'redis' AND status IN ('created', 'paid')
      AND created_at < clock_timestamp() - $2 * interval '1 millisecond'";

const OVERDUE: &str = "
    SELECT count(*) FROM (
        SELECT FROM orders WHERE sale_id = $1 AND status = 'created' AND pay_before < clock_timestamp() LIMIT $2
    ) AS overdue";

/// The stock row first, as in every other writer: two that took the rows in another order would wait for each other.
/// The units of each order return to the pool that they were sold from.
const EXPIRE: &str = "
    WITH locked AS (
        SELECT sale_id FROM stock WHERE sale_id = $1 FOR UPDATE
    ), due AS (
        SELECT id FROM orders, locked
        WHERE orders.sale_id = locked.sale_id AND status = 'created' AND pay_before < clock_timestamp()
        ORDER BY pay_before LIMIT $2
    ), closed AS (
        UPDATE orders SET status = 'expired' FROM due
        WHERE orders.id = due.id AND orders.status = 'created'
        RETURNING orders.id, orders.user_id, orders.quantity, orders.pool
    ), returned AS (
        UPDATE stock SET
            available = available + coalesce((SELECT sum(quantity) FROM closed WHERE pool = 'redis'), 0),
            reserve = reserve + coalesce((SELECT sum(quantity) FROM closed WHERE pool = 'reserve'), 0),
            version = version + 1
        WHERE sale_id = $1 AND EXISTS (SELECT FROM closed)
    )
    SELECT id, user_id FROM closed";

/// The whole reserve becomes Redis' to sell. The caller tells Redis the new total.
const RELEASE_RESERVE: &str = "
    WITH moved AS (
        SELECT sale_id, reserve AS units FROM stock WHERE sale_id = $1 AND reserve > 0 FOR UPDATE
    ), operation AS (
        INSERT INTO stock_operations (sale_id, operation_id, kind, units)
        SELECT sale_id, $2, 'move', units FROM moved
    )
    UPDATE stock SET reserve = reserve - moved.units, available = available + moved.units,
                     redis_total = redis_total + moved.units, version = version + 1
    FROM moved WHERE stock.sale_id = moved.sale_id
    RETURNING stock.*";

impl Ledger {
    /// The states of these orders; those without a row are missing.
    pub async fn order_states(&self, orders: &[OrderId]) -> Result<HashMap<OrderId, OrderState>, Error> {
        let ids: Vec<_> = orders.iter().map(|order| order.uuid()).collect();
        let rows = self.with_timeout(sqlx::query(ORDER_STATES).bind(ids).fetch_all(&self.pool)).await?;
        let state = |row: &sqlx::postgres::PgRow| -> sqlx::Result<(OrderId, OrderState)> {
            let reason: Option<String> = row.try_get("reason")?;
            let reason = reason.map(|text| text.parse()).transpose();
            let reason = reason.map_err(|fault| sqlx::Error::Decode(Box::new(fault)))?;
            let state = OrderState { status: parsed(row, "status")?, reason, pool: parsed(row, "pool")? };
            Ok((OrderId::from_uuid(row.try_get("id")?), state))
        };
        Ok(rows.iter().map(state).collect::<Result<_, _>>()?)
    }

    /// Live orders of pool `redis` that were recorded at least `grace_ms` ago, with their buyers.
    pub async fn claimed(&self, sale: SaleId, grace_ms: u64) -> Result<HashMap<OrderId, UserId>, Error> {
        let query = sqlx::query(CLAIMED).bind(sale.get()).bind(i64::try_from(grace_ms).unwrap_or(i64::MAX));
        let rows = self.with_timeout(query.fetch_all(&self.pool)).await?;
        let claimed = |row: &sqlx::postgres::PgRow| -> sqlx::Result<(OrderId, UserId)> {
            Ok((OrderId::from_uuid(row.try_get("id")?), parsed(row, "user_id")?))
        };
        Ok(rows.iter().map(claimed).collect::<Result<_, _>>()?)
    }

    /// How many orders of the sale are unpaid beyond their time, by PostgreSQL's clock. Counts no further than `most`.
    pub async fn overdue(&self, sale: SaleId, most: u32) -> Result<u64, Error> {
        let query = sqlx::query_scalar::<_, i64>(OVERDUE).bind(sale.get()).bind(i64::from(most));
        Ok(self.with_timeout(query.fetch_one(&self.pool)).await?.unsigned_abs())
    }

    /// Closes at most `most` overdue orders as `expired` and puts their units back.
    pub async fn expire(&self, sale: SaleId, most: u32, fence: &Fence) -> Result<Vec<Closed>, Error> {
        let (pool, fence) = (self.pool.clone(), fence.clone());
        run_detached(async move {
            let mut transaction = pool.begin().await?;
            fence.guard(&mut transaction).await?;
            let query = sqlx::query(EXPIRE).bind(sale.get()).bind(i64::from(most));
            let rows = query.fetch_all(&mut *transaction).await?;
            transaction.commit().await?;
            let closed = |row: &sqlx::postgres::PgRow| -> sqlx::Result<Closed> {
                Ok(Closed { user: parsed(row, "user_id")?, order: OrderId::from_uuid(row.try_get("id")?) })
            };
            Ok(rows.iter().map(closed).collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Gives what is left of the reserve to Redis to sell. `None`: nothing was left.
    pub async fn release_reserve(
        &self,
        sale: SaleId,
        operation: &str,
        fence: &Fence,
    ) -> Result<Option<StockRow>, Error> {
        let (pool, fence, operation) = (self.pool.clone(), fence.clone(), operation.to_owned());
        run_detached(async move {
            let mut transaction = pool.begin().await?;
            fence.guard(&mut transaction).await?;
            let query = sqlx::query_as(RELEASE_RESERVE).bind(sale.get()).bind(operation);
            let row: Option<StockRow> = query.fetch_optional(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(row)
        })
        .await
    }
}
