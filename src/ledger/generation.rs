//! A new generation of a sale's Redis state, and everything that Redis is warmed with.

use sqlx::{PgConnection, Row};
use tracing::error;

use super::rows::{count, parsed};
use super::{Error, Ledger, StockRow, run_detached};
use crate::catalogue;
use crate::domain::{OrderId, Sale, SaleId, UserId};
use crate::lock::Fence;

/// What Redis sells in its new generation, read in the transaction that opened it.
#[derive(Clone, Debug)]
pub struct Warm {
    pub generation: i64,
    /// Units ever given to Redis: the ledger's `redis_total`.
    pub total: u32,
    /// Units that are left: all but those of the claims.
    pub available: u32,
    /// Live orders of pool `redis`. Those of the reserve have none: Redis never had their units.
    pub claims: Vec<WarmClaim>,
    /// Every request key that was ever answered, closed and rejected orders and both pools included.
    pub requests: Vec<WarmRequest>,
    /// State, times and revision as of that moment: a copy might be older than what Redis was told last.
    pub sale: Sale,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmClaim {
    pub user: UserId,
    pub order: OrderId,
    pub quantity: u32,
    /// Milliseconds since the Unix epoch, by PostgreSQL's clock: when the row was inserted.
    pub created_ms: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmRequest {
    pub user: UserId,
    pub key: String,
    pub order: OrderId,
    pub fingerprint: String,
    pub quantity: u32,
}

/// First in the transaction, for its lock on the stock row: a batch that is being written has either committed
/// before, and is in the snapshots that follow, or finds another generation and is decided again.
const OPEN: &str = "
    UPDATE stock SET generation = GREATEST(generation, $2) + 1, version = version + 1
    WHERE sale_id = $1 RETURNING *";

const CATCH_UP: &str = "UPDATE stock SET generation = $2, version = version + 1 WHERE sale_id = $1 AND generation < $2";

const CLAIMS: &str = "
    SELECT user_id, id, quantity, (extract(epoch FROM created_at) * 1000)::bigint AS created_ms
    FROM orders WHERE sale_id = $1 AND pool = 'redis' AND status IN ('created', 'paid')";

const REQUESTS: &str = "
    SELECT user_id, request_key, id, fingerprint, quantity
    FROM orders WHERE sale_id = $1 AND request_key IS NOT NULL AND reason IS DISTINCT FROM 'superseded'";

impl Ledger {
    /// Raises the generation to the one seen in Redis where it is behind, and says whether it was: a ledger that was
    /// restored from an older copy. What Redis accepted at a generation that the ledger does not know is never
    /// rejected. It waits in Kafka, and everything behind it waits too, until the ledger has caught up.
    pub async fn catch_up(&self, sale: SaleId, seen_in_redis: i64, fence: &Fence) -> Result<bool, Error> {
        let (pool, fence) = (self.pool.clone(), fence.clone());
        run_detached(async move {
            let mut transaction = pool.begin().await?;
            fence.guard(&mut transaction).await?;
            let raised = sqlx::query(CATCH_UP).bind(sale.get()).bind(seen_in_redis).execute(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(raised.rows_affected() == 1)
        })
        .await
    }

    /// Raises the generation above its own and above the one seen in Redis, and reads what Redis is warmed with.
    ///
    /// A call whose answer was lost is simply repeated: the generation in between is never sold from. Without a fence
    /// only for a sale whose row the caller has locked.
    pub async fn open_generation(
        &self,
        sale: SaleId,
        seen_in_redis: i64,
        fence: Option<&Fence>,
    ) -> Result<Warm, Error> {
        let (pool, fence) = (self.pool.clone(), fence.cloned());
        run_detached(async move {
            let mut transaction = pool.begin().await?;
            if let Some(fence) = fence {
                fence.guard(&mut transaction).await?;
            }
            let warm = raise_generation(&mut transaction, sale, seen_in_redis).await?;
            transaction.commit().await?;
            Ok(warm)
        })
        .await
    }
}

/// [`Ledger::open_generation`] within the caller's transaction: nothing is raised unless that commits.
pub(crate) async fn raise_generation(
    connection: &mut PgConnection,
    sale: SaleId,
    seen_in_redis: i64,
) -> Result<Warm, Error> {
    let query = sqlx::query_as(OPEN).bind(sale.get()).bind(seen_in_redis);
    let stock: StockRow = query.fetch_optional(&mut *connection).await?.ok_or(Error::UnknownSale(sale))?;

    let rows = sqlx::query(CLAIMS).bind(sale.get()).fetch_all(&mut *connection).await?;
    let claim = |row: &sqlx::postgres::PgRow| -> sqlx::Result<WarmClaim> {
        let (user, order) = (parsed(row, "user_id")?, OrderId::from_uuid(row.try_get("id")?));
        Ok(WarmClaim { user, order, quantity: count(row, "quantity")?, created_ms: row.try_get("created_ms")? })
    };
    let claims: Vec<_> = rows.iter().map(claim).collect::<Result<_, _>>()?;

    let rows = sqlx::query(REQUESTS).bind(sale.get()).fetch_all(&mut *connection).await?;
    let request = |row: &sqlx::postgres::PgRow| -> sqlx::Result<WarmRequest> {
        Ok(WarmRequest {
            user: parsed(row, "user_id")?,
            key: row.try_get("request_key")?,
            order: OrderId::from_uuid(row.try_get("id")?),
            fingerprint: row.try_get("fingerprint")?,
            quantity: count(row, "quantity")?,
        })
    };
    let requests = rows.iter().map(request).collect::<Result<_, _>>()?;

    let live: i64 = claims.iter().map(|claim| i64::from(claim.quantity)).sum();
    if i64::from(stock.redis_total) != i64::from(stock.available) + live {
        let fault =
            Error::Unbalanced { sale, redis_total: stock.redis_total.into(), available: stock.available.into(), live };
        error!(%fault, "the sale is not opened again from books that do not balance");
        return Err(fault);
    }
    let (total, available) = (stock.redis_total, stock.available);
    let sale = catalogue::read(connection, sale).await?.ok_or(Error::UnknownSale(sale))?;
    Ok(Warm { generation: stock.generation, total, available, claims, requests, sale })
}
