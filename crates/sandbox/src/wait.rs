//! Waiting for something that does not notify a test.

use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Polls until `condition` holds. The deadline is a bound for broken code, so be generous with it: it costs nothing when
/// things work.
///
/// # Panics
/// With `what`, when the condition does not hold within `deadline`.
pub async fn wait_until<C, F>(what: &str, deadline: Duration, mut condition: C)
where
    C: FnMut() -> F,
    F: Future<Output = bool>,
{
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
