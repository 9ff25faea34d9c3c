//! Sales: creating and changing them.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, Row};
use time::{OffsetDateTime, UtcOffset};

use super::{Catalogue, Error};
use crate::domain::{Sale, SaleId, SaleState};

/// A sale with what its stock row adds to it, in a statement that has both tables under these names.
macro_rules! sale_columns {
    () => {
        "sales.id, sales.name, sales.price_cents, sales.max_quantity, sales.starts_at, sales.ends_at, sales.state, \
         sales.challenge, sales.revision, stock.generation, stock.total, stock.reserve"
    };
}

pub(super) use sale_columns;

/// What an operator says of a new sale.
#[derive(Clone, Debug)]
pub struct NewSale {
    pub name: String,
    /// Price of one unit, in cents.
    pub price_cents: i64,
    /// Most units that one order may hold.
    pub max_quantity: u32,
    pub starts_at: OffsetDateTime,
    pub ends_at: OffsetDateTime,
    pub challenge: bool,
    /// Units put on sale, in both pools.
    pub total: u32,
    /// Units of these that are kept from Redis, fewer than all; `None` leaves it to the settings, and without them is 0.
    pub reserve: Option<u32>,
}

/// How far an end may be past when it is set: the way of a request, and clocks that differ.
const LATE: Duration = Duration::from_secs(60);

/// What an operator changes. `None` leaves things as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaleChange {
    pub state: Option<SaleState>,
    pub starts_at: Option<OffsetDateTime>,
    pub ends_at: Option<OffsetDateTime>,
}

/// Sale and stock in one statement, so that there is never the one without the other. Redis gets what is not in reserve.
const CREATE: &str = concat!(
    "WITH sales AS (
        INSERT INTO sales (name, price_cents, max_quantity, starts_at, ends_at, challenge)
        VALUES ($1, $2, $3, $4, $5, $6) RETURNING *
    ), stock AS (
        INSERT INTO stock (sale_id, total, available, reserve, redis_total)
        SELECT id, $7, $7 - $8, $8, $7 - $8 FROM sales RETURNING *
    )
    SELECT ",
    sale_columns!(),
    " FROM sales, stock"
);

const READ: &str =
    concat!("SELECT ", sale_columns!(), " FROM sales JOIN stock ON stock.sale_id = sales.id WHERE sales.id = $1");

/// By the same measure as the copies of the nodes.
const ON_SALE: &str = "
    SELECT EXISTS (SELECT 1 FROM sales WHERE id = $1 AND state <> 'draft' AND ends_at + $2 > clock_timestamp())";

/// Only if nobody else changed the sale since it was read.
const CHANGE: &str = concat!(
    "UPDATE sales SET state = $3, starts_at = $4, ends_at = $5, revision = revision + 1
     FROM stock WHERE sales.id = $1 AND sales.revision = $2 AND stock.sale_id = sales.id
     RETURNING ",
    sale_columns!()
);

/// A sale, read from a row with `sale_columns!()`.
pub(super) struct SaleRow(pub Sale);

impl FromRow<'_, PgRow> for SaleRow {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        let decode = |fault: Box<dyn std::error::Error + Send + Sync>| sqlx::Error::Decode(fault);
        let count = |column| -> sqlx::Result<u32> {
            row.try_get::<i32, _>(column)?.try_into().map_err(|fault: std::num::TryFromIntError| decode(fault.into()))
        };
        Ok(Self(Sale {
            id: SaleId::new(row.try_get("id")?).map_err(|fault| decode(fault.into()))?,
            name: row.try_get("name")?,
            price_cents: row.try_get("price_cents")?,
            max_quantity: count("max_quantity")?,
            starts_at: row.try_get("starts_at")?,
            ends_at: row.try_get("ends_at")?,
            state: row.try_get::<&str, _>("state")?.parse().map_err(|fault| decode(Box::new(fault) as _))?,
            challenge: row.try_get("challenge")?,
            revision: row.try_get("revision")?,
            generation: row.try_get("generation")?,
            total: count("total")?,
            reserve: count("reserve")?,
        }))
    }
}

/// The sale as PostgreSQL knows it now, past retention or not; within the caller's transaction if there is one.
pub(crate) async fn read(connection: &mut PgConnection, sale: SaleId) -> sqlx::Result<Option<Sale>> {
    let row: Option<SaleRow> = sqlx::query_as(READ).bind(sale.get()).fetch_optional(connection).await?;
    Ok(row.map(|row| row.0))
}

