//! What the system promises, written once, as checks over a snapshot of the ledger, Redis and the buyers' record.
//!
//! A [`Snapshot`] comes in, one [`Finding`] per promise goes out, in the order of [`NAMES`]. Nothing here does
//! I/O: the same checks serve property tests, the audit endpoint and the verdict of a load test.
//! A promise that cannot be judged from what is there says so; it is never taken for kept.

mod buyers;

mod stock;

#[cfg(test)]
mod tests;

mod view;

use serde::{Serialize, Serializer};

pub use view::{AnswerFact, ClaimFact, ClientView, Flow, LedgerView, OrderFact, RedisView, Snapshot};

/// The promises, in the order in which findings come.
pub const NAMES: [&str; 10] = [
    "no_oversell",
    "no_undersell",
    "one_per_user",
    "nothing_lost",
    "honoured",
    "redis_conserved",
    "ledger_conserved",
    "covered",
    "agreement",
    "exactly_once",
];

/// Whether a promise is kept. In JSON: `true`, `false`, or `null` when it could not be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckResult {
    Holds,
    Broken,
    Unknown,
}

impl From<bool> for CheckResult {
    fn from(kept: bool) -> Self {
        if kept { Self::Holds } else { Self::Broken }
    }
}

impl Serialize for CheckResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let holds = match self {
            Self::Holds => Some(true),
            Self::Broken => Some(false),
            Self::Unknown => None,
        };
        holds.serialize(serializer)
    }
}

/// What the check of one promise found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Finding {
    /// One of [`NAMES`].
    pub name: &'static str,
    /// null: could not be checked from here.
    #[schema(value_type = Option<bool>)]
    pub holds: CheckResult,
    /// The figures behind it, in words.
    pub detail: String,
}

/// Checks every promise.
pub fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let findings = [
        stock::no_oversell(snapshot),
        stock::no_undersell(snapshot),
        buyers::one_per_user(snapshot),
        buyers::nothing_lost(snapshot),
        buyers::honoured(snapshot),
        stock::redis_conserved(snapshot),
        stock::ledger_conserved(snapshot),
        stock::covered(snapshot),
        stock::agreement(snapshot),
        buyers::exactly_once(snapshot),
    ];
    NAMES.into_iter().zip(findings).map(|(name, (holds, detail))| Finding { name, holds, detail }).collect()
}

/// How far off a snapshot is, in numbers. All zero when every promise holds and the stock is sold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortfalls {
    /// Units sold beyond the stock.
    pub oversold: i64,
    /// Units of the stock that no live order holds.
    pub unsold: i64,
    /// Repetitions: rows, claims, ids, keys, or orders that nobody was answered for.
    pub duplicates: u64,
    /// Accepted orders without exactly one row of their buyer.
    pub lost: u64,
    /// Accepted orders that were rejected although their buyer holds no other.
    pub dishonoured: u64,
}

/// Counts what the findings put in words.
pub fn shortfalls(snapshot: &Snapshot) -> Shortfalls {
    let ledger = &snapshot.ledger;
    let sold = stock::units(stock::live(ledger));
    Shortfalls {
        oversold: (sold - ledger.total).max(0),
        unsold: (ledger.total - sold).max(0),
        duplicates: buyers::repeated(snapshot).len() as u64,
        lost: buyers::lost(snapshot).len() as u64,
        dishonoured: buyers::dishonoured(snapshot).count() as u64,
    }
}

/// The outcome of one check, before it gets its name.
type Checked = (CheckResult, String);

/// Kept unless there are faults; then the first of them stand for all.
fn result_of(faults: &[String], figures: String) -> Checked {
    const SHOWN: usize = 3;
    if faults.is_empty() {
        return (CheckResult::Holds, figures);
    }
    let mut detail = faults.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("; ");
    if let Some(more) = faults.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        detail.push_str(&format!("; and {more} more"));
    }
    (CheckResult::Broken, detail)
}

fn not_checked(why: impl Into<String>) -> Checked {
    (CheckResult::Unknown, why.into())
}

/// Why a promise about the settled state cannot be judged now, if so.
fn unsettled(snapshot: &Snapshot) -> Option<Checked> {
    match snapshot.flow {
        None => Some(not_checked("nobody can see what is still on its way")),
        Some(flow) if !flow.is_settled() => Some(not_checked(format!(
            "not settled: {} in the outbox, {} in Kafka{}",
            flow.outbox,
            flow.backlog,
            if flow.rebuilding { ", Redis waits to be rebuilt" } else { "" }
        ))),
        Some(_) => None,
    }
}
