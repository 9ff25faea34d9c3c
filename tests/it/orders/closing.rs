//! Closing an order, at the exact point between the ledger and Redis.

use std::time::Duration;

use crate::support::reconciler::ReconcilerFixture;
use crate::support::servers::with_own;
use crate::support::service::{PATIENCE, prepared};
use crate::support::wait_until;
use drive::environment::SandboxSettings;
use sandbox::{BreakAt, Options, Timing};
use seckill::app::Roles;
use seckill::closing::Closing;
use seckill::domain::OrderStatus;
use seckill::ledger::{Ledger, Moved};

/// The statement by which an order moves.
const MOVE: BreakAt = BreakAt::Statement("UPDATE orders SET status = $2, payment_id");

/// The buyer hangs up in the moment in which the ledger has closed his order. His unit is not left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closing_that_nobody_waits_for_any_more_still_frees_the_unit() {
    let (sandbox, settings) = with_own("hung_up", Options::none().postgres()).await;
    let settings = prepared(settings).await;
    let fixture = ReconcilerFixture::start(&settings, Roles::OBSERVE).await;
    let sale = fixture.open(1).await;
    let bought = fixture.buy(&sale, "ann").await;
    fixture.record(&sale, &bought).await;

    let trap = sandbox.postgres().proxy().expect("a proxy").breakpoint(MOVE, Timing::After);
    let proxied = sandbox.proxied(&settings).postgres;
    let ledger = Ledger::connect(&proxied, Duration::from_secs(900)).await.expect("PostgreSQL answers");
    let closing = Closing::new(ledger, fixture.running.service.stock.clone());
    let order = bought.order;
    let buyer = tokio::spawn(async move { closing.close(order, OrderStatus::Cancelled).await });
    let held = trap.hit(PATIENCE).await.expect("the order is closed");
    assert_eq!(fixture.remaining(&sale).await, 0, "the ledger first");
    buyer.abort();
    assert!(buyer.await.is_err_and(|gone| gone.is_cancelled()));
    held.resume();
    wait_until("the unit is free", PATIENCE, async || fixture.remaining(&sale).await == 1).await;
}

/// Redis releases what the ledger has closed, and nothing else.
#[tokio::test]
async fn an_order_that_may_not_be_closed_keeps_its_claim() {
    let fixture =
        ReconcilerFixture::start(&crate::support::reconciler::hasty("keeps_its_claim").await, Roles::OBSERVE).await;
    let sale = fixture.open(1).await;
    let bought = fixture.buy(&sale, "ann").await;
    fixture.record(&sale, &bought).await;
    let service = &fixture.running.service;
    service.ledger.pay(bought.order, "a payment").await.expect("a move");
    let closing = Closing::new(service.ledger.clone(), service.stock.clone());
    let moved = closing.close(bought.order, OrderStatus::Cancelled).await.expect("an answer");
    assert!(matches!(moved, Moved::Illegal(_)), "{moved:?}");
    assert_eq!(fixture.remaining(&sale).await, 0);
}
