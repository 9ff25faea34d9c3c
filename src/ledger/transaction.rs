//! Transactions that are never given up halfway.
//!
//! sqlx 0.9 may put a connection with an open transaction back into the pool when the future of `Pool::begin` is
//! dropped (by a timeout, a `select!`, a request whose client went away); the next user then works inside that
//! transaction. So every transaction of this module runs on a task of its own, which nobody aborts: a caller that is
//! dropped stops waiting, and the work goes on. The limits on time are the server's, set on each connection.

use std::future::Future;

/// Runs `work`, which begins and ends a transaction, to its end, whatever becomes of the caller.
pub async fn run_detached<T, E>(work: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<sqlx::Error> + Send + 'static,
{
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(end) if end.is_panic() => std::panic::resume_unwind(end.into_panic()),
        // The runtime is going down. The server rolls back what was not committed.
        Err(_) => Err(sqlx::Error::PoolClosed.into()),
    }
}
