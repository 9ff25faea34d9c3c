//! One sale as the promises check it.

use sqlx::{PgConnection, Row};

use super::rows::{count, optional_parsed, parsed, sale_id};
use super::{Error, Ledger, run_detached};
use crate::domain::{OrderId, SaleId};
use crate::promises::{LedgerView, OrderFact};

impl Ledger {
    /// Stock and orders of one sale at one moment; `None` if there is no such sale. Reads every order: for audits
    /// and tests, not for a hot path.
    pub async fn view(&self, sale: SaleId) -> Result<Option<LedgerView>, Error> {
        let pool = self.pool.clone();
        run_detached(async move {
            // Two statements that must not disagree: one snapshot for both.
            let mut transaction = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?;
            let view = read(&mut transaction, sale).await?;
            transaction.commit().await?;
            Ok(view)
        })
        .await
    }
}

async fn read(connection: &mut PgConnection, sale: SaleId) -> Result<Option<LedgerView>, Error> {
    let query = sqlx::query(
        "SELECT stock.*, sales.max_quantity FROM stock JOIN sales ON sales.id = stock.sale_id
         WHERE stock.sale_id = $1",
    );
    let Some(stock) = query.bind(sale.get()).fetch_optional(&mut *connection).await? else {
        return Ok(None);
    };
    let query =
        sqlx::query("SELECT id, user_id, quantity, status, reason, pool, generation FROM orders WHERE sale_id = $1");
    let rows = query.bind(sale.get()).fetch_all(&mut *connection).await?;
    let fact = |row: &sqlx::postgres::PgRow| -> sqlx::Result<OrderFact> {
        Ok(OrderFact {
            id: OrderId::from_uuid(row.try_get("id")?),
            user: parsed(row, "user_id")?,
            quantity: count(row, "quantity")?,
            status: parsed(row, "status")?,
            reason: optional_parsed(row, "reason")?,
            pool: parsed(row, "pool")?,
            generation: row.try_get("generation")?,
        })
    };
    Ok(Some(LedgerView {
        sale: sale_id(&stock)?,
        total: count(&stock, "total")?.into(),
        available: count(&stock, "available")?.into(),
        reserve: count(&stock, "reserve")?.into(),
        redis_total: count(&stock, "redis_total")?.into(),
        generation: stock.try_get("generation")?,
        version: stock.try_get("version")?,
        max_quantity: count(&stock, "max_quantity")?,
        orders: rows.iter().map(fact).collect::<Result<_, _>>()?,
    }))
}
