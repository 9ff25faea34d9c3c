//! Step 8: the ledger. PostgreSQL holds the truth about units and orders, and is the last safeguard against
//! overselling.
//!
//! In: batches of accepted purchases from Kafka, and the transitions of orders afterwards. Decided: what becomes
//! of each message (`decide`). Guaranteed, after every transaction: total = available + reserve + units of live
//! orders, and redis_total = available + units of live orders of pool `redis`; a user holds at most one live order
//! of a sale; repeating any call changes nothing.
//!
//! Every statement that changes which orders are live, or how many units there are, raises `stock.version` and
//! stands alone or in one transaction. Tests and readers can take any moment: the books balance.

mod decide;

mod error;

mod generation;

mod metrics;

mod optimistic;

mod orders;

mod read;

mod record;

mod reserve;

mod rows;

mod stock;

mod transaction;

mod upkeep;

mod view;

use std::future::Future;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use secrecy::ExposeSecret;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool};

pub use error::Error;
pub(crate) use generation::raise_generation;
pub use generation::{Warm, WarmClaim, WarmRequest};
pub use metrics::Metrics;
pub use orders::Moved;
pub use record::Recorded;
pub use reserve::Reserved;
pub use stock::StockRow;
pub(crate) use transaction::run_detached;
pub use upkeep::{Closed, OrderState};

use crate::config;

/// A handle on the ledger; clones share one pool of connections and one set of counters.
#[derive(Clone, Debug)]
pub struct Ledger {
    pool: PgPool,
    pay_within: Duration,
    /// How long PostgreSQL may take over one call. Longer than its own limits, so that it only ends a wait for a
    /// server that is silent.
    timeout: Duration,
    metrics: Metrics,
}

impl Ledger {
    /// Connects, and fails if PostgreSQL does not answer now. `pay_within` is the time a buyer has to pay, counted
    /// by PostgreSQL's clock from the insertion of the row.
    pub async fn connect(settings: &config::Postgres, pay_within: Duration) -> Result<Self, Error> {
        let pool = PgPoolOptions::new()
            .max_connections(settings.max_connections)
            .acquire_timeout(Duration::from_millis(settings.acquire_timeout_ms))
            // The pool itself asks as well, but waits for ever: a silent connection would keep its place in it.
            .after_release(|connection, _| Box::pin(still_answers(connection)))
            .connect_with(options(settings)?)
            .await?;
        // PostgreSQL's intervals count microseconds.
        let pay_within = Duration::from_millis(pay_within.as_millis().try_into().unwrap_or(u64::MAX));
        let timeout = 3 * Duration::from_millis(settings.statement_timeout_ms);
        Ok(Self { pool, pay_within, timeout, metrics: Metrics::unregistered() })
    }

    /// Gives up on a server that is silent: a connection that a firewall forgot, or whose server died behind a
    /// balancer, never ends by itself. Only for work without a transaction; see [`run_detached`].
    async fn with_timeout<T, E: From<sqlx::Error>>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        tokio::time::timeout(self.timeout, work).await.unwrap_or_else(|_| Err(timed_out().into()))
    }

    pub const fn pool(&self) -> &PgPool {
        &self.pool
    }

    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

static MIGRATOR: sqlx::migrate::Migrator = sqlx::migrate!("./migrations");

/// Brings the schema up to date. Safe to run from several places at once: they wait for each other.
pub async fn migrate(pool: &PgPool) -> Result<(), sqlx::migrate::MigrateError> {
    MIGRATOR.run(pool).await
}

/// How many steps the schema of this version has.
pub fn migrations() -> usize {
    MIGRATOR.iter().count()
}

/// Whether a connection that goes back into the pool is good for another call. One that is not is closed.
async fn still_answers(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let answer = tokio::time::timeout(Duration::from_secs(1), connection.ping()).await;
    answer.unwrap_or_else(|_| Err(timed_out())).map(|()| true)
}

fn timed_out() -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, "PostgreSQL is silent"))
}

/// What every connection starts with. The limits are the server's, so that no client has to cut a statement off.
fn options(settings: &config::Postgres) -> Result<PgConnectOptions, Error> {
    let statement = settings.statement_timeout_ms;
    let limits = [
        ("statement_timeout", statement.to_string()),
        // Below the statement's own limit, so that a wait for a lock is reported as one.
        ("lock_timeout", (statement / 2).max(1).to_string()),
        // A client that stops between two statements must not keep the hot row.
        ("idle_in_transaction_session_timeout", statement.to_string()),
        // The races in `record` are reasoned about at this level, whatever the database's default is.
        ("default_transaction_isolation", "read committed".to_owned()),
        // A plan kept from the time when a table was empty scans the whole table for each message later.
        ("plan_cache_mode", "force_custom_plan".to_owned()),
        ("application_name", "seckill".to_owned()),
    ];
    Ok(PgConnectOptions::from_str(settings.url.expose_secret())?.options(limits))
}
