//! Rows of the ledger as values of the domain.

use std::str::FromStr;

use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};

use crate::domain::{Order, OrderId, SaleId, UserId};

/// The columns of an order, in a statement that calls the table `orders`.
macro_rules! order_columns {
    () => {
        "orders.id, orders.sale_id, orders.user_id, orders.quantity, orders.amount_cents, orders.status, \
         orders.reason, orders.pool, orders.generation, orders.request_key, orders.created_at, orders.pay_before, \
         orders.payment_id"
    };
}

pub(super) use order_columns;

/// An order, read from a row with `order_columns!()`.
pub struct OrderRow(pub Order);

impl FromRow<'_, PgRow> for OrderRow {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self(Order {
            id: OrderId::from_uuid(row.try_get("id")?),
            sale: sale_id(row)?,
            user: parsed::<UserId>(row, "user_id")?,
            quantity: count(row, "quantity")?,
            amount_cents: row.try_get("amount_cents")?,
            status: parsed(row, "status")?,
            reason: optional_parsed(row, "reason")?,
            pool: parsed(row, "pool")?,
            generation: row.try_get("generation")?,
            request_key: row.try_get("request_key")?,
            created_at: row.try_get("created_at")?,
            pay_before: row.try_get("pay_before")?,
            payment_id: row.try_get("payment_id")?,
        }))
    }
}

pub fn sale_id(row: &PgRow) -> sqlx::Result<SaleId> {
    SaleId::new(row.try_get("sale_id")?).map_err(|fault| sqlx::Error::Decode(fault.into()))
}

/// A column that a CHECK keeps within the words of an enum, or within the letters of an id.
pub fn parsed<T>(row: &PgRow, column: &str) -> sqlx::Result<T>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    row.try_get::<&str, _>(column)?.parse().map_err(|fault: T::Err| sqlx::Error::Decode(Box::new(fault)))
}

pub fn optional_parsed<T>(row: &PgRow, column: &str) -> sqlx::Result<Option<T>>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    let text = row.try_get::<Option<&str>, _>(column)?;
    text.map(str::parse).transpose().map_err(|fault: T::Err| sqlx::Error::Decode(Box::new(fault)))
}

/// An integer column that a CHECK keeps from being negative.
pub fn count(row: &PgRow, column: &str) -> sqlx::Result<u32> {
    let number: i32 = row.try_get(column)?;
    u32::try_from(number).map_err(|fault| sqlx::Error::Decode(fault.into()))
}

pub fn optional_count(row: &PgRow, column: &str) -> sqlx::Result<Option<u32>> {
    let number = row.try_get::<Option<i32>, _>(column)?;
    number.map(u32::try_from).transpose().map_err(|fault| sqlx::Error::Decode(fault.into()))
}
