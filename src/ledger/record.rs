//! A batch of messages becomes rows: read, decide, write in one statement; a lost race begins again.
//!
//! In: messages in any order, of any sales, any number of times, to any number of recorders at once. Guaranteed:
//! when this says yes, each message has exactly one row, and no statement ever took a unit that was not there.
//!
//! The stock row is the one point where recorders meet. Its `version` is raised by everything that changes which
//! orders are live, so a decision made from a snapshot at version V is right if and only if the write still finds
//! V. That is why there is no `ON CONFLICT` here: a conflict is never swallowed, it is a race that was lost.
//!
//! The first attempt reads the stock row alone and assumes that the messages are new ([`super::read`]). A redelivery
//! or a second order then loses that race, and is decided by all that is known.

use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tracing::debug;

use super::decide::{Decision, RowDecision};
use super::error::{Attempt, Failure};
use super::optimistic::{self, OptimisticWrite};
use super::read::{StockSnapshot, decide_optimistically, read_and_decide};
use super::transaction::run_detached;
use super::{Error, Ledger};
use crate::domain::{OrderMessage, OrderStatus, Rejection, SaleId};

/// Races that a batch may lose before it locks the stock row.
const RACES: usize = 3;

/// The units and the rows, or nothing at all: the insert draws on what the update returned.
const WRITE: &str = "
    WITH moved AS (
        UPDATE stock SET available = available - $4, version = version + 1
        WHERE sale_id = $1 AND version = $2 AND generation = $3 AND available >= $4
        RETURNING sale_id
    )
    INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, status, reason, pool, generation,
                        request_key, fingerprint, created_at, pay_before)
    SELECT due.id, moved.sale_id, due.user_id, due.quantity, sales.price_cents * due.quantity, due.status, due.reason,
           'redis', due.generation, due.request_key, due.fingerprint, clock.now, clock.now + $5
    FROM moved
    JOIN sales ON sales.id = moved.sale_id
    CROSS JOIN unnest($6::uuid[], $7::text[], $8::int[], $9::text[], $10::text[], $11::bigint[], $12::text[],
                      $13::text[])
        AS due (id, user_id, quantity, status, reason, generation, request_key, fingerprint)
    CROSS JOIN (SELECT clock_timestamp() AS now) AS clock";

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    pub created: u64,
    pub sold_out: u64,
    pub already_purchased: u64,
    pub superseded: u64,
    /// Messages whose row was there already.
    pub skipped: u64,
}

impl Recorded {
    fn of(decision: &Decision) -> Self {
        let mut recorded = Self::default();
        for row in &decision.rows {
            let count = match row {
                RowDecision::Create => &mut recorded.created,
                RowDecision::Skip => &mut recorded.skipped,
                RowDecision::Reject { reason: Rejection::SoldOut, .. } => &mut recorded.sold_out,
                RowDecision::Reject { reason: Rejection::AlreadyPurchased, .. } => &mut recorded.already_purchased,
                RowDecision::Reject { reason: Rejection::Superseded, .. } => &mut recorded.superseded,
            };
            *count += 1;
        }
        recorded
    }

    fn add(&mut self, other: &Self) {
        self.created += other.created;
        self.sold_out += other.sold_out;
        self.already_purchased += other.already_purchased;
        self.superseded += other.superseded;
        self.skipped += other.skipped;
    }
}

impl Ledger {
    /// Makes a row of each message. May be repeated with the same messages, whole, in part or otherwise cut.
    ///
    /// Sales are recorded one after the other and independently: when one fails, the others of the batch are
    /// written nevertheless, and the first failure is the answer.
    pub async fn record(&self, batch: &[OrderMessage]) -> Result<Recorded, Error> {
        let began = Instant::now();
        let mut recorded = Recorded::default();
        let mut failure = None;
        for (sale, messages) in by_sale(batch) {
            let mut outcome = self.record_sale(sale, messages).await;
            if outcome.as_ref().is_err_and(Error::blames_the_data) {
                outcome = self.record_one_by_one(sale, batch).await;
            }
            match outcome {
                Ok(part) => {
                    self.metrics.count(&part);
                    recorded.add(&part);
                }
                Err(fault) => {
                    let others_may_fare_better = fault.concerns_one_sale();
                    failure.get_or_insert(fault);
                    if !others_may_fare_better {
                        break;
                    }
                }
            }
        }
        self.metrics.took(began.elapsed());
        failure.map_or(Ok(recorded), Err)
    }

    /// PostgreSQL refused the batch for one message in it and does not say which. The others are recorded. The answer
    /// names the invalid one, or its whole partition would wait behind it for ever.
    async fn record_one_by_one(&self, sale: SaleId, batch: &[OrderMessage]) -> Result<Recorded, Error> {
        let mut recorded = Recorded::default();
        let mut invalid = None;
        for message in batch.iter().filter(|message| message.sale == sale) {
            match self.record_sale(sale, vec![message.clone()]).await {
                Ok(part) => recorded.add(&part),
                Err(fault) if fault.blames_the_data() => invalid = invalid.or(Some(message.id)),
                Err(fault) => return Err(fault),
            }
        }
        let Some(invalid) = invalid else { return Ok(recorded) };
        self.metrics.count(&recorded);
        Err(Error::Unrecordable(invalid))
    }

