//! What relays tell the reconciler: that they live, and that they have published what a lost Redis had given them.

use std::time::Duration;

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::ledger;
use crate::outbox::RelayFlushStatus;

const EVERY: Duration = Duration::from_millis(250);

const BEAT: &str = "
    INSERT INTO relays (instance, seen_at, flushed_home) VALUES ($1, clock_timestamp(), $2)
    ON CONFLICT ON CONSTRAINT relays_pkey
    DO UPDATE SET seen_at = EXCLUDED.seen_at, flushed_home = EXCLUDED.flushed_home";

const UNFLUSHED: &str = "
    SELECT count(*) FROM relays
    WHERE seen_at > clock_timestamp() - $1 * interval '1 millisecond' AND flushed_home IS DISTINCT FROM $2";

/// Writes the heartbeat of one relay until `stop`, and then takes it back: a relay that ended in order holds nothing.
pub async fn run(pool: PgPool, relay: String, flush_status: RelayFlushStatus, stop: CancellationToken) {
    let mut failing = false;
    while !stop.is_cancelled() {
        // A relay without a worker has read nothing.
        if !flush_status.is_empty() {
            let beat = sqlx::query(BEAT).bind(&relay).bind(flush_status.flushed()).execute(&pool).await;
            if let Err(error) = &beat
                && !failing
            {
                tracing::warn!(%error, "the heartbeat of the relay cannot be written: a rebuild will wait for it");
            }
            failing = beat.is_err();
        }
        let _ = tokio::time::timeout(EVERY, stop.cancelled()).await;
    }
    let gone = sqlx::query("DELETE FROM relays WHERE instance = $1").bind(&relay).execute(&pool).await;
    if let Err(error) = gone {
        tracing::debug!(%error, "the heartbeat stays behind, and grows stale");
    }
}

/// Relays that may still hold orders of another Redis than `home`. One that was silent for `stale` counts as dead:
/// what it held is lost, or will come late and be known to be late.
pub async fn unflushed(pool: &PgPool, home: &str, stale: Duration) -> Result<i64, ledger::Error> {
    let stale = i64::try_from(stale.as_millis()).unwrap_or(i64::MAX);
    Ok(sqlx::query_scalar(UNFLUSHED).bind(stale).bind(home).fetch_one(pool).await?)
}
