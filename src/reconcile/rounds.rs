//! Which sale is looked at when: all of them again and again, several at a time.
//!
//! A rebuild may wait for minutes, for a Kafka that is away for example. What is overdue in other sales must not wait
//! with it, and after a restart of Redis the last of many sales should not stand still until all others are rebuilt.

use std::collections::{HashMap, HashSet};
use std::panic;
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
const SOON: Duration = Duration::from_millis(50);

/// What came of a look at a sale.
type Ended = Result<(SaleId, Result<(), Error>), JoinError>;

impl Reconciler {
    /// Looks at every sale again and again until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        // What is under way ends with this future, wherever it is: what it does may be cut off at any point.
        let _ = stop.run_until_cancelled(Arc::new(self).look_for_ever()).await;
    }

    async fn look_for_ever(self: Arc<Self>) {
        let every = Duration::from_millis(self.settings.every_ms);
        let mut rounds = Rounds::new(every, Duration::from_millis(self.settings.deep_every_ms));
        let mut looks = JoinSet::new();
        loop {
            for sale in self.catalogue.all() {
                if sale.state == SaleState::Draft {
                    continue;
                }
                let Some(deep) = rounds.begin(sale.id) else { continue };
                let reconciler = Arc::clone(&self);
                looks.spawn(async move { (sale.id, reconciler.run_once(&sale, deep).await.map(drop)) });
            }
            let mut due = Instant::now() + every;
            let mut hurried = false;
            loop {
                tokio::select! {
                    () = sleep_until(due) => break,
                    Some(ended) = looks.join_next() => {
                        rounds.end(ended);
                        if !hurried && !rounds.troubled.is_empty() {
                            due = due.min(Instant::now() + rounds.soon.next_pause());
                            hurried = true;
                        }
                    }
                }
            }
        }
    }
}

/// A place among the sales that are worked on at a time. Who waits for others gives it back meanwhile.
pub(super) struct Seat<'a> {
    all: &'a Semaphore,
    mine: Option<SemaphorePermit<'a>>,
}

impl<'a> Seat<'a> {
    pub(super) async fn take(all: &'a Semaphore) -> Self {
        // Nobody closes it.
        Self { all, mine: all.acquire().await.ok() }
    }

    pub(super) async fn leave_for(&mut self, pause: Duration) {
        self.mine = None;
        sleep(pause).await;
        self.mine = self.all.acquire().await.ok();
    }
}

struct Rounds {
    busy: HashSet<SaleId>,
    deep_at: HashMap<SaleId, Instant>,
    deep_every: Duration,
    troubled: HashMap<SaleId, Outage>,
    /// What is in trouble is looked at sooner. After a restart of Redis the first call over each connection fails, and
    /// a sale stands still meanwhile.
    soon: Backoff,
}

impl Rounds {
    fn new(every: Duration, deep_every: Duration) -> Self {
        Self {
            busy: HashSet::new(),
            deep_at: HashMap::new(),
            deep_every,
            troubled: HashMap::new(),
            soon: Backoff::new(SOON, every),
        }
    }

    /// Whether this look is a deep one. `None`: the last one has not ended, and looks must not pile up behind it.
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
            if let Some(outage) = self.troubled.remove(&sale) {
                outage.recovered(|| tracing::info!(%sale, "the reconciler can work on this sale again"));
            }
            return;
        };
        self.troubled.entry(sale).or_default().failed(error.to_string().as_str(), |trouble| {
            tracing::warn!(%sale, trouble, "the reconciler cannot do its work on this sale now; it goes on trying");
            self.soon.reset();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sale_is_looked_at_again_when_the_last_look_has_ended() {
        let mut rounds = Rounds::new(SOON, Duration::from_secs(3600));
        let (one, other) = (SaleId::new(1).expect("an id"), SaleId::new(2).expect("an id"));
        assert_eq!([rounds.begin(one), rounds.begin(other)], [Some(true), Some(true)], "the first look is a deep one");
        assert_eq!(rounds.begin(one), None);
        rounds.end(Ok((one, Ok(()))));
        assert_eq!([rounds.begin(one), rounds.begin(other)], [Some(false), None]);
    }

    #[tokio::test]
    async fn a_look_that_broke_down_breaks_the_reconciler_down() {
        let mut rounds = Rounds::new(SOON, SOON);
        let mut looks: JoinSet<(SaleId, Result<(), Error>)> = JoinSet::new();
        looks.spawn(async { panic!("a defect") });
        let ended = looks.join_next().await.expect("it ended");
        let told = panic::catch_unwind(panic::AssertUnwindSafe(|| rounds.end(ended)));
        assert_eq!(told.expect_err("a panic").downcast_ref::<&str>(), Some(&"a defect"));
    }
}
