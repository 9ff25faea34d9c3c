//! A batch of messages becomes rows: read, decide, write in one statement; a lost race begins again.
//!
//! In: messages in any order, of any sales, any number of times, to any number of recorders at once. Guaranteed:
//! when this says yes, each message has exactly one row, and no statement ever took a unit that was not there.
//!
//! The stock row is the one point where recorders meet. Its `version` is raised by everything that changes which
//! orders are live, so a decision made from a snapshot at version V is right if and only if the write still finds
//! V. That is why there is no `ON CONFLICT` here: a conflict is never swallowed, it is a race that was lost.
//!
//! The first attempt reads the stock row alone and presumes that the messages are new ([`super::look`]). A redelivery
//! or a second order then loses that race, and is decided by all that is known.

use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tracing::debug;

use super::decide::{Decision, Verdict};
use super::error::sqlstate;
use super::look::{Stand, look, presume};
use super::transaction::to_the_end;
use super::{Error, Ledger, silent};
use crate::domain::{OrderMessage, OrderStatus, Rejection, SaleId};

/// Races that a batch may lose before it takes the lock that nobody can win against.
const RACES: usize = 3;

/// Attempts under that lock. Only a deadlock with a stranger's transaction can spoil one: our own take the stock row first.
const LOCKED_ATTEMPTS: usize = 3;

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
        for verdict in &decision.verdicts {
            let count = match verdict {
                Verdict::Create => &mut recorded.created,
                Verdict::Skip => &mut recorded.skipped,
                Verdict::Reject { reason: Rejection::SoldOut, .. } => &mut recorded.sold_out,
                Verdict::Reject { reason: Rejection::AlreadyPurchased, .. } => &mut recorded.already_purchased,
                Verdict::Reject { reason: Rejection::Superseded, .. } => &mut recorded.superseded,
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

    /// PostgreSQL refused the batch for one message in it and does not say which. The others are recorded; the one is
    /// named, or its whole partition would wait behind it for ever.
    async fn record_one_by_one(&self, sale: SaleId, batch: &[OrderMessage]) -> Result<Recorded, Error> {
        let mut recorded = Recorded::default();
        let mut guilty = None;
        for message in batch.iter().filter(|message| message.sale == sale) {
            match self.record_sale(sale, vec![message.clone()]).await {
                Ok(part) => recorded.add(&part),
                Err(fault) if fault.blames_the_data() => guilty = guilty.or(Some(message.id)),
                Err(fault) => return Err(fault),
            }
        }
        let Some(guilty) = guilty else { return Ok(recorded) };
        self.metrics.count(&recorded);
        Err(Error::Unrecordable(guilty))
    }

    async fn record_sale(&self, sale: SaleId, messages: Vec<OrderMessage>) -> Result<Recorded, Error> {
        for message in &messages {
            if !i32::try_from(message.quantity).is_ok_and(|quantity| quantity >= 1) {
                return Err(Error::Unrecordable(message.id));
            }
        }
        let window = self.pay_within;
        for race in 0..RACES {
            let reading = if race == 0 { Reading::Presumed } else { Reading::Whole };
            // The connection goes back between attempts: a loser should not keep a winner from the pool.
            let mut connection = self.pool.acquire().await?;
            match self.in_time(attempt(&mut connection, sale, &messages, window, reading)).await {
                Err(Failure::LostRace) => self.metrics.lost_races.inc(),
                Err(Failure::Final(fault)) => return Err(fault),
                Ok(recorded) => return Ok(recorded),
            }
        }
        debug!(%sale, "too many lost races: recording under the lock of the stock row");
        self.metrics.row_locks.inc();
        let (pool, metrics, patience) = (self.pool.clone(), self.metrics.clone(), self.patience);
        to_the_end(async move {
            let mut connection = pool.acquire().await?;
            for _ in 0..LOCKED_ATTEMPTS {
                let trying = attempt_locked(&mut connection, sale, &messages, window);
                let Ok(outcome) = tokio::time::timeout(patience, trying).await else {
                    // Perhaps with an open transaction, so never back into the pool.
                    connection.close_on_drop();
                    return Err(silent().into());
                };
                match outcome {
                    Err(Failure::LostRace) => metrics.lost_races.inc(),
                    Err(Failure::Final(fault)) => return Err(fault),
                    Ok(recorded) => return Ok(recorded),
                }
            }
            Err(Error::Contended(sale))
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
    /// The stock row. That the messages are new is presumed, and the unique indexes say if they are not.
    Presumed,
    /// The stock row, and what is known of each message.
    Whole,
}

/// How an attempt fails.
pub(super) enum Failure {
    /// The world changed between the read and the write. Nothing was written; read again.
    LostRace,
    Final(Error),
}

impl From<Error> for Failure {
    fn from(fault: Error) -> Self {
        Self::Final(fault)
    }
}

impl From<sqlx::Error> for Failure {
    fn from(fault: sqlx::Error) -> Self {
        match sqlstate(&fault).as_deref() {
            // unique_violation, serialization_failure, deadlock_detected
            Some("23505" | "40001" | "40P01") => Self::LostRace,
            _ => Self::Final(Error::Unavailable(fault)),
        }
    }
}

pub(super) type Attempt<T> = Result<T, Failure>;

/// Read, decide, write, without a lock and without a transaction of its own.
async fn attempt(
    connection: &mut PgConnection,
    sale: SaleId,
    messages: &[OrderMessage],
    window: Duration,
    reading: Reading,
) -> Attempt<Recorded> {
    let presumed = match reading {
        Reading::Presumed => presume(connection, sale, messages).await?,
        Reading::Whole => None,
    };
    let (stand, decision) = match presumed {
        Some(presumed) => presumed,
        None => look(connection, sale, messages).await?,
    };
    write(connection, sale, messages, stand, &decision, window).await?;
    Ok(Recorded::of(&decision))
}

/// The same three steps while nobody else can touch the stock row.
async fn attempt_locked(
    connection: &mut PgConnection,
    sale: SaleId,
    messages: &[OrderMessage],
    window: Duration,
) -> Attempt<Recorded> {
    let mut transaction = connection.begin().await?;
    sqlx::query("SELECT 1 FROM stock WHERE sale_id = $1 FOR UPDATE")
        .bind(sale.get())
        .fetch_optional(&mut *transaction)
        .await?;
    // Under READ COMMITTED each statement has a snapshot of its own, so this one sees all that the lock waited for.
    let recorded = attempt(&mut transaction, sale, messages, window, Reading::Whole).await?;
    transaction.commit().await?;
    Ok(recorded)
}

async fn write(
    connection: &mut PgConnection,
    sale: SaleId,
    messages: &[OrderMessage],
    stand: Stand,
    decision: &Decision,
    window: Duration,
) -> Attempt<()> {
    let rows = decision.rows();
    if rows == 0 {
        return Ok(());
    }
    let due = Due::from(messages, decision);
    let done = sqlx::query(WRITE)
        .bind(sale.get())
        .bind(stand.version)
        .bind(stand.generation)
        .bind(decision.units)
        .bind(window)
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
        for (message, verdict) in messages.iter().zip(&decision.verdicts) {
            let (status, reason, keyless) = match *verdict {
                Verdict::Skip => continue,
                Verdict::Create => (OrderStatus::Created, None, false),
                Verdict::Reject { reason, keyless } => (OrderStatus::Rejected, Some(reason), keyless),
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