    async fn record_sale(&self, sale: SaleId, messages: Vec<OrderMessage>) -> Result<Recorded, Error> {
        for message in &messages {
            if !i32::try_from(message.quantity).is_ok_and(|quantity| quantity >= 1) {
                return Err(Error::Unrecordable(message.id));
            }
        }
        let batch = Batch { sale, messages, pay_within: self.pay_within };
        for race in 0..RACES {
            let reading = if race == 0 { Reading::StockOnly } else { Reading::Everything };
            // The connection goes back between attempts: a loser should not keep a winner from the pool.
            let mut connection = self.pool.acquire().await?;
            let attempt = self.with_timeout(batch.attempt_after(reading, &mut connection)).await;
            if let Some(recorded) = optimistic::unless_lost(attempt, &self.metrics)? {
                return Ok(recorded);
            }
        }
        debug!(%sale, "too many lost races: recording under the lock of the stock row");
        let (pool, metrics, timeout) = (self.pool.clone(), self.metrics.clone(), self.timeout);
        run_detached(async move {
            let mut connection = pool.acquire().await?;
            optimistic::write_locked(&mut connection, &batch, &metrics, Some(timeout)).await
        })
        .await
    }
}

/// The messages of each sale, in their order.
fn by_sale(batch: &[OrderMessage]) -> Vec<(SaleId, Vec<OrderMessage>)> {
    let mut sales: Vec<(SaleId, Vec<OrderMessage>)> = Vec::new();
    for message in batch {
        match sales.iter_mut().find(|(sale, _)| *sale == message.sale) {
            Some((_, messages)) => messages.push(message.clone()),
            None => sales.push((message.sale, vec![message.clone()])),
        }
    }
    sales
}

/// How much is read before a batch is decided.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// The stock row alone. The messages are assumed to be new; the unique indexes refuse the write if they are not.
    StockOnly,
    /// The stock row, and what is known of each message.
    Everything,
}

/// The messages of one sale, on their way to become rows.
struct Batch {
    sale: SaleId,
    messages: Vec<OrderMessage>,
    pay_within: Duration,
}

impl OptimisticWrite for Batch {
    type Output = Recorded;

    fn sale(&self) -> SaleId {
        self.sale
    }

    async fn attempt(&self, connection: &mut PgConnection) -> Attempt<Recorded> {
        self.attempt_after(Reading::Everything, connection).await
    }
}

impl Batch {
    /// Read, decide, write, without a lock and without a transaction of its own.
    async fn attempt_after(&self, reading: Reading, connection: &mut PgConnection) -> Attempt<Recorded> {
        let optimistic = match reading {
            Reading::StockOnly => decide_optimistically(connection, self.sale, &self.messages).await?,
            Reading::Everything => None,
        };
        let (stock, decision) = match optimistic {
            Some(decided) => decided,
            None => read_and_decide(connection, self.sale, &self.messages).await?,
        };
        self.write(connection, stock, &decision).await?;
        Ok(Recorded::of(&decision))
    }

    async fn write(&self, connection: &mut PgConnection, stock: StockSnapshot, decision: &Decision) -> Attempt<()> {
        let rows = decision.row_count();
        if rows == 0 {
            return Ok(());
        }
        let due = Due::from(&self.messages, decision);
        let done = sqlx::query(WRITE)
            .bind(self.sale.get())
            .bind(stock.version)
            .bind(stock.generation)
            .bind(decision.units)
            .bind(self.pay_within)
            .bind(due.ids)
            .bind(due.users)
            .bind(due.quantities)
            .bind(due.statuses)
            .bind(due.reasons)
            .bind(due.generations)
            .bind(due.keys)
            .bind(due.fingerprints)
            .execute(connection)
            .await?;
        match done.rows_affected() {
            0 => Err(Failure::LostRace),
            written => {
                debug_assert_eq!(written, rows as u64, "one statement writes all rows or none");
                Ok(())
            }
        }
    }
}

/// The rows that are due, as the columns that `unnest` takes.
#[derive(Default)]
struct Due<'a> {
    ids: Vec<sqlx::types::Uuid>,
    users: Vec<&'a str>,
    quantities: Vec<i32>,
    statuses: Vec<&'static str>,
    reasons: Vec<Option<&'static str>>,
    generations: Vec<i64>,
    keys: Vec<Option<&'a str>>,
    fingerprints: Vec<Option<&'a str>>,
}

impl<'a> Due<'a> {
    fn from(messages: &'a [OrderMessage], decision: &Decision) -> Self {
        let mut due = Self::default();
        for (message, row) in messages.iter().zip(&decision.rows) {
            let (status, reason, keyless) = match *row {
                RowDecision::Skip => continue,
                RowDecision::Create => (OrderStatus::Created, None, false),
                RowDecision::Reject { reason, keyless } => (OrderStatus::Rejected, Some(reason), keyless),
            };
            let request = message.request.as_ref().filter(|_| !keyless);
            due.ids.push(message.id.uuid());
            due.users.push(message.user.as_str());
            due.quantities.push(message.quantity.cast_signed());
            due.statuses.push(status.as_str());
            due.reasons.push(reason.map(Rejection::as_str));
            due.generations.push(message.generation);
            due.keys.push(request.map(|request| &*request.key));
            due.fingerprints.push(request.map(|request| &*request.fingerprint));
        }
        due
    }
}
