//! What has to be taken back out of PostgreSQL after a fault.

use anyhow::Context;
use seckill::ledger::Ledger;

/// Works as well where the triggers do not exist.
const REMOVE_TRIGGERS: &str = "
    SET LOCAL client_min_messages = warning;
    DROP FUNCTION IF EXISTS drill_refuse CASCADE;
    DROP SEQUENCE IF EXISTS drill_before, drill_after";

/// Removes the triggers by which `postgres-serialization-failures` refuses writes, so that the next fault starts with a
/// ledger that refuses nothing.
pub async fn remove_triggers(ledger: &Ledger) -> anyhow::Result<()> {
    sqlx::raw_sql(REMOVE_TRIGGERS).execute(ledger.pool()).await.map(drop).context("the triggers cannot be removed")
}
