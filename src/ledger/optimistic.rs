//! A write that is decided from what was read before it, and that writes only if `stock.version` is unchanged.
//!
//! In: how to read, decide and write once ([`OptimisticWrite`]). Guaranteed: an attempt that lost its race has written
//! nothing, so it may be made again; and a caller that lost too many races gets its turn, under the lock of the stock
//! row. How many races that is, and on which connection they are run, is the caller's decision.

use std::future::Future;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Connection, PgConnection, Postgres};

use super::error::{Attempt, Failure};
use super::{Error, Metrics, timed_out};
use crate::domain::SaleId;

/// Attempts under the lock of the stock row. Only a deadlock with a transaction that is not ours can spoil one: all of
/// ours lock the stock row first.
const LOCKED_ATTEMPTS: usize = 3;

/// Reading, deciding and writing, for one sale.
pub(super) trait OptimisticWrite: Sync {
    type Output: Send;

    fn sale(&self) -> SaleId;

    /// Reads everything, decides, and writes only if the stock row still has the version that was read.
    fn attempt(&self, connection: &mut PgConnection) -> impl Future<Output = Attempt<Self::Output>> + Send;

    /// What it means that the commit failed after this attempt.
    fn commit_failed(&self, _output: Self::Output, fault: sqlx::Error) -> Attempt<Self::Output> {
        Err(fault.into())
    }
}

/// Counts a lost race. `None`: it was one, and nothing was written.
pub(super) fn unless_lost<T>(attempt: Attempt<T>, metrics: &Metrics) -> Result<Option<T>, Error> {
    match attempt {
        Ok(output) => Ok(Some(output)),
        Err(Failure::LostRace) => {
            metrics.lost_races.inc();
            Ok(None)
        }
        Err(Failure::Final(fault)) => Err(fault),
    }
}

/// For a write that has lost too many races: nobody else can touch the stock row while it reads, decides and writes.
///
/// The caller runs this detached, because it opens transactions. An attempt that takes longer than `timeout` is given
/// up, together with its connection.
pub(super) async fn write_locked<W: OptimisticWrite>(
    connection: &mut PoolConnection<Postgres>,
    write: &W,
    metrics: &Metrics,
    timeout: Option<Duration>,
) -> Result<W::Output, Error> {
    metrics.row_locks.inc();
    for _ in 0..LOCKED_ATTEMPTS {
        let attempt = attempt_locked(connection, write);
        let attempt = match timeout {
            None => attempt.await,
            Some(timeout) => match tokio::time::timeout(timeout, attempt).await {
                Ok(attempt) => attempt,
                Err(_) => {
                    // Perhaps with an open transaction, so never back into the pool.
                    connection.close_on_drop();
                    return Err(timed_out().into());
                }
            },
        };
        if let Some(output) = unless_lost(attempt, metrics)? {
            return Ok(output);
        }
    }
    Err(Error::Contended(write.sale()))
}

async fn attempt_locked<W: OptimisticWrite>(connection: &mut PgConnection, write: &W) -> Attempt<W::Output> {
    let mut transaction = connection.begin().await?;
    sqlx::query("SELECT 1 FROM stock WHERE sale_id = $1 FOR UPDATE")
        .bind(write.sale().get())
        .fetch_optional(&mut *transaction)
        .await?;
    // Under READ COMMITTED each statement has a snapshot of its own, so this one sees all that the lock waited for.
    let output = write.attempt(&mut transaction).await?;
    match transaction.commit().await {
        Ok(()) => Ok(output),
        Err(fault) => write.commit_failed(output, fault),
    }
}
