//! Fills a sale into Redis again: after a loss, a restart, a failover. With the opening, the only way to fill Redis from the ledger.
//!
//! Freeze, so that nothing more is accepted; let a ledger that was restored from an older copy catch up with what was
//! frozen; wait until everything that was accepted has a row; raise the generation, so that whatever comes later is
//! known to be late; warm. Each step may be repeated, and a lost lock means to start over: the steps are fenced in both
//! stores. Nobody sells in between.

use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, Instant};

use super::rounds::Permit;
use super::{Error, Reconciler};
use crate::domain::{OrderId, Sale, SaleId, UserId};
use crate::kafka;
use crate::ledger::{Warm, WarmRequest};
use crate::lock::Fence;
use crate::outbox::heartbeat;
use crate::stock::codec::{encode_claim, encode_request};
use crate::stock::script::WarmCode;
use crate::stock::{Frozen, OnSale, RunId, WarmPart};

/// How often the rebuild polls what others have to bring about; a tenth as often when that takes long.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Each poll of Kafka makes a new connection.
const KAFKA_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Claims or requests in one call of the script.
const PART: usize = 1_000;

/// A wait that is longer than this is logged with what it is for: somebody may have to repair that.
const WARN_AFTER: Duration = Duration::from_secs(3);

/// How long each step took, to show where a rebuild waits.
#[derive(Debug)]
pub(super) struct Steps {
    since: Instant,
    took: Vec<(&'static str, Duration)>,
    warned: bool,
}

impl Steps {
    fn begin() -> Self {
        Self { since: Instant::now(), took: Vec::new(), warned: false }
    }

    /// The pause before the next poll. Warns once for each step that takes too long, with what it waits for.
    fn wait_for(&mut self, sale: SaleId, who: &str, pause: Duration) -> Duration {
        if self.since.elapsed() <= WARN_AFTER {
            return pause;
        }
        if !self.warned {
            tracing::warn!(%sale, who, "a rebuild waits, and the sale does not sell meanwhile");
            self.warned = true;
        }
        pause * 10
    }

    fn done(&mut self, step: &'static str) {
        let now = Instant::now();
        self.took.push((step, now - self.since));
        (self.since, self.warned) = (now, false);
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (step, took)) in self.took.iter().enumerate() {
            write!(f, "{}{step} {} ms", if nth == 0 { "" } else { ", " }, took.as_millis())?;
        }
        Ok(())
    }
}

/// A rebuild under way.
struct Progress<'a, 'b> {
    sale: SaleId,
    steps: Steps,
    permit: &'a mut Permit<'b>,
}

impl Progress<'_, '_> {
    /// Gives the permit to other sales meanwhile.
    async fn wait_for(&mut self, who: &str, pause: Duration) {
        let pause = self.steps.wait_for(self.sale, who, pause);
        self.permit.release_during(pause).await;
    }
}

/// What became of a rebuild.
pub(super) struct Rebuilt {
    pub generation: i64,
    /// Orders that Redis was warmed with.
    pub live: usize,
    /// Those of them that this Redis did not have.
    pub forgotten: usize,
    pub steps: Steps,
}

impl Reconciler {
    /// Rebuilds the sale. Waits as long as it takes: the lock's maximum hold bounds it from outside.
    ///
    /// `None`: the ledger had to catch up first, and the next run rebuilds the sale, which is frozen. The orders of one
    /// sale wait in Kafka in front of those of another, so all ledgers catch up before any rebuild waits for Kafka.
    pub(super) async fn rebuild(
        &self,
        sale: &Sale,
        fence: &Fence,
        permit: &mut Permit<'_>,
    ) -> Result<Option<Rebuilt>, Error> {
        let mut progress = Progress { sale: sale.id, steps: Steps::begin(), permit };
        let Frozen::Yes { run_id, generation } = self.stock.freeze(sale.id, fence.token()).await? else {
            return Err(Error::Overtaken);
        };
        progress.steps.done("frozen");
        if self.ledger.catch_up(sale.id, generation, fence).await? {
            tracing::warn!(sale = %sale.id, generation, "the ledger was older than Redis and goes on from there: was it restored?");
            return Ok(None);
        }
        self.until_relays_have_flushed(&run_id, &mut progress).await?;
        progress.steps.done("relays flushed");
        let held = loop {
            self.until_the_outbox_is_empty(&mut progress).await?;
            progress.steps.done("outbox empty");
            self.until_the_ledger_has_caught_up(&mut progress).await?;
            progress.steps.done("ledger caught up");
            let (held, missing) = self.republish_what_has_no_row(sale.id).await?;
            progress.steps.done("rows compared");
            if missing == 0 {
                break held;
            }
        };
        let warm = self.ledger.open_generation(sale.id, generation, Some(fence)).await?;
        progress.steps.done("generation raised");
        self.warm(fence, &run_id, &warm).await?;
        progress.steps.done("warmed");
        let forgotten = warm.claims.iter().filter(|claim| !held.contains(&claim.order)).count();
        Ok(Some(Rebuilt { generation: warm.generation, live: warm.claims.len(), forgotten, steps: progress.steps }))
    }

