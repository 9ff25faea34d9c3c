//! One healthy sale keeps every promise; each promise is broken alone by the smallest change that breaks it.

use super::*;
use crate::domain::{OrderId, OrderStatus, Pool, Rejection, SaleId, UserId};

fn sale() -> SaleId {
    SaleId::new(7).expect("a sale id")
}

fn user(n: u64) -> UserId {
    format!("buyer-{n}").parse().expect("a user id")
}

fn id(n: u64) -> OrderId {
    OrderId::mint(sale(), 1_700_000_000, n)
}

fn order(n: u64, quantity: u32, pool: Pool, status: OrderStatus) -> OrderFact {
    let reason = (status == OrderStatus::Rejected).then_some(Rejection::AlreadyPurchased);
    OrderFact { id: id(n), user: user(n), quantity, status, reason, pool, generation: 1 }
}

fn claim(n: u64, quantity: u32) -> ClaimFact {
    ClaimFact { user: user(n), order: id(n), quantity }
}

fn answer(n: u64) -> AnswerFact {
    AnswerFact { user: user(n), order: id(n), key: None }
}

/// Ten units: six by Redis (of which one order was cancelled and bought again), four by the reserve.
fn healthy() -> (Snapshot<'static>, ClientView) {
    use OrderStatus::{Cancelled, Created, Paid, Rejected};
    let mut twice = order(6, 1, Pool::Redis, Rejected);
    twice.user = user(4);
    let orders = vec![
        order(1, 2, Pool::Redis, Created),
        order(2, 2, Pool::Redis, Paid),
        order(3, 2, Pool::Redis, Cancelled),
        order(4, 2, Pool::Reserve, Created),
        order(5, 2, Pool::Redis, Created),
        twice,
        order(7, 2, Pool::Reserve, Paid),
    ];
    let ledger = LedgerView {
        sale: sale(),
        total: 10,
        available: 0,
        reserve: 0,
        redis_total: 6,
        generation: 1,
        version: 9,
        max_quantity: 2,
        orders,
    };
    let redis = RedisView {
        selling: true,
        generation: 1,
        total: 6,
        remaining: 0,
        claims: vec![claim(1, 2), claim(2, 2), claim(5, 2)],
        outbox: 0,
    };
    let mut answers: Vec<_> = (1..=5).map(answer).collect();
    answers.push(AnswerFact { user: user(4), order: id(6), key: Some("k".into()) });
    let client = ClientView { answers, unconfirmed: vec![user(7)], unreadable: vec![] };
    let flow = Some(Flow::default());
    (Snapshot { ledger, redis: Some(redis), flow, client: None, demand_reached_stock: Some(true) }, client)
}

fn standings(snapshot: &Snapshot) -> Vec<(&'static str, CheckResult)> {
    check(snapshot).into_iter().map(|finding| (finding.name, finding.holds)).collect()
}

/// Changes the healthy sale and says which promises no longer hold.
fn broken_by(change: impl FnOnce(&mut Snapshot, &mut ClientView)) -> Vec<&'static str> {
    let (mut snapshot, mut client) = healthy();
    change(&mut snapshot, &mut client);
    snapshot.client = Some(&client);
    let broken = |(name, standing)| (standing == CheckResult::Broken).then_some(name);
    standings(&snapshot).into_iter().filter_map(broken).collect()
}

fn redis<'a>(snapshot: &'a mut Snapshot) -> &'a mut RedisView {
    snapshot.redis.as_mut().expect("a view of Redis")
}

#[test]
fn a_healthy_sale_keeps_every_promise() {
    let (mut snapshot, client) = healthy();
    snapshot.client = Some(&client);
    for finding in check(&snapshot) {
        assert_eq!(finding.holds, CheckResult::Holds, "{finding:?}");
    }
    assert_eq!(shortfalls(&snapshot), Shortfalls::default());
}

#[test]
fn a_unit_sold_twice_breaks_no_oversell() {
    let broken = broken_by(|snapshot, _| {
        snapshot.ledger.total = 9;
        snapshot.ledger.redis_total = 6;
    });
    assert_eq!(broken, ["no_oversell", "ledger_conserved"]);
}

#[test]
fn a_stranded_unit_breaks_no_undersell() {
    let broken = broken_by(|snapshot, _| {
        snapshot.ledger.total = 11;
        snapshot.ledger.reserve = 1;
    });
    assert_eq!(broken, ["no_undersell"]);
}

#[test]
fn units_that_nobody_wanted_are_not_stranded() {
    let broken = broken_by(|snapshot, _| {
        snapshot.ledger.total = 11;
        snapshot.ledger.reserve = 1;
        snapshot.demand_reached_stock = Some(false);
    });
    assert_eq!(broken, Vec::<&str>::new());
}

#[test]
fn two_live_orders_of_one_user_break_one_per_user() {
    let broken = broken_by(|snapshot, client| {
        snapshot.ledger.orders[6].user = user(1);
        client.unconfirmed = vec![user(1)];
    });
    assert_eq!(broken, ["one_per_user"]);
}

#[test]
fn an_order_above_the_limit_breaks_one_per_user() {
    assert_eq!(broken_by(|snapshot, _| snapshot.ledger.max_quantity = 1), ["one_per_user"]);
}

#[test]
fn an_accepted_order_without_a_row_breaks_nothing_lost() {
    assert_eq!(broken_by(|_, client| client.answers.push(answer(99))), ["nothing_lost"]);
}

#[test]
fn an_accepted_order_that_belongs_to_somebody_else_breaks_nothing_lost() {
    let broken = broken_by(|_, client| client.answers[2].user = user(50));
    assert_eq!(broken, ["nothing_lost"]);
}

