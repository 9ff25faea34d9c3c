//! What a run has to show besides the promises: that it came to its end, and that moves of orders were no empty words.

use std::collections::HashMap;

use super::record::{ClientRecord, End, Waiting};
use super::verdict::holds_if;
use crate::domain::{OrderId, OrderStatus};
use crate::promises::{Finding, LedgerView, Standing};

/// Every order of the crowd was paid, cancelled or expired before patience ended.
pub fn orders_ended(waiting: Waiting) -> Finding {
    let (holds, detail) = match waiting.end {
        End::SentAway => (Standing::NotChecked, "the crowd was sent away".to_owned()),
        End::Patience if waiting.unfinished > 0 => {
            (Standing::Broken, format!("{} orders were neither paid nor closed in time", waiting.unfinished))
        }
        End::Act | End::Patience => (Standing::Holds, "no order is left unpaid".to_owned()),
    };
    Finding { name: "orders_ended", holds, detail }
}

/// An order that was told to be paid, cancelled or expired is so in the ledger.
pub fn moves_kept(record: &ClientRecord, ledger: Option<&LedgerView>) -> Finding {
    let name = "moves_kept";
    let Some(ledger) = ledger else {
        return Finding { name, holds: Standing::NotChecked, detail: "the ledger cannot be seen from here".to_owned() };
    };
    let rows: HashMap<OrderId, OrderStatus> = ledger.orders.iter().map(|order| (order.id, order.status)).collect();
    let differs = |(order, told): (&OrderId, &OrderStatus)| match rows.get(order) {
        Some(row) if row == told => None,
        row => Some(format!("order {order} was told to be {told}, and is {}", row.map_or("gone", |row| row.as_str()))),
    };
    let mut faults: Vec<_> = record.ends.iter().filter_map(differs).collect();
    faults.sort_unstable();
    let detail = match faults.as_slice() {
        [] => format!("{} orders ended as their buyers were told", record.ends.len()),
        [one] => one.clone(),
        [one, more @ ..] => format!("{one}; and {} more", more.len()),
    };
    Finding { name, holds: holds_if(faults.is_empty()), detail }
}
