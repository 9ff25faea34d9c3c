//! Where a lock is checked: at the things that are written.
//!
//! No lock with a time limit can keep a holder that was paused from waking up and writing. So each holder has a token
//! greater than all before, claims the resource with it once, and shows it at every write. A later claim
//! with a greater token shuts out all earlier holders.

use prometheus::IntCounter;
use sqlx::{PgConnection, PgPool};
use tracing::error;

/// Why nothing may be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody with a greater token was here, or the claim is not in this database any more. Start again from the
    /// lock.
    #[error("token {token} for {resource} was overtaken")]
    Overtaken { resource: String, token: i64 },
    #[error("the fence is unavailable: {0}")]
    Unavailable(#[from] sqlx::Error),
}

/// Strictly greater, so that two holders of an equal token (minted by a Redis that forgot) never both pass. The same
/// holder may repeat its claim, whose answer was perhaps lost.
const CLAIM: &str = "
    INSERT INTO lock_fence AS fence (resource, token, holder) VALUES ($1, $2, $3)
    ON CONFLICT ON CONSTRAINT lock_fence_pkey DO UPDATE SET token = EXCLUDED.token, holder = EXCLUDED.holder
    WHERE fence.token < EXCLUDED.token OR (fence.token = EXCLUDED.token AND fence.holder = EXCLUDED.holder)";

/// Shared, so that a later claim waits until this transaction has ended. A plain read would leave a gap between the
/// check and the write.
const GUARD: &str = "SELECT 1 FROM lock_fence WHERE resource = $1 AND token = $2 AND holder = $3 FOR SHARE";

/// Larger than every token before it, from any process.
const MINT: &str = "
    INSERT INTO lock_fence AS fence (resource, token, holder) VALUES ($1, $3 + 1, $2)
    ON CONFLICT ON CONSTRAINT lock_fence_pkey
    DO UPDATE SET token = GREATEST(fence.token, $3) + 1, holder = EXCLUDED.holder
    RETURNING token";

const FLOOR: &str = "SELECT token FROM lock_fence WHERE resource = $1";

/// The greatest token ever claimed for the resource; 0 before the first.
pub async fn floor(pool: &PgPool, resource: &str) -> Result<i64, sqlx::Error> {
    Ok(sqlx::query_scalar(FLOOR).bind(resource).fetch_optional(pool).await?.unwrap_or(0))
}

/// Claims the resource without the lock: for a writer that is alone by other means, as the opening of a sale is by the
/// lock on the sale's row. The token is larger than every one before it, and than the one that was `seen` in Redis:
/// a ledger that was restored from an older copy has forgotten that one.
pub async fn mint(pool: &PgPool, resource: &str, holder: &str, seen: i64) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(MINT).bind(resource).bind(holder).bind(seen).fetch_one(pool).await
}

/// Shuts out everybody with a smaller token, waiting for their open transactions (as long as the connection's
/// `lock_timeout` allows). `holder` must be unique to this acquisition of the lock. Safe to repeat.
pub async fn claim(pool: &PgPool, resource: &str, token: i64, holder: &str) -> Result<(), Error> {
    let claimed = sqlx::query(CLAIM).bind(resource).bind(token).bind(holder).execute(pool).await?;
    if claimed.rows_affected() == 1 { Ok(()) } else { Err(overtaken(resource, token, holder)) }
}

/// The first statement of every writing transaction: fails when a greater token was claimed, and otherwise keeps
/// greater ones waiting until the transaction has ended.
pub async fn guard(connection: &mut PgConnection, resource: &str, token: i64, holder: &str) -> Result<(), Error> {
    let query = sqlx::query(GUARD).bind(resource).bind(token).bind(holder);
    match query.fetch_optional(connection).await? {
        Some(_) => Ok(()),
        None => Err(overtaken(resource, token, holder)),
    }
}

fn overtaken(resource: &str, token: i64, holder: &str) -> Error {
    error!(resource, token, holder, "a greater fencing token was here: nothing is written");
    Error::Overtaken { resource: resource.to_owned(), token }
}

/// A claimed token. There is no other way to get one, so nobody can guard a write with a token that shuts out nobody.
#[derive(Clone, Debug)]
pub struct Fence {
    resource: String,
    token: i64,
    holder: String,
    rejected: IntCounter,
}

impl Fence {
    pub(super) async fn claim(
        pool: &PgPool,
        resource: String,
        token: i64,
        holder: String,
        rejected: IntCounter,
    ) -> Result<Self, Error> {
        let fence = Self { resource, token, holder, rejected };
        fence.count(claim(pool, &fence.resource, token, &fence.holder).await)?;
        Ok(fence)
    }

    /// What `freeze` and `warm` are called with.
    pub const fn token(&self) -> i64 {
        self.token
    }

    /// The first statement of every writing transaction of the job. On an error: roll back.
    pub async fn guard(&self, connection: &mut PgConnection) -> Result<(), Error> {
        self.count(guard(connection, &self.resource, self.token, &self.holder).await)
    }

    fn count(&self, result: Result<(), Error>) -> Result<(), Error> {
        if matches!(result, Err(Error::Overtaken { .. })) {
            self.rejected.inc();
        }
        result
    }
}