#[test]
fn an_order_that_its_buyer_cannot_read_breaks_nothing_lost() {
    assert_eq!(broken_by(|_, client| client.unreadable.push(id(1))), ["nothing_lost"]);
}

#[test]
fn an_accepted_order_that_was_rejected_breaks_honoured() {
    for reason in [Rejection::SoldOut, Rejection::Superseded] {
        assert_eq!(broken_by(|snapshot, _| snapshot.ledger.orders[5].reason = Some(reason)), ["honoured"]);
    }
    // `already_purchased` excuses only while the buyer got another order.
    assert_eq!(broken_by(|snapshot, _| snapshot.ledger.orders[5].user = user(60)), ["nothing_lost", "honoured"]);
}

#[test]
fn a_unit_gone_in_redis_breaks_redis_conserved() {
    let broken = broken_by(|snapshot, _| redis(snapshot).remaining = 1);
    assert_eq!(broken, ["redis_conserved", "agreement"]);
}

#[test]
fn either_equation_of_the_ledger_breaks_ledger_conserved() {
    assert_eq!(broken_by(|snapshot, _| snapshot.ledger.reserve = 1), ["ledger_conserved"]);
    let broken = broken_by(|snapshot, _| {
        snapshot.ledger.redis_total = 7;
        redis(snapshot).total = 7;
        redis(snapshot).claims[0].quantity = 3;
    });
    assert_eq!(broken, ["ledger_conserved", "agreement"]);
    let broken = broken_by(|snapshot, _| {
        snapshot.ledger.available = -1;
        snapshot.ledger.reserve = 1;
        snapshot.ledger.redis_total = 5;
        redis(snapshot).total = 5;
        redis(snapshot).remaining = -1;
    });
    assert_eq!(broken, ["redis_conserved", "ledger_conserved"]);
}

#[test]
fn a_live_order_without_a_claim_breaks_covered() {
    let broken = broken_by(|snapshot, _| {
        redis(snapshot).claims.pop();
        redis(snapshot).remaining = 2;
        snapshot.flow = None;
    });
    assert_eq!(broken, ["covered"]);
}

#[test]
fn a_rejected_order_with_a_claim_breaks_covered() {
    let broken = broken_by(|snapshot, client| {
        snapshot.ledger.orders[5].reason = Some(Rejection::SoldOut);
        redis(snapshot).claims.push(ClaimFact { user: user(4), order: id(6), quantity: 1 });
        redis(snapshot).total = 7;
        client.answers.pop();
        client.unconfirmed.push(user(4));
        snapshot.flow = None;
    });
    assert_eq!(broken, ["covered"]);
}

#[test]
fn a_claim_of_a_closed_order_breaks_agreement_once_things_have_settled() {
    let keep_claim = |snapshot: &mut Snapshot| {
        redis(snapshot).claims.push(claim(3, 2));
        redis(snapshot).total = 8;
    };
    assert_eq!(broken_by(|snapshot, _| keep_claim(snapshot)), ["agreement"]);
    let broken = broken_by(|snapshot, _| {
        keep_claim(snapshot);
        snapshot.flow = Some(Flow { backlog: 1, ..Flow::default() });
    });
    assert_eq!(broken, Vec::<&str>::new());
}

#[test]
fn one_thing_done_twice_breaks_exactly_once() {
    // The same order claimed by two users.
    let broken = broken_by(|snapshot, _| {
        redis(snapshot).claims.push(ClaimFact { user: user(70), order: id(5), quantity: 1 });
        redis(snapshot).total = 7;
        snapshot.flow = None;
    });
    assert_eq!(broken, ["exactly_once"]);
    // One key, two orders.
    let broken = broken_by(|_, client| client.answers[3].key = Some("k".into()));
    assert_eq!(broken, ["exactly_once"]);
    // An order that nobody asked for.
    assert_eq!(broken_by(|_, client| client.unconfirmed.clear()), ["exactly_once"]);
    // A second row of one id.
    let broken = broken_by(|snapshot, _| {
        let row = snapshot.ledger.orders[2].clone();
        snapshot.ledger.orders.push(row);
    });
    assert_eq!(broken, ["nothing_lost", "exactly_once"]);
}

#[test]
fn what_cannot_be_seen_is_not_taken_for_kept() {
    let (mut snapshot, _) = healthy();
    snapshot.ledger.total = 11;
    snapshot.ledger.reserve = 1;
    snapshot.redis = None;
    snapshot.flow = None;
    let unchecked: Vec<_> = standings(&snapshot)
        .into_iter()
        .filter(|(_, holds)| *holds == CheckResult::Unknown)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(unchecked, ["no_undersell", "nothing_lost", "honoured", "redis_conserved", "covered", "agreement"]);
}

#[test]
fn a_redis_of_another_generation_or_in_the_middle_of_a_rebuild_is_not_judged() {
    for change in [|redis: &mut RedisView| redis.selling = false, |redis: &mut RedisView| redis.generation = 2] {
        let broken = broken_by(|snapshot, _| {
            redis(snapshot).claims.clear();
            redis(snapshot).remaining = 6;
            change(redis(snapshot));
        });
        assert_eq!(broken, Vec::<&str>::new());
    }
}

#[test]
fn a_finding_in_json_says_true_false_or_null() {
    let finding = |holds| Finding { name: "covered", holds, detail: String::new() };
    for (standing, json) in
        [(CheckResult::Holds, "true"), (CheckResult::Broken, "false"), (CheckResult::Unknown, "null")]
    {
        let text = serde_json::to_string(&finding(standing)).expect("JSON");
        assert_eq!(text, format!(r#"{{"name":"covered","holds":{json},"detail":""}}"#));
    }
}