impl Catalogue {
    /// Creates a draft with its stock. Redis hears of it when it is opened.
    pub async fn create(&self, new: NewSale) -> Result<Sale, Error> {
        storable(&new.name)?;
        let (starts_at, ends_at) = (whole_ms(new.starts_at)?, whole_ms(new.ends_at)?);
        let max_quantity = i32::try_from(new.max_quantity).map_err(|_| Error::Invalid("max_quantity is too large"))?;
        let total = i32::try_from(new.total).map_err(|_| Error::Invalid("a sale has at most 2147483647 units"))?;
        let reserve = i32::try_from(new.reserve.unwrap_or(0)).ok().filter(|reserve| *reserve < total.max(1));
        let reserve = reserve.ok_or(Error::Invalid("a reserve is smaller than the stock"))?;
        let query = sqlx::query_as(CREATE)
            .bind(new.name)
            .bind(new.price_cents)
            .bind(max_quantity)
            .bind(starts_at)
            .bind(ends_at)
            .bind(new.challenge)
            .bind(total)
            .bind(reserve);
        let SaleRow(sale) = query.fetch_one(&self.shared.pool).await?;
        self.show_own_change().await;
        Ok(sale)
    }

    /// Whether buyers of some node can see the sale: asks PostgreSQL, for when the copy does not know it.
    pub async fn is_on_sale(&self, id: SaleId) -> Result<bool, Error> {
        let query = sqlx::query_scalar(ON_SALE).bind(id.get()).bind(self.shared.retention);
        Ok(query.fetch_one(&self.shared.pool).await?)
    }

    /// Changes state or times and raises the revision, by which Redis tells a newer word from an older one.
    ///
    /// Asking for what already is changes nothing, the revision included, and answers with the sale: the caller
    /// tells Redis again what it was told before, which is how a repeat after a crash completes the first call.
    /// Nothing of an ended sale changes.
    pub async fn change(&self, id: SaleId, change: SaleChange) -> Result<Sale, Error> {
        loop {
            let mut connection = self.shared.pool.acquire().await?;
            let old = read(&mut connection, id).await?.ok_or(Error::UnknownSale(id))?;
            let Some(new) = changed(&old, change)? else {
                return Ok(old);
            };
            let query = sqlx::query_as(CHANGE)
                .bind(id.get())
                .bind(old.revision)
                .bind(new.state.as_str())
                .bind(new.starts_at)
                .bind(new.ends_at);
            // No row: somebody else's change came first, and this one is judged again by what it left.
            if let Some(SaleRow(sale)) = query.fetch_optional(&mut *connection).await? {
                drop(connection);
                self.show_own_change().await;
                return Ok(sale);
            }
        }
    }
}

/// The sale after the change, or `None` if that is how it stands already.
fn changed(old: &Sale, change: SaleChange) -> Result<Option<Sale>, Error> {
    let new = Sale {
        state: change.state.unwrap_or(old.state),
        starts_at: change.starts_at.map_or(Ok(old.starts_at), whole_ms)?,
        ends_at: change.ends_at.map_or(Ok(old.ends_at), whole_ms)?,
        ..old.clone()
    };
    if new == *old {
        return Ok(None);
    }
    if !old.state.may_become(new.state) {
        return Err(Error::IllegalMove { from: old.state, to: new.state });
    }
    if old.state == SaleState::Ended {
        return Err(Error::AlreadyEnded);
    }
    // Past retention the nodes and relays would forget the sale at once, with orders still on their way.
    if new.ends_at != old.ends_at && new.ends_at < OffsetDateTime::now_utc() - LATE {
        return Err(Error::Invalid("ends_at is past: to end a sale now, change its state"));
    }
    Ok(Some(new))
}

/// Redis is told milliseconds; the two must not disagree about the moment. In UTC, and within the years that every
/// part can tell: an offset may carry a time out of the range of its type, and retention is added to the end.
fn whole_ms(time: OffsetDateTime) -> Result<OffsetDateTime, Error> {
    let time = time.checked_to_offset(UtcOffset::UTC).filter(|time| (1970..=9900).contains(&time.year()));
    let time = time.ok_or(Error::Invalid("times are in the years 1970 to 9900"))?;
    Ok(time.replace_millisecond(time.millisecond()).unwrap_or(time))
}

/// PostgreSQL stores every character but one.
pub(super) fn storable(text: &str) -> Result<(), Error> {
    if text.contains('\0') { Err(Error::Invalid("a text has no NUL characters")) } else { Ok(()) }
}
