//! What a batch is decided by: the stock row, and what the ledger knows of each message.
//!
//! Nearly every message is new: Redis refuses a second order of the same buyer, and a redelivery happens only after a
//! crash. To look a message up costs as much as to write it. So the first attempt assumes that all of them are new
//! ([`decide_optimistically`]) and relies on the unique indexes to refuse the write if one is not. Then the second
//! attempt looks all of them up ([`read_and_decide`]).

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::Error;
use super::decide::{self, Decision, Fact, RowDecision};
use super::error::Attempt;
use crate::domain::{OrderMessage, SaleId};

const STOCK: &str = "SELECT version, generation, available FROM stock WHERE sale_id = $1";

/// Stock row and what is known of each message, in one statement and so in one snapshot.
///
/// `LIMIT 1` keeps each look-up a subquery: the planner can neither flatten it into a join nor turn it into a scan
/// of the whole table, which it would do on a table that nobody has analysed yet.
const READ: &str = "
    SELECT stock.version, stock.generation, stock.available,
           same.id IS NOT NULL AS known, live.id IS NOT NULL AS holds_live, twin.id IS NOT NULL AS key_taken
    FROM stock
    CROSS JOIN unnest($2::uuid[], $3::text[], $4::text[]) WITH ORDINALITY AS message (id, user_id, request_key, place)
    LEFT JOIN LATERAL (SELECT id FROM orders WHERE orders.id = message.id LIMIT 1) AS same ON true
    LEFT JOIN LATERAL (
        SELECT id FROM orders
        WHERE orders.sale_id = $1 AND orders.user_id = message.user_id AND orders.status IN ('created', 'paid')
        LIMIT 1
    ) AS live ON true
    LEFT JOIN LATERAL (
        SELECT id FROM orders
        WHERE orders.sale_id = $1 AND orders.user_id = message.user_id AND orders.request_key = message.request_key
          AND orders.request_key IS NOT NULL AND orders.reason IS DISTINCT FROM 'superseded'
        LIMIT 1
    ) AS twin ON true
    WHERE stock.sale_id = $1
    ORDER BY message.place";

/// The stock row as it was read. A write checks that it is still the same.
#[derive(Clone, Copy)]
pub(super) struct StockSnapshot {
    pub(super) version: i64,
    pub(super) generation: i64,
}

/// Reads all that is known, and decides.
pub(super) async fn read_and_decide(
    connection: &mut PgConnection,
    sale: SaleId,
    messages: &[OrderMessage],
) -> Attempt<(StockSnapshot, Decision)> {
    let ids: Vec<_> = messages.iter().map(|message| message.id.uuid()).collect();
    let users: Vec<_> = messages.iter().map(|message| message.user.as_str()).collect();
    let keys: Vec<_> = messages.iter().map(|message| message.request.as_ref().map(|request| &*request.key)).collect();
    let rows = sqlx::query(READ).bind(sale.get()).bind(ids).bind(users).bind(keys).fetch_all(connection).await?;

    let (stock, available) = snapshot(rows.first().ok_or(Error::UnknownSale(sale))?)?;
    let fact = |(row, message): (&PgRow, _)| -> sqlx::Result<Fact<'_>> {
        let (known, holds_live) = (row.try_get("known")?, row.try_get("holds_live")?);
        Ok(Fact { message, known, holds_live, key_taken: row.try_get("key_taken")? })
    };
    let facts: Vec<_> = rows.iter().zip(messages).map(fact).collect::<Result<_, _>>()?;
    Ok((stock, decide_batch(sale, stock, available, &facts)?))
}

/// Reads the stock row, and decides as if every message were new. `None` if a message would not become an order then:
/// such a batch is looked up whole.
///
/// The write checks the assumption: the id of each order, its user's live order and its request key are each in a
/// unique index, so a message that is known after all fails the whole statement. A rejection is in no index that could
/// contradict it, so it is never decided this way.
pub(super) async fn decide_optimistically(
    connection: &mut PgConnection,
    sale: SaleId,
    messages: &[OrderMessage],
) -> Attempt<Option<(StockSnapshot, Decision)>> {
    let row = sqlx::query(STOCK).bind(sale.get()).fetch_optional(connection).await?;
    let (stock, available) = snapshot(&row.ok_or(Error::UnknownSale(sale))?)?;
    let new = |message| Fact { message, known: false, holds_live: false, key_taken: false };
    let facts: Vec<_> = messages.iter().map(new).collect();
    // A message that seems to be ahead of the ledger may have its row.
    let Ok(decision) = decide_batch(sale, stock, available, &facts) else { return Ok(None) };
    let creates = decision.rows.iter().all(|row| *row == RowDecision::Create);
    Ok(creates.then_some((stock, decision)))
}

/// The stock row, and the units that are available in it.
fn snapshot(row: &PgRow) -> sqlx::Result<(StockSnapshot, i32)> {
    let stock = StockSnapshot { version: row.try_get("version")?, generation: row.try_get("generation")? };
    Ok((stock, row.try_get("available")?))
}

fn decide_batch(sale: SaleId, stock: StockSnapshot, available: i32, facts: &[Fact<'_>]) -> Result<Decision, Error> {
    decide::decide(stock.generation, available.into(), facts).map_err(|ahead| Error::Ahead {
        sale,
        message_generation: ahead.message_generation,
        ledger_generation: stock.generation,
    })
}
