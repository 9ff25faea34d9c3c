//! Counts per second.

use std::time::Duration;

/// `count` things in `time`, per second.
pub fn per_second(count: u64, time: Duration) -> u64 {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    count.saturating_mul(1000) / ms
}
