//! When each sale is inspected: all of them again and again, several at a time.
//!
//! A rebuild may wait for minutes, for example for a Kafka that is away. Other sales must not wait with it: their orders
//! fall due, and after a restart of Redis the last of many sales should not stop until all others are rebuilt.

use std::collections::{HashMap, HashSet};
use std::panic;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Error, Reconciler};
use crate::backoff::Backoff;
use crate::domain::{SaleId, SaleState};
use crate::telemetry::Outage;

/// The first pause after a run that failed; each one after it is twice as long, up to the usual one.
const FIRST_RETRY: Duration = Duration::from_millis(50);

/// How long a stop waits until all locks are given back.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The result of a run on a sale.
type Ended = Result<(SaleId, Result<(), Error>), JoinError>;

impl Reconciler {
    /// Works on every sale again and again until `stop`. Gives its locks back before it returns, so that the next
    /// reconciler does not have to wait for the leases of this one.
    pub async fn run(self, stop: CancellationToken) {
        let lock = self.lock.clone();
        let mut running = pin!(Arc::new(self).run_loop());
        if stop.run_until_cancelled(running.as_mut()).await.is_some() {
            return;
        }
        // Each run that holds a lock is notified of its loss, and ends: it may stop at any point. The others end with
        // `running`. A lock that cannot be given back in time expires by itself.
        lock.close(CLOSE_TIMEOUT).await;
    }

    async fn run_loop(self: Arc<Self>) {
        let every = Duration::from_millis(self.settings.every_ms);
        let mut rounds = Rounds::new(every, Duration::from_millis(self.settings.deep_every_ms));
        let mut runs = JoinSet::new();
        loop {
            for sale in self.catalogue.all() {
                if sale.state == SaleState::Draft {
                    continue;
                }
                let Some(deep) = rounds.begin(sale.id) else { continue };
                let reconciler = Arc::clone(&self);
                runs.spawn(async move { (sale.id, reconciler.run_once(&sale, deep).await.map(drop)) });
            }
            let mut due = Instant::now() + every;
            let mut retry_scheduled = false;
            loop {
                tokio::select! {
                    () = sleep_until(due) => break,
                    Some(ended) = runs.join_next() => {
                        rounds.end(ended);
                        if !retry_scheduled && !rounds.failing.is_empty() {
                            due = due.min(Instant::now() + rounds.retry_backoff.next_pause());
                            retry_scheduled = true;
                        }
                    }
                }
            }
        }
    }
}

/// A permit to work on a sale: only so many are worked on at a time. A run that waits gives it back meanwhile.
pub(super) struct Permit<'a> {
    all: &'a Semaphore,
    mine: Option<SemaphorePermit<'a>>,
}

impl<'a> Permit<'a> {
    pub(super) async fn acquire(all: &'a Semaphore) -> Self {
        // Nobody closes it.
        Self { all, mine: all.acquire().await.ok() }
    }

    pub(super) async fn release_during(&mut self, pause: Duration) {
        self.mine = None;
        sleep(pause).await;
        self.mine = self.all.acquire().await.ok();
    }
}

struct Rounds {
    busy: HashSet<SaleId>,
    deep_at: HashMap<SaleId, Instant>,
    deep_every: Duration,
    failing: HashMap<SaleId, Outage>,
    /// Sales that fail are tried again sooner. After a restart of Redis the first call over each connection fails, and
    /// a sale does not sell meanwhile.
    retry_backoff: Backoff,
}

impl Rounds {
    fn new(every: Duration, deep_every: Duration) -> Self {
        Self {
            busy: HashSet::new(),
            deep_at: HashMap::new(),
            deep_every,
            failing: HashMap::new(),
            retry_backoff: Backoff::new(FIRST_RETRY, every),
        }
    }

    /// Whether this run is a deep one. `None`: the last one has not ended, and runs must not pile up behind it.
    fn begin(&mut self, sale: SaleId) -> Option<bool> {
        if !self.busy.insert(sale) {
            return None;
        }
        let now = Instant::now();
        let deep = self.deep_at.get(&sale).is_none_or(|at| *at <= now);
        if deep {
            self.deep_at.insert(sale, now + self.deep_every);
        }
        Some(deep)
    }

    fn end(&mut self, ended: Ended) {
        // A defect, for which the process has to end like for any other.
        let (sale, outcome) = ended.unwrap_or_else(|error| panic::resume_unwind(error.into_panic()));
        self.busy.remove(&sale);
        self.tell_once(sale, outcome.err());
    }

    /// Logs when a sale begins to fail, when it fails for a new reason, and when that is over.
    fn tell_once(&mut self, sale: SaleId, error: Option<Error>) {
        let Some(error) = error else {
            if let Some(outage) = self.failing.remove(&sale) {
                outage.recovered(|| tracing::info!(%sale, "the reconciler can work on this sale again"));
            }
            return;
        };
        self.failing.entry(sale).or_default().failed(error.to_string().as_str(), |trouble| {
            tracing::warn!(%sale, trouble, "the reconciler cannot do its work on this sale now; it goes on trying");
            self.retry_backoff.reset();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sale_is_inspected_again_when_the_last_run_has_ended() {
        let mut rounds = Rounds::new(FIRST_RETRY, Duration::from_secs(3600));
        let (one, other) = (SaleId::new(1).expect("an id"), SaleId::new(2).expect("an id"));
        assert_eq!([rounds.begin(one), rounds.begin(other)], [Some(true), Some(true)], "the first run is a deep one");
        assert_eq!(rounds.begin(one), None);
        rounds.end(Ok((one, Ok(()))));
        assert_eq!([rounds.begin(one), rounds.begin(other)], [Some(false), None]);
    }

    #[tokio::test]
    async fn a_run_that_panics_ends_the_reconciler() {
        let mut rounds = Rounds::new(FIRST_RETRY, FIRST_RETRY);
        let mut runs: JoinSet<(SaleId, Result<(), Error>)> = JoinSet::new();
        runs.spawn(async { panic!("a defect") });
        let ended = runs.join_next().await.expect("it ended");
        let told = panic::catch_unwind(panic::AssertUnwindSafe(|| rounds.end(ended)));
        assert_eq!(told.expect_err("a panic").downcast_ref::<&str>(), Some(&"a defect"));
    }
}
