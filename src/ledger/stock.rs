//! The stock row: reading it, adding to it.

use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};

use super::error::sqlstate;
use super::rows::{count, optional_count, sale_id};
use super::{Error, Ledger};
use crate::domain::SaleId;

/// What is left of a sale, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StockRow {
    pub sale: SaleId,
    /// Both pools, sold or not. Rises when stock is added, never falls.
    pub total: u32,
    /// Pool `redis`, without a live order.
    pub available: u32,
    /// Pool `reserve`, without a live order.
    pub reserve: u32,
    /// Ever given to Redis. Never falls, so a late message with an older one can do no harm.
    pub redis_total: u32,
    /// The generation of the sale's Redis state; 0 until the sale is first opened.
    pub generation: i64,
    /// Raised by everything that changes this row or which orders are live.
    pub version: i64,
}

impl FromRow<'_, PgRow> for StockRow {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            sale: sale_id(row)?,
            total: count(row, "total")?,
            available: count(row, "available")?,
            reserve: count(row, "reserve")?,
            redis_total: count(row, "redis_total")?,
            generation: row.try_get("generation")?,
            version: row.try_get("version")?,
        })
    }
}

/// The operation and its effect in one statement. A repeat inserts nothing and so adds nothing; two at once wait
/// for each other on the operation's key.
const ADD: &str = "
    WITH operation AS (
        INSERT INTO stock_operations (sale_id, operation_id, kind, units)
        SELECT sale_id, $2, 'add', $3 FROM stock WHERE sale_id = $1
        ON CONFLICT ON CONSTRAINT stock_operations_pkey DO NOTHING
        RETURNING sale_id, units
    )
    UPDATE stock SET total = total + operation.units, available = available + operation.units,
                     redis_total = redis_total + operation.units, version = version + 1
    FROM operation WHERE stock.sale_id = operation.sale_id
    RETURNING stock.*";

const STOCK_AND_OPERATION: &str = "
    SELECT stock.*, operation.units AS added
    FROM stock
    LEFT JOIN stock_operations AS operation
           ON operation.sale_id = stock.sale_id AND operation.operation_id = $2 AND operation.kind = 'add'
    WHERE stock.sale_id = $1";

impl Ledger {
    pub async fn stock(&self, sale: SaleId) -> Result<Option<StockRow>, Error> {
        let query = sqlx::query_as("SELECT * FROM stock WHERE sale_id = $1");
        self.with_timeout(async { Ok(query.bind(sale.get()).fetch_optional(&self.pool).await?) }).await
    }

    /// Adds units for Redis to sell, once per operation id, and returns the stock row.
    ///
    /// `redis_total` is sent to Redis afterwards, as an absolute figure; it is sent again if it is lower there.
    pub async fn add_stock(&self, sale: SaleId, units: u32, operation_id: &str) -> Result<StockRow, Error> {
        let units = i32::try_from(units).ok().filter(|units| *units >= 1).ok_or(Error::UnitsOutOfRange)?;
        let query = sqlx::query_as(ADD).bind(sale.get()).bind(operation_id).bind(units);
        match query.fetch_optional(&self.pool).await {
            Ok(Some(stock)) => return Ok(stock),
            Ok(None) => {}
            // numeric_value_out_of_range: the total no longer fits.
            Err(fault) if sqlstate(&fault).as_deref() == Some("22003") => return Err(Error::UnitsOutOfRange),
            Err(fault) => return Err(fault.into()),
        }
        let query = sqlx::query(STOCK_AND_OPERATION).bind(sale.get()).bind(operation_id);
        let row = query.fetch_optional(&self.pool).await?.ok_or(Error::UnknownSale(sale))?;
        if optional_count(&row, "added")? != Some(units.cast_unsigned()) {
            return Err(Error::OperationReused { sale, operation: operation_id.to_owned() });
        }
        Ok(StockRow::from_row(&row)?)
    }
}
