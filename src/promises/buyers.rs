//! The promises to buyers: what they were told is what they have, once.

use std::collections::{HashMap, HashSet};

use super::stock::live;
use super::{AnswerFact, Checked, OrderFact, Snapshot, not_checked, result_of, unsettled};
use crate::domain::{OrderId, OrderStatus, Rejection, UserId};

pub(super) fn one_per_user(snapshot: &Snapshot) -> Checked {
    let most = snapshot.ledger.max_quantity;
    let mut held: HashMap<&UserId, u32> = HashMap::new();
    let mut faults = Vec::new();
    for order in live(&snapshot.ledger) {
        *held.entry(&order.user).or_default() += 1;
        if order.quantity > most || order.quantity == 0 {
            faults.push(format!("order {} holds {} units; 1 to {most} are allowed", order.id, order.quantity));
        }
    }
    let buyers = held.len();
    faults
        .extend(held.into_iter().filter(|(_, n)| *n > 1).map(|(user, n)| format!("user {user} holds {n} live orders")));
    result_of(&faults, format!("{buyers} buyers with one live order each, of at most {most} units"))
}

pub(super) fn nothing_lost(snapshot: &Snapshot) -> Checked {
    let Some(client) = snapshot.client else { return not_checked("needs the buyers' record") };
    if let Some(judged) = unsettled(snapshot) {
        return judged;
    }
    let mut faults = lost(snapshot);
    faults.extend(client.unreadable.iter().map(|order| format!("the buyer of order {order} cannot read it")));
    result_of(&faults, format!("{} accepted orders, each with its row", client.answers.len()))
}

/// Accepted orders that do not have exactly one row, owned by their buyer.
pub(super) fn lost(snapshot: &Snapshot) -> Vec<String> {
    let Some(client) = snapshot.client else { return Vec::new() };
    let rows = rows_by_id(snapshot);
    let fault = |answer: &AnswerFact| match rows.get(&answer.order).map(Vec::as_slice) {
        None => Some(format!("order {} of user {} has no row", answer.order, answer.user)),
        Some([row]) if row.user != answer.user => {
            Some(format!("order {} of user {} belongs to {}", answer.order, answer.user, row.user))
        }
        Some([_]) => None,
        Some(many) => Some(format!("order {} has {} rows", answer.order, many.len())),
    };
    client.answers.iter().filter_map(fault).collect()
}

pub(super) fn honoured(snapshot: &Snapshot) -> Checked {
    let Some(client) = snapshot.client else {
        let rejected = snapshot.ledger.orders.iter().filter(|order| order.status == OrderStatus::Rejected).count();
        return not_checked(format!("needs the buyers' record; the ledger holds {rejected} rejected orders"));
    };
    let faults: Vec<_> = dishonoured(snapshot)
        .map(|order| {
            let reason = order.reason.map_or("no reason", Rejection::as_str);
            format!("order {} of user {} was accepted, then rejected: {reason}", order.id, order.user)
        })
        .collect();
    result_of(&faults, format!("none of {} accepted orders was rejected", client.answers.len()))
}

/// Accepted orders that the ledger rejected, save those whose buyer got another one.
pub(super) fn dishonoured<'a>(snapshot: &'a Snapshot) -> impl Iterator<Item = &'a OrderFact> {
    let answers = snapshot.client.map_or(&[][..], |client| &client.answers);
    let accepted: HashSet<OrderId> = answers.iter().map(|answer| answer.order).collect();
    // The other order may have been closed since; what counts is that the buyer did get one.
    let holders: HashSet<&UserId> = snapshot
        .ledger
        .orders
        .iter()
        .filter(|order| order.status != OrderStatus::Rejected)
        .map(|order| &order.user)
        .collect();
    snapshot.ledger.orders.iter().filter(move |order| {
        let excused = order.reason == Some(Rejection::AlreadyPurchased) && holders.contains(&order.user);
        order.status == OrderStatus::Rejected && accepted.contains(&order.id) && !excused
    })
}

pub(super) fn exactly_once(snapshot: &Snapshot) -> Checked {
    let faults = repeated(snapshot);
    let claims = snapshot.redis.as_ref().map_or(0, |redis| redis.claims.len());
    result_of(&faults, format!("{} orders and {claims} claims, no id twice", snapshot.ledger.orders.len()))
}

/// Everything that happened more often than somebody asked for it.
pub(super) fn repeated(snapshot: &Snapshot) -> Vec<String> {
    let mut faults = Vec::new();
    for (id, rows) in rows_by_id(snapshot) {
        if rows.len() > 1 {
            faults.push(format!("order {id} has {} rows", rows.len()));
        }
    }
    if let Some(redis) = &snapshot.redis {
        let (mut orders, mut users) = (HashSet::new(), HashSet::new());
        for claim in &redis.claims {
            if !orders.insert(claim.order) {
                faults.push(format!("order {} has several claims", claim.order));
            }
            if !users.insert(&claim.user) {
                faults.push(format!("user {} has several claims", claim.user));
            }
        }
    }
    let Some(client) = snapshot.client else { return faults };
    let mut owner: HashMap<OrderId, &UserId> = HashMap::new();
    let mut keyed: HashMap<(&UserId, &str), OrderId> = HashMap::new();
    for answer in &client.answers {
        if *owner.entry(answer.order).or_insert(&answer.user) != &answer.user {
            faults.push(format!("order {} was given to two users", answer.order));
        }
        let Some(key) = answer.key.as_deref() else { continue };
        if *keyed.entry((&answer.user, key)).or_insert(answer.order) != answer.order {
            faults.push(format!("key {key:?} of user {} stands for two orders", answer.user));
        }
    }
    // An unknown answer may hide one order; a second one of the same buyer would need a second explanation, which
    // `one_per_user` demands.
    let unconfirmed: HashSet<&UserId> = client.unconfirmed.iter().collect();
    for order in &snapshot.ledger.orders {
        if !owner.contains_key(&order.id) && !unconfirmed.contains(&order.user) {
            faults.push(format!("order {} of user {} was never answered for", order.id, order.user));
        }
    }
    faults
}

fn rows_by_id<'a>(snapshot: &'a Snapshot) -> HashMap<OrderId, Vec<&'a OrderFact>> {
    let mut rows: HashMap<OrderId, Vec<&OrderFact>> = HashMap::new();
    for order in &snapshot.ledger.orders {
        rows.entry(order.id).or_default().push(order);
    }
    rows
}
