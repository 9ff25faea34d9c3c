//! Inspects one sale in both stores, without a lock and without a write.

use std::collections::HashSet;
use std::fmt;

use time::OffsetDateTime;

use super::{Error, Job, JobStats, Reconciler};
use crate::domain::{OrderId, Sale, SaleState};
use crate::ledger::StockRow;
use crate::stock::ClaimRecord;

/// Why a sale has to be rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuildReason {
    /// This Redis cannot prove that it may sell: it lost the sale, is another process, or was left frozen.
    Cold,
    /// It sells another generation than the ledger's.
    Generation,
    /// A live order has no claim: its units could be sold again.
    Uncovered,
}

impl fmt::Display for RebuildReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cold => "redis cannot prove that it may sell",
            Self::Generation => "redis sells another generation than the ledger's",
            Self::Uncovered => "a live order has no claim",
        })
    }
}

/// What is to be done about a sale.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// Of Redis.
    pub generation: i64,
    pub rebuild: Option<RebuildReason>,
    /// Unpaid orders beyond their time.
    pub overdue: u64,
    /// Claims, older than the grace, without a row.
    pub orphans: Vec<ClaimRecord>,
    /// Claims of orders that hold nothing (any more), or nothing of Redis.
    pub closed: Vec<ClaimRecord>,
    /// Redis knows of fewer units than the ledger has given to it.
    pub short_total: bool,
    /// The reserve is of no more use where it is.
    pub idle_reserve: bool,
    /// How far the inspection went.
    scope: Scope,
}

#[derive(Clone, Copy, Debug, Default)]
struct Scope {
    /// Redis sells at the ledger's generation.
    selling: bool,
    /// Claims, where they were compared with rows.
    claims: Option<usize>,
}

impl Inspection {
    /// What was checked and found, by job.
    pub fn stats(&self) -> JobStats {
        let mut stats = JobStats::default();
        stats.checked(Job::Expire, 1, usize::try_from(self.overdue).unwrap_or(usize::MAX));
        stats.checked(Job::Rebuild, 1, usize::from(self.rebuild.is_some()));
        if self.scope.selling {
            stats.checked(Job::ReleaseReserve, 1, usize::from(self.idle_reserve));
        }
        if let Some(claims) = self.scope.claims {
            stats.checked(Job::Republish, claims, self.orphans.len());
            stats.checked(Job::Release, claims, self.closed.len());
            stats.checked(Job::Total, 1, usize::from(self.short_total));
        }
        stats
    }
}

impl Reconciler {
    /// Inspects, and writes nothing: also the dry run of every job.
    pub async fn inspect(&self, sale: &Sale, deep: bool) -> Result<Inspection, Error> {
        let mut found = Inspection::default();
        let Some(row) = self.ledger.stock(sale.id).await? else { return Ok(found) };
        if row.generation == 0 || self.is_past_retention(sale) {
            return Ok(found);
        }
        found.overdue = self.ledger.overdue(sale.id, self.settings.max_repairs).await?;
        match self.stock.probe(sale.id).await? {
            None => found.rebuild = Some(RebuildReason::Cold),
            Some(update) if update.version.generation != row.generation => {
                found.rebuild = Some(RebuildReason::Generation)
            }
            Some(update) => {
                found.generation = update.version.generation;
                found.scope.selling = true;
                found.idle_reserve = row.reserve > 0 && (update.remaining == 0 || self.is_near_the_end(sale));
                self.inspect_holdings(sale, row, deep, &mut found).await?;
            }
        }
        self.metrics.inspected(&found.stats());
        Ok(found)
    }

    async fn inspect_holdings(
        &self,
        sale: &Sale,
        row: StockRow,
        deep: bool,
        found: &mut Inspection,
    ) -> Result<(), Error> {
        if !deep {
            return Ok(());
        }
        // Ledger before Redis: a claim is older than its row.
        let expected = self.ledger.claimed(sale.id, self.settings.grace_ms).await?;
        let Some(holdings) = self.stock.holdings(sale.id).await? else { return Ok(()) };
        found.scope.claims = Some(holdings.claims.len());
        found.short_total = holdings.total < row.redis_total;
        let claimed: HashSet<OrderId> = holdings.claims.iter().map(|held| held.order).collect();

        let uncovered: Vec<_> = expected.into_keys().filter(|order| !claimed.contains(order)).collect();
        if !uncovered.is_empty() && self.are_still_live(&uncovered).await? {
            tracing::error!(
                sale = %sale.id,
                orders = ?uncovered,
                "live orders without a claim, which must never be; the sale is rebuilt"
            );
            found.rebuild = Some(RebuildReason::Uncovered);
        }

        let orders: Vec<_> = claimed.into_iter().collect();
        let order_states = self.ledger.order_states(&orders).await?;
        let young = holdings.now_ms - i64::try_from(self.settings.grace_ms).unwrap_or(i64::MAX);
        let most = self.settings.max_repairs as usize;
        for held in holdings.claims {
            match order_states.get(&held.order) {
                Some(state) if state.deserves_a_claim() => {}
                Some(_) if found.closed.len() < most => found.closed.push(held),
                None if held.accepted_ms < young && found.orphans.len() < most => found.orphans.push(held),
                _ => {}
            }
        }
        Ok(())
    }

    /// An order that was closed and released between the two reads is no fault.
    async fn are_still_live(&self, orders: &[OrderId]) -> Result<bool, Error> {
        let order_states = self.ledger.order_states(orders).await?;
        Ok(order_states.values().any(|state| state.deserves_a_claim()))
    }

    fn is_near_the_end(&self, sale: &Sale) -> bool {
        let left = sale.ends_at - OffsetDateTime::now_utc();
        sale.state != SaleState::Ended
            && left.whole_seconds() <= i64::try_from(self.settings.move_before_end_s).unwrap_or(0)
    }

    /// Its keys may be gone by now, and that is as it should be. A margin, because two clocks are involved.
    fn is_past_retention(&self, sale: &Sale) -> bool {
        let margin = std::time::Duration::from_secs(300).min(self.retention / 2);
        let kept = time::Duration::try_from(self.retention.saturating_sub(margin)).unwrap_or(time::Duration::MAX);
        // An end so late that nothing can be added to it is not past.
        sale.ends_at.checked_add(kept).is_some_and(|end| OffsetDateTime::now_utc() > end)
    }
}
