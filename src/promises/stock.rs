//! The promises about units: none sold twice, none stranded, and both stores tell one story.

use std::collections::{HashMap, HashSet};

use super::{Checked, ClaimFact, LedgerView, OrderFact, RedisView, Snapshot, not_checked, result_of, unsettled};
use crate::domain::{OrderId, OrderStatus, Pool, Rejection, UserId};

pub(super) fn no_oversell(snapshot: &Snapshot) -> Checked {
    let ledger = &snapshot.ledger;
    let sold = units(live(ledger));
    let mut faults = Vec::new();
    if sold > ledger.total {
        faults.push(format!("{sold} units sold of a stock of {}: {} too many", ledger.total, sold - ledger.total));
    }
    result_of(&faults, format!("{sold} of {} units sold", ledger.total))
}

pub(super) fn no_undersell(snapshot: &Snapshot) -> Checked {
    if let Some(judged) = unsettled(snapshot) {
        return judged;
    }
    let ledger = &snapshot.ledger;
    let unsold = ledger.total - units(live(ledger));
    match snapshot.demand_reached_stock {
        // A stock that is gone needs no proof that somebody wanted it.
        _ if unsold <= 0 => result_of(&[], format!("all {} units sold", ledger.total)),
        None => not_checked(format!("{unsold} units unsold, and nobody counted the demand")),
        Some(false) => not_checked(format!("{unsold} units unsold: demand did not reach the stock")),
        Some(true) => {
            result_of(&[format!("{unsold} of {} units unsold though buyers wanted them", ledger.total)], "".into())
        }
    }
}

pub(super) fn redis_conserved(snapshot: &Snapshot) -> Checked {
    let Some(redis) = &snapshot.redis else { return not_checked("Redis shows nothing of this sale") };
    if !redis.selling {
        // A rebuild warms in several steps; between them the parts do not add up yet.
        return not_checked("this Redis may not sell");
    }
    let claimed: i64 = redis.claims.iter().map(|claim| i64::from(claim.quantity)).sum();
    let mut faults = Vec::new();
    if redis.remaining < 0 {
        faults.push(format!("{} units remain", redis.remaining));
    }
    let sum = format!("{} remaining + {claimed} claimed", redis.remaining);
    if redis.total != redis.remaining + claimed {
        faults.push(format!("total {} is not {sum}", redis.total));
    }
    result_of(&faults, format!("total {} = {sum}", redis.total))
}

pub(super) fn ledger_conserved(snapshot: &Snapshot) -> Checked {
    let ledger = &snapshot.ledger;
    let (total, available, reserve, redis_total) = (ledger.total, ledger.available, ledger.reserve, ledger.redis_total);
    let sold = units(live(ledger));
    let sold_by_redis = units(live(ledger).filter(|order| order.pool == Pool::Redis));
    let mut faults = Vec::new();
    if available < 0 || reserve < 0 {
        faults.push(format!("{available} units available and {reserve} in reserve"));
    }
    let both = format!("{available} available + {reserve} in reserve + {sold} sold");
    if total != available + reserve + sold {
        faults.push(format!("total {total} is not {both}"));
    }
    if redis_total != available + sold_by_redis {
        faults.push(format!("redis_total {redis_total} is not {available} available + {sold_by_redis} sold by Redis"));
    }
    result_of(&faults, format!("total {total} = {both}; redis_total {redis_total}"))
}

pub(super) fn covered(snapshot: &Snapshot) -> Checked {
    let ledger = &snapshot.ledger;
    let Some(redis) = selling(snapshot) else {
        return not_checked("Redis does not sell at the ledger's generation");
    };
    let claims = by_user(redis);
    let mut faults = Vec::new();
    let mut live_orders = 0;
    for order in live(ledger).filter(|order| order.pool == Pool::Redis) {
        live_orders += 1;
        if claims.get(&order.user).is_none_or(|claim| claim.order != order.id) {
            faults.push(format!("live order {} has no claim", order.id));
        }
    }
    let claimed: HashSet<OrderId> = redis.claims.iter().map(|claim| claim.order).collect();
    // The later order of a buyer who met both pools keeps its claim until the reconciler's next pass.
    let rejected = ledger
        .orders
        .iter()
        .filter(|order| order.status == OrderStatus::Rejected && order.reason != Some(Rejection::AlreadyPurchased));
    for order in rejected.filter(|order| claimed.contains(&order.id)) {
        faults.push(format!("rejected order {} has a claim", order.id));
    }
    result_of(&faults, format!("{live_orders} live orders of pool redis, each with its claim"))
}

pub(super) fn agreement(snapshot: &Snapshot) -> Checked {
    if let Some(judged) = unsettled(snapshot) {
        return judged;
    }
    let ledger = &snapshot.ledger;
    let Some(redis) = selling(snapshot) else {
        return not_checked("Redis does not sell at the ledger's generation");
    };
    let mut faults = Vec::new();
    if redis.total != ledger.redis_total {
        faults.push(format!("total is {} in Redis, {} in the ledger", redis.total, ledger.redis_total));
    }
    if redis.remaining != ledger.available {
        faults.push(format!("{} remain in Redis, {} in the ledger", redis.remaining, ledger.available));
    }
    let rows: HashMap<OrderId, &OrderFact> =
        live(ledger).filter(|order| order.pool == Pool::Redis).map(|order| (order.id, order)).collect();
    for claim in &redis.claims {
        match rows.get(&claim.order) {
            None => faults.push(format!("claim of {} names order {}, which is not live", claim.user, claim.order)),
            Some(row) if row.quantity != claim.quantity || row.user != claim.user => {
                faults.push(format!("claim and row of order {} differ", claim.order));
            }
            Some(_) => {}
        }
    }
    let claimed: HashSet<OrderId> = redis.claims.iter().map(|claim| claim.order).collect();
    let unclaimed = rows.keys().filter(|order| !claimed.contains(*order));
    faults.extend(unclaimed.map(|order| format!("live order {order} has no claim")));
    result_of(
        &faults,
        format!("total {}, remaining {}, {} claims in both", redis.total, redis.remaining, redis.claims.len()),
    )
}

/// The live orders: those that hold units.
pub(super) fn live(ledger: &LedgerView) -> impl Iterator<Item = &OrderFact> {
    ledger.orders.iter().filter(|order| order.status.is_live())
}

pub(super) fn units<'a>(orders: impl Iterator<Item = &'a OrderFact>) -> i64 {
    orders.map(|order| i64::from(order.quantity)).sum()
}

/// Redis, while it sells at the ledger's generation: only then must its claims match the ledger's rows.
fn selling<'a>(snapshot: &'a Snapshot) -> Option<&'a RedisView> {
    snapshot.redis.as_ref().filter(|redis| redis.selling && redis.generation == snapshot.ledger.generation)
}

fn by_user(redis: &RedisView) -> HashMap<&UserId, &ClaimFact> {
    redis.claims.iter().map(|claim| (&claim.user, claim)).collect()
}
