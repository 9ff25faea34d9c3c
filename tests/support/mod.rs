//! Small helpers that tests share.
#![allow(dead_code, reason = "each test binary uses some of them")]

pub mod http;

pub mod service;

pub mod shop;

use std::future::Future;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(20);

/// Waits until `condition` holds, looking again and again; panics with `what` when it does not within `deadline`.
/// The deadline is a bound for broken code, so be generous with it: it costs nothing when things work.
pub async fn wait_until<C, F>(what: &str, deadline: Duration, mut condition: C)
where
    C: FnMut() -> F,
    F: Future<Output = bool>,
{
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}
