//! One order: reading it, paying it, closing it.

use super::rows::{OrderRow, order_columns};
use super::{Error, Ledger};
use crate::domain::{Order, OrderId, OrderStatus, SaleId, UserId};

/// The change of status and what it means for the stock, in one statement: neither can happen without the other.
///
/// The guard on the old status is the whole protection against repeats and against payment racing expiry: of any
/// number of callers one finds `created`. A unit returns to the pool it was sold from, whatever has happened to
/// the sale since.
///
/// The stock row is locked first, as by every other writer: two that took the rows in another order would wait for each
/// other until PostgreSQL ends one of them.
const TRANSITION: &str = concat!(
    "WITH locked AS (
        SELECT stock.sale_id FROM stock JOIN orders ON orders.sale_id = stock.sale_id
        WHERE orders.id = $1 AND orders.status = 'created' FOR UPDATE OF stock
    ), moved AS (
        UPDATE orders SET status = $2, payment_id = $4 FROM locked
        WHERE orders.id = $1 AND orders.sale_id = locked.sale_id AND orders.status = 'created' RETURNING ",
    order_columns!(),
    "), returned AS (
        UPDATE stock SET
            available = available + CASE WHEN $3 AND moved.pool = 'redis' THEN moved.quantity ELSE 0 END,
            reserve = reserve + CASE WHEN $3 AND moved.pool = 'reserve' THEN moved.quantity ELSE 0 END,
            version = version + 1
        FROM moved WHERE stock.sale_id = moved.sale_id
    )
    SELECT moved.* FROM moved"
);

const BY_ID: &str = concat!("SELECT ", order_columns!(), " FROM orders WHERE id = $1");

/// The live order if there is one: a late rejection of another order must not hide it from its buyer.
const LATEST: &str = concat!(
    "SELECT ",
    order_columns!(),
    " FROM orders WHERE sale_id = $1 AND user_id = $2
     ORDER BY status IN ('created', 'paid') DESC, created_at DESC, id DESC LIMIT 1"
);

/// What came of asking for a new status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    /// It changed now, because of this call.
    Now(Order),
    /// It had that status already. Nothing was changed.
    Already(Order),
    /// Its status does not allow that one. Nothing was changed.
    Illegal(Order),
    /// No such row, or not yet.
    Unknown,
}

impl Moved {
    /// The order after the call.
    pub const fn order(&self) -> Option<&Order> {
        match self {
            Self::Now(order) | Self::Already(order) | Self::Illegal(order) => Some(order),
            Self::Unknown => None,
        }
    }
}

impl Ledger {
    pub async fn order(&self, id: OrderId) -> Result<Option<Order>, Error> {
        let row: Option<OrderRow> =
            self.with_timeout(sqlx::query_as(BY_ID).bind(id.uuid()).fetch_optional(&self.pool)).await?;
        Ok(row.map(|row| row.0))
    }

    /// The user's live order in the sale, or else the one recorded last.
    pub async fn latest_order(&self, sale: SaleId, user: &UserId) -> Result<Option<Order>, Error> {
        let query = sqlx::query_as(LATEST).bind(sale.get()).bind(user.as_str());
        let row: Option<OrderRow> = self.with_timeout(query.fetch_optional(&self.pool)).await?;
        Ok(row.map(|row| row.0))
    }

    /// Ends an unpaid order as `cancelled` or `expired` and puts its units back, once however often it is called.
    ///
    /// This comes first and Redis is told afterwards, by order id: a crash in between leaves a unit that Redis
    /// does not know to be free, never one that is sold twice.
    pub async fn close(&self, id: OrderId, how: OrderStatus) -> Result<Moved, Error> {
        match how {
            OrderStatus::Cancelled | OrderStatus::Expired => self.transition(id, how, None).await,
            _ => Err(Error::NotAClosing(how)),
        }
    }

    /// Marks an unpaid order as paid by this payment. Does not check the clock: until it is closed, an order can be
    /// paid. [`Moved::Already`] may show another payment's id: then this one pays nothing.
    pub async fn pay(&self, id: OrderId, payment: &str) -> Result<Moved, Error> {
        self.transition(id, OrderStatus::Paid, Some(payment)).await
    }

    async fn transition(&self, id: OrderId, next: OrderStatus, payment: Option<&str>) -> Result<Moved, Error> {
        loop {
            let frees_units = !next.is_live();
            let query = sqlx::query_as(TRANSITION).bind(id.uuid()).bind(next.as_str()).bind(frees_units).bind(payment);
            if let Some(OrderRow(order)) = query.fetch_optional(&self.pool).await? {
                return Ok(Moved::Now(order));
            }
            match self.order(id).await? {
                None => return Ok(Moved::Unknown),
                Some(order) if order.status == next => return Ok(Moved::Already(order)),
                // The row was inserted between the two statements. It is there now, so this happens once.
                Some(order) if order.status.may_become(next) => {}
                Some(order) => return Ok(Moved::Illegal(order)),
            }
        }
    }
}