    /// Orders that only a relay's memory holds are in Kafka afterwards.
    async fn until_relays_have_flushed(&self, run_id: &RunId, progress: &mut Progress<'_, '_>) -> Result<(), Error> {
        let stale = Duration::from_millis(self.settings.relay_stale_ms);
        while heartbeat::unflushed(self.ledger.pool(), run_id.as_str(), stale).await? > 0 {
            progress.wait_for("a relay that has yet to publish what it holds", POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn until_the_outbox_is_empty(&self, progress: &mut Progress<'_, '_>) -> Result<(), Error> {
        while self.stock.outbox_length(progress.sale).await? > 0 {
            progress.wait_for("a relay to empty the outbox", POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Every message that is in Kafka now has its row afterwards. Not "lag zero": other sales never pause.
    async fn until_the_ledger_has_caught_up(&self, progress: &mut Progress<'_, '_>) -> Result<(), Error> {
        let mut then = None;
        loop {
            let kafka = self.kafka.clone();
            // Asking Kafka blocks a thread.
            let asked = tokio::task::spawn_blocking(move || kafka::lag::measure(&kafka, then)).await;
            let (ahead, marks) = asked.map_err(anyhow::Error::from).flatten().map_err(Error::Kafka)?;
            if ahead == 0 {
                return Ok(());
            }
            then = Some(marks);
            progress.wait_for("a consumer to write what is in Kafka", KAFKA_POLL_INTERVAL).await;
        }
    }

    /// A claim whose message Kafka lost is its only trace: after the rebuild it would be gone. Answers with the orders
    /// that Redis has claims of, and how many of them were published.
    async fn republish_what_has_no_row(&self, sale: SaleId) -> Result<(HashSet<OrderId>, u64), Error> {
        let Some(holdings) = self.stock.holdings(sale).await? else { return Ok((HashSet::new(), 0)) };
        let orders: Vec<_> = holdings.claims.iter().map(|held| held.order).collect();
        let order_states = self.ledger.order_states(&orders).await?;
        let orphans: Vec<_> =
            holdings.claims.into_iter().filter(|held| !order_states.contains_key(&held.order)).collect();
        let published = self.republish(sale, holdings.generation, &orphans).await?;
        Ok((orders.into_iter().collect(), published))
    }

    async fn warm(&self, fence: &Fence, run_id: &RunId, warm: &Warm) -> Result<(), Error> {
        let on_sale = OnSale { generation: warm.generation, total: warm.total, remaining: warm.available };
        let claims: Vec<(UserId, String)> = warm
            .claims
            .iter()
            .map(|claim| (claim.user.clone(), encode_claim(claim.order, claim.quantity, claim.created_ms)))
            .collect();
        let requests: Vec<(String, String)> = warm
            .requests
            .iter()
            .map(|request| {
                let WarmRequest { user, key, fingerprint, order, quantity } = request;
                encode_request(user, key, fingerprint, *order, *quantity)
            })
            .collect();
        let parts = claims.len().div_ceil(PART).max(requests.len().div_ceil(PART)).max(1);
        for part in 0..parts {
            let part = WarmPart {
                first: part == 0,
                last: part + 1 == parts,
                claims: slice(&claims, part),
                requests: slice(&requests, part),
            };
            match self.stock.warm(&warm.sale, fence.token(), run_id, &on_sale, part).await? {
                WarmCode::Warmed => {}
                WarmCode::Refused => return Err(Error::Overtaken),
            }
        }
        Ok(())
    }
}

fn slice<T>(all: &[T], part: usize) -> &[T] {
    let start = (part * PART).min(all.len());
    &all[start..(start + PART).min(all.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_told_once_for_each_step_that_takes_too_long() {
        let sale = SaleId::new(1).expect("a sale id");
        let mut steps = Steps::begin();
        assert_eq!(steps.wait_for(sale, "a relay", POLL_INTERVAL), POLL_INTERVAL);
        assert!(!steps.warned, "it has only begun");
        steps.since = steps.since.checked_sub(2 * WARN_AFTER).expect("a machine that runs for seconds");
        assert_eq!(steps.wait_for(sale, "a relay", POLL_INTERVAL), 10 * POLL_INTERVAL);
        assert!(steps.warned);
        steps.done("relays flushed");
        assert!(!steps.warned, "the next step has a time of its own");
    }
}
