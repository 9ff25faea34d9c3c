//! A purchase from the reserve, decided by PostgreSQL alone, while Redis cannot be reached or may not sell.
//!
//! In: a purchase that Redis did not answer, was not asked, or may not decide. Decided: what the ledger knows of it already,
//! or else units of the reserve. Guaranteed: Redis never had those units, so whichever node asks and whenever, no unit
//! of an order of Redis is taken; the same order id, the same request key and the same buyer get one order.
//! A reserve that is too small does not mean "sold out": Redis may still have units, which the ledger cannot know.
//!
//! As in `record`, everything is read first, and the write finds the stock row at the version that was read or writes
//! nothing: every other write to the sale's orders raises it.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use time::OffsetDateTime;

use super::error::{Attempt, Failure, sqlstate};
use super::optimistic::{self, OptimisticWrite};
use super::rows::{count, optional_parsed, parsed};
use super::transaction::run_detached;
use super::{Error, Ledger};
use crate::domain::{Accepted, OrderId, OrderStatus, Purchase, Refusal, Rejection, SaleId, SaleState};

const STOCK: &str = "
    SELECT stock.version, stock.generation, stock.reserve, sales.state, sales.max_quantity, sales.starts_at,
           clock_timestamp() < sales.starts_at AS early, clock_timestamp() >= sales.ends_at AS late
    FROM stock JOIN sales ON sales.id = stock.sale_id WHERE stock.sale_id = $1";

/// What the ledger knows of the purchase: by its key, by its id, and by its buyer.
const KNOWN: &str = "
    (SELECT 'key' AS by, id, quantity, status, reason, fingerprint FROM orders
     WHERE sale_id = $1 AND user_id = $2 AND request_key = $3 AND request_key IS NOT NULL
       AND reason IS DISTINCT FROM 'superseded' LIMIT 1)
    UNION ALL
    (SELECT 'id', id, quantity, status, reason, fingerprint FROM orders WHERE id = $4 LIMIT 1)
    UNION ALL
    (SELECT 'buyer', id, quantity, status, reason, fingerprint FROM orders
     WHERE sale_id = $1 AND user_id = $2 AND status IN ('created', 'paid') LIMIT 1)";

/// The units and the row, or nothing at all. The hours are checked once more, by the clock at this moment.
const TAKE: &str = "
    WITH moved AS (
        UPDATE stock SET reserve = reserve - $4, version = version + 1
        FROM sales
        WHERE stock.sale_id = $1 AND stock.version = $2 AND stock.generation = $3 AND stock.reserve >= $4
          AND sales.id = stock.sale_id AND sales.state = 'open'
          AND clock_timestamp() >= sales.starts_at AND clock_timestamp() < sales.ends_at
        RETURNING stock.sale_id, stock.generation, sales.price_cents
    )
    INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, status, pool, generation,
                        request_key, fingerprint, created_at, pay_before)
    SELECT $6, moved.sale_id, $7, $4, moved.price_cents * $4, 'created', 'reserve', moved.generation,
           $8, $9, clock.now, clock.now + $5
    FROM moved CROSS JOIN (SELECT clock_timestamp() AS now) AS clock";

/// What the reserve answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// The buyer has this order now, or had it before.
    Accepted(Accepted),
    /// A decided no: never `SoldOut` or `NotEnoughLeft`.
    Refused(Refusal),
    /// Fewer units in reserve than asked for. Says nothing about the sale.
    Exhausted,
    /// PostgreSQL was lost while it wrote: this order may exist.
    Unknown(OrderId),
}

impl Ledger {
    /// Buys from the reserve, under the purchase's own id, or with an Idempotency-Key under the one derived for the
    /// ledger's generation. `spare` is used if that id ended as rejected before.
    ///
    /// May be repeated, also at the same time as the same order travels through Redis: one of the two becomes the row.
    ///
    /// # Errors
    /// Nothing was written then.
    pub async fn reserve_purchase(&self, sale: SaleId, purchase: Purchase, spare: OrderId) -> Result<Reserved, Error> {
        let (pool, metrics, pay_within) = (self.pool.clone(), self.metrics.clone(), self.pay_within);
        run_detached(async move {
            let mut connection = pool.acquire().await?;
            let request = ReserveRequest { sale, purchase, spare, pay_within };
            let attempt = request.attempt(&mut connection).await;
            if let Some(reserved) = optimistic::unless_lost(attempt, &metrics)? {
                return Ok(reserved);
            }
            // On a busy row, buyers of one unit each would lose to one another again and again: under the lock each
            // gets its turn, so one lost race is enough. No timeout: what was given up might have been written.
            optimistic::write_locked(&mut connection, &request, &metrics, None).await
        })
        .await
    }
}

/// A purchase that the reserve is asked for.
struct ReserveRequest {
    sale: SaleId,
    purchase: Purchase,
    spare: OrderId,
    pay_within: Duration,
}

impl OptimisticWrite for ReserveRequest {
    type Output = Reserved;

    fn sale(&self) -> SaleId {
        self.sale
    }

    async fn attempt(&self, connection: &mut PgConnection) -> Attempt<Reserved> {
        let query = sqlx::query(STOCK).bind(self.sale.get());
        let row = query.fetch_optional(&mut *connection).await?.ok_or(Error::UnknownSale(self.sale))?;
        let stock = StockSnapshot::from(&row)?;
        let known = self.known(connection, &stock).await?;
        match decide(&stock, &known, &self.purchase) {
            Decision::Answer(reserved) => Ok(reserved),
            Decision::Take => self.take(connection, &stock, self.id(&stock)).await,
            Decision::TakeUnderSpare => self.take(connection, &stock, self.spare).await,
        }
    }

