//! Open loop: requests come when they are due, whatever became of those before.
//!
//! Latency counts from the moment at which a request was due, so a server that stalls pays for every request that had
//! to wait behind the stall. Timers have a granularity of a millisecond, which every figure contains.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use seckill::domain::SaleId;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::crowd::Crowd;
use super::load::{Connection, all_of};

/// Enough that a connection is hardly ever still waiting when its next request is due.
const CONNECTIONS: u32 = 256;

/// Time for all connections to be open before the first request is due.
const HEAD_START: Duration = Duration::from_millis(200);

/// Latencies of one run, in order of size.
pub struct Latencies {
    /// Microseconds.
    sorted: Vec<u64>,
    /// Answers of another status than the one that is measured.
    pub others: u64,
}

impl Latencies {
    pub const fn count(&self) -> usize {
        self.sorted.len()
    }

    /// Milliseconds within which this share of the answers came.
    pub fn ms(&self, share: f64) -> f64 {
        let rank = (self.sorted.len() as f64 * share).ceil() as usize;
        self.sorted.get(rank.saturating_sub(1)).map_or(f64::NAN, |micros| *micros as f64 / 1e3)
    }
}

/// Sends `rate` requests a second, evenly, for `seconds`; each by the next buyer. Answers are to have this status.
pub async fn run(
    server: SocketAddr,
    crowd: &Arc<Crowd>,
    sale: SaleId,
    rate: f64,
    seconds: f64,
    status: u16,
) -> anyhow::Result<Latencies> {
    let each = Duration::from_secs_f64(f64::from(CONNECTIONS) / rate);
    let turns = (rate * seconds / f64::from(CONNECTIONS)).ceil() as usize;
    // Written before the first one is due: whatever is done in between shows in the figures.
    let requests: Vec<Vec<Vec<u8>>> = (0..CONNECTIONS as usize)
        .map(|place| (0..turns).map(|turn| crowd.request(sale, place + turn * CONNECTIONS as usize)).collect())
        .collect();
    let begin = Instant::now() + HEAD_START;
    let mut asking = JoinSet::new();
    for (place, requests) in (0..CONNECTIONS).zip(requests) {
        asking.spawn(async move {
            let mut connection = Connection::open(server).await?;
            let (mut micros, mut others) = (Vec::with_capacity(requests.len()), 0);
            let mut due = begin + each.mul_f64(f64::from(place) / f64::from(CONNECTIONS));
            for request in requests {
                sleep_until(due).await;
                connection.send(&request).await?;
                if connection.answer().await?.0 != status {
                    others += 1;
                }
                micros.push(u64::try_from(due.elapsed().as_micros())?);
                due += each;
            }
            anyhow::Ok((micros, others))
        });
    }
    let mut all = Latencies { sorted: Vec::new(), others: 0 };
    for (micros, others) in all_of(asking).await? {
        all.sorted.extend(micros);
        all.others += others;
    }
    all.sorted.sort_unstable();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_answer_within_which_that_share_came() {
        let latencies = Latencies { sorted: (1..=1000).map(|n| n * 1000).collect(), others: 0 };
        assert_eq!((latencies.ms(0.5), latencies.ms(0.99), latencies.ms(0.999)), (500.0, 990.0, 999.0));
    }
}
