//! The heartbeat of a relay: a row in PostgreSQL that says that it lives, and from which Redis process it has published
//! everything. A rebuild waits until every live relay has published what it had read from the process that is gone.

use std::time::Duration;

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::RelayFlushStatus;
use crate::ledger;
use crate::telemetry::Outage;

const INTERVAL: Duration = Duration::from_millis(250);

const BEAT: &str = "
    INSERT INTO relays (instance, seen_at, flushed_home) VALUES ($1, clock_timestamp(), $2)
    ON CONFLICT ON CONSTRAINT relays_pkey
    DO UPDATE SET seen_at = EXCLUDED.seen_at, flushed_home = EXCLUDED.flushed_home";

const UNFLUSHED: &str = "
    SELECT count(*) FROM relays
    WHERE seen_at > clock_timestamp() - $1 * interval '1 millisecond' AND flushed_home IS DISTINCT FROM $2";

/// Writes the heartbeat of one relay until `stop`, and then deletes it: a relay that has stopped holds nothing.
pub async fn run(pool: PgPool, relay: String, flush_status: RelayFlushStatus, stop: CancellationToken) {
    let outage = Outage::default();
    while !stop.is_cancelled() {
        // A relay without a worker has read nothing, and no rebuild has to wait for it.
        if !flush_status.is_empty() {
            match sqlx::query(BEAT).bind(&relay).bind(flush_status.flushed()).execute(&pool).await {
                Ok(_) => outage.recovered(|| info!("the heartbeat of the relay is written again")),
                Err(error) => outage.failed(&error, |error| {
                    warn!(%error, "the heartbeat of the relay cannot be written: a rebuild will wait for it");
                }),
            }
        }
        let _ = tokio::time::timeout(INTERVAL, stop.cancelled()).await;
    }
    let gone = sqlx::query("DELETE FROM relays WHERE instance = $1").bind(&relay).execute(&pool).await;
    if let Err(error) = gone {
        debug!(%error, "the heartbeat of the relay cannot be deleted; it becomes stale");
    }
}

/// Relays that may still hold orders of another Redis process than `run_id`. One without a heartbeat for `stale`
/// counts as dead: what it held is lost, or comes late and is recognised as late.
pub async fn unflushed(pool: &PgPool, run_id: &str, stale: Duration) -> Result<i64, ledger::Error> {
    let stale = i64::try_from(stale.as_millis()).unwrap_or(i64::MAX);
    Ok(sqlx::query_scalar(UNFLUSHED).bind(stale).bind(run_id).fetch_one(pool).await?)
}