    /// A fresh order may have been committed; any other answer has written nothing.
    fn commit_failed(&self, output: Reserved, fault: sqlx::Error) -> Attempt<Reserved> {
        match output {
            Reserved::Accepted(Accepted { order, replayed: false, .. }) => Ok(Reserved::Unknown(order)),
            _ => Err(Failure::Final(fault.into())),
        }
    }
}

impl ReserveRequest {
    /// Of the stock row's generation, not of the one that the node remembers: a late message of the same request at
    /// that generation then meets this row.
    fn id(&self, stock: &StockSnapshot) -> OrderId {
        let Purchase { order, user, request, .. } = &self.purchase;
        request.as_ref().map_or(*order, |request| OrderId::derived(self.sale, user, &request.key, stock.generation))
    }

    async fn known(&self, connection: &mut PgConnection, stock: &StockSnapshot) -> Result<Known, Error> {
        let query = sqlx::query(KNOWN)
            .bind(self.sale.get())
            .bind(self.purchase.user.as_str())
            .bind(self.purchase.request.as_ref().map(|request| request.key.as_str()))
            .bind(self.id(stock).uuid());
        let mut known = Known::default();
        for row in query.fetch_all(connection).await? {
            let place = match row.try_get("by")? {
                "key" => &mut known.by_key,
                "id" => &mut known.by_id,
                _ => &mut known.by_buyer,
            };
            *place = Some(Found::from(&row)?);
        }
        Ok(known)
    }

    async fn take(&self, connection: &mut PgConnection, stock: &StockSnapshot, under: OrderId) -> Attempt<Reserved> {
        let Purchase { user, quantity, request, .. } = &self.purchase;
        let taken = sqlx::query(TAKE)
            .bind(self.sale.get())
            .bind(stock.version)
            .bind(stock.generation)
            .bind(quantity.cast_signed())
            .bind(self.pay_within)
            .bind(under.uuid())
            .bind(user.as_str())
            .bind(request.as_ref().map(|request| request.key.as_str()))
            .bind(request.as_ref().map(|request| request.fingerprint.as_str()))
            .execute(connection)
            .await;
        match taken {
            Ok(done) if done.rows_affected() == 0 => Err(Failure::LostRace),
            Ok(_) => Ok(Reserved::Accepted(Accepted { order: under, quantity: *quantity, replayed: false })),
            Err(fault) => match sqlstate(&fault).as_deref() {
                // The server was stopped, perhaps just after it had committed.
                Some(code) if code.starts_with("57P") => Ok(Reserved::Unknown(under)),
                Some(_) => Err(fault.into()),
                None => Ok(Reserved::Unknown(under)),
            },
        }
    }
}

/// The stock row, and whether the sale is in its hours, at one moment.
struct StockSnapshot {
    version: i64,
    generation: i64,
    reserve: u32,
    state: SaleState,
    max_quantity: u32,
    starts_at: OffsetDateTime,
    early: bool,
    late: bool,
}

impl StockSnapshot {
    fn from(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            version: row.try_get("version")?,
            generation: row.try_get("generation")?,
            reserve: count(row, "reserve")?,
            state: parsed(row, "state")?,
            max_quantity: count(row, "max_quantity")?,
            starts_at: row.try_get("starts_at")?,
            early: row.try_get("early")?,
            late: row.try_get("late")?,
        })
    }
}

#[derive(Default)]
struct Known {
    by_key: Option<Found>,
    by_id: Option<Found>,
    by_buyer: Option<Found>,
}

struct Found {
    order: OrderId,
    quantity: u32,
    status: OrderStatus,
    reason: Option<Rejection>,
    fingerprint: Option<String>,
}

impl Found {
    fn from(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            order: OrderId::from_uuid(row.try_get("id")?),
            quantity: count(row, "quantity")?,
            status: parsed(row, "status")?,
            reason: optional_parsed(row, "reason")?,
            fingerprint: row.try_get("fingerprint")?,
        })
    }

    const fn again(&self) -> Decision {
        let accepted = Accepted { order: self.order, quantity: self.quantity, replayed: true };
        Decision::Answer(Reserved::Accepted(accepted))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Answer(Reserved),
    Take,
    TakeUnderSpare,
}

/// In the order of the script that decides in Redis: who has an order already learns of it, whatever the hour.
fn decide(stock: &StockSnapshot, known: &Known, purchase: &Purchase) -> Decision {
    let refused = |refusal| Decision::Answer(Reserved::Refused(refusal));
    if let Some(first) = &known.by_key {
        let fingerprint = purchase.request.as_ref().map(|request| &request.fingerprint);
        return if first.fingerprint.as_ref() == fingerprint { first.again() } else { refused(Refusal::KeyReused) };
    }
    match &known.by_id {
        Some(own) if own.status != OrderStatus::Rejected => return own.again(),
        // Redis took it without an answer to its buyer, and the ledger did not.
        Some(own) => debug_assert!(own.reason.is_some()),
        None => {}
    }
    if stock.late || stock.state == SaleState::Ended {
        return refused(Refusal::Ended);
    }
    if stock.state != SaleState::Open {
        return refused(Refusal::Paused);
    }
    if stock.early {
        return refused(Refusal::NotStarted { starts_at: stock.starts_at });
    }
    if let Some(live) = &known.by_buyer {
        return refused(Refusal::AlreadyPurchased { order: live.order });
    }
    if purchase.quantity > stock.max_quantity {
        return refused(Refusal::TooMany { max_quantity: stock.max_quantity });
    }
    if purchase.quantity > stock.reserve {
        return Decision::Answer(Reserved::Exhausted);
    }
    if known.by_id.is_some() { Decision::TakeUnderSpare } else { Decision::Take }
}
