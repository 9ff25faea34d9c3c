//! What a run has to show besides the promises: that it came to its end, and that orders ended as buyers were told.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::record::{ClientRecord, FinalState, StopReason};
use seckill::domain::{OrderId, OrderStatus, UserId};
use seckill::promises::{CheckResult, Finding, LedgerView};

/// The checks, in the order of their findings. Not every run has a reason for each.
pub const NAMES: [&str; 8] = [
    "everybody_decided",
    "orders_ended",
    "moves_kept",
    "refusals_allowed",
    "refusals_expected",
    "only_scripts_limited",
    "stock_as_delivered",
    "blocked_got_nothing",
];

/// Every order was paid, cancelled or expired before the timeout.
pub fn orders_ended(state: FinalState) -> Finding {
    let (holds, detail) = match state.stop_reason {
        StopReason::Cancelled => (CheckResult::Unknown, "the run was stopped early".to_owned()),
        StopReason::TimedOut if state.unfinished > 0 => {
            (CheckResult::Broken, format!("{} orders were neither paid nor closed in time", state.unfinished))
        }
        StopReason::Completed | StopReason::TimedOut => (CheckResult::Holds, "no order is left unpaid".to_owned()),
    };
    Finding { name: "orders_ended", holds, detail }
}

/// Every buyer got a decision. Without this check, a service that stops answering would pass: it breaks no promise.
pub fn everybody_decided(record: &ClientRecord) -> Finding {
    let gave_up = record.gave_up.len();
    let (holds, detail) = match record.final_state {
        Some(FinalState { stop_reason: StopReason::Cancelled, .. }) if gave_up > 0 => {
            (CheckResult::Unknown, format!("the run was stopped early; {gave_up} buyers have no decision"))
        }
        _ if gave_up > 0 => (CheckResult::Broken, format!("{gave_up} buyers gave up without a decision")),
        _ => (CheckResult::Holds, "every buyer got a decision".to_owned()),
    };
    Finding { name: "everybody_decided", holds, detail }
}

/// An order whose buyer was told that it is paid, cancelled or expired has that status in the ledger.
pub fn moves_kept(record: &ClientRecord, ledger: Option<&LedgerView>) -> Finding {
    let name = "moves_kept";
    let Some(ledger) = ledger else {
        return Finding { name, holds: CheckResult::Unknown, detail: "no access to the ledger".to_owned() };
    };
    let rows: HashMap<OrderId, OrderStatus> = ledger.orders.iter().map(|order| (order.id, order.status)).collect();
    let differs = |(order, told): (&OrderId, &OrderStatus)| match rows.get(order) {
        Some(row) if row == told => None,
        row => Some(format!(
            "order {order}: its buyer was told {told}, the ledger says {}",
            row.map_or("that there is none", |row| row.as_str())
        )),
    };
    let mut faults: Vec<_> = record.final_statuses.iter().filter_map(differs).collect();
    faults.sort_unstable();
    let detail = match faults.as_slice() {
        [] => format!("{} orders ended as their buyers were told", record.final_statuses.len()),
        [one] => one.clone(),
        [one, more @ ..] => format!("{one}; and {} more", more.len()),
    };
    Finding { name, holds: CheckResult::from(faults.is_empty()), detail }
}

/// The refusals that a run allows and expects.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Codes with which a purchase may be refused; `None`: any.
    pub allowed: Option<Vec<String>>,
    /// Codes that must occur: without them the run did not test what it is for.
    pub expected: Vec<String>,
}

impl Rules {
    /// One finding per rule that is set.
    pub fn check(&self, refused: &BTreeMap<&'static str, u64>, record: &ClientRecord) -> Vec<Finding> {
        let mut findings = Vec::new();
        let is_in = |codes: &[String], code: &str| codes.iter().any(|known| known == code);
        if let Some(allowed) = &self.allowed {
            let others = refused.iter().filter(|(code, _)| !is_in(allowed, code));
            let mut faults: Vec<_> = others.map(|(code, count)| format!("{code} {count}")).collect();
            if record.unexpected_answers > 0 {
                faults.push(format!(
                    "{} answers outside the contract, such as {:?}",
                    record.unexpected_answers, record.unexpected_texts
                ));
            }
            let detail =
                if faults.is_empty() { "only refusals that this run allows".to_owned() } else { faults.join(", ") };
            findings.push(Finding { name: "refusals_allowed", holds: CheckResult::from(faults.is_empty()), detail });
        }
        if !self.expected.is_empty() {
            let missing: Vec<_> = self.expected.iter().filter(|code| !refused.contains_key(code.as_str())).collect();
            let detail = if missing.is_empty() {
                self.expected
                    .iter()
                    .map(|code| format!("{code} {}", refused[code.as_str()]))
                    .collect::<Vec<_>>()
                    .join(", ")
            } else {
                format!("never refused with {missing:?}")
            };
            findings.push(Finding { name: "refusals_expected", holds: CheckResult::from(missing.is_empty()), detail });
        }
        findings
    }
}

/// The ledger holds as many units as were put on sale and delivered.
pub fn stock_as_delivered(total: Option<i64>, wanted: u32) -> Finding {
    let (holds, detail) = match total {
        Some(total) => (CheckResult::from(total == i64::from(wanted)), format!("{total} units, {wanted} put on sale")),
        None => (CheckResult::Unknown, "no access to the ledger".to_owned()),
    };
    Finding { name: "stock_as_delivered", holds, detail }
}

/// Only scripts were rate limited. Buyers from number `honest` on are scripts.
pub fn only_scripts_limited(record: &ClientRecord, honest: u32) -> Finding {
    let of_honest = record.limited.iter().filter(|buyer| **buyer < honest).count();
    let detail = format!("{} scripts and {of_honest} honest buyers were limited", record.limited.len() - of_honest);
    Finding { name: "only_scripts_limited", holds: CheckResult::from(of_honest == 0), detail }
}

/// No user of the blacklist holds an order.
pub fn blocked_got_nothing(blocked: &HashSet<&UserId>, ledger: Option<&LedgerView>) -> Finding {
    let name = "blocked_got_nothing";
    let Some(ledger) = ledger else {
        return Finding { name, holds: CheckResult::Unknown, detail: "no access to the ledger".to_owned() };
    };
    let got = ledger.orders.iter().filter(|order| blocked.contains(&order.user)).count();
    let detail = format!("{} users of the blacklist have {got} orders", blocked.len());
    Finding { name, holds: CheckResult::from(got == 0), detail }
}
