//! The tokens that fence the writers of a sale's Redis state: whoever holds an older one is overtaken.

use super::{Error, Ledger};

impl Ledger {
    /// The next fencing token of a resource: larger than every one before it, whoever asked for those, and than the one
    /// that was `seen` in Redis, where a ledger that was restored from an older copy has forgotten it.
    pub async fn fence_token(&self, resource: &str, holder: &str, seen: i64) -> Result<i64, Error> {
        let query = sqlx::query_scalar(
            "INSERT INTO lock_fence AS fence (resource, token, holder) VALUES ($1, $3 + 1, $2)
             ON CONFLICT ON CONSTRAINT lock_fence_pkey
             DO UPDATE SET token = GREATEST(fence.token, $3) + 1, holder = EXCLUDED.holder
             RETURNING token",
        );
        Ok(query.bind(resource).bind(holder).bind(seen).fetch_one(&self.pool).await?)
    }
}
