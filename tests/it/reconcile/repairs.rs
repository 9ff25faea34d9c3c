//! The reconciler: what a fault leaves undone is found and done, once.

use std::time::Duration;

use crate::support::fixtures::redis;
use crate::support::http::Connection;
use crate::support::reconciler::{ReconcilerFixture, hasty};
use crate::support::servers::{own_redis, with_own};
use crate::support::service::{PATIENCE, Running, prepared};
use crate::support::wait_until;
use redis::AsyncCommands;
use sandbox::{self, Sandbox};
use seckill::app::Roles;
use seckill::config::Settings;
use seckill::domain::{OrderStatus, Rejection, Sale};
use seckill::ledger;
use seckill::lock::{Name, Options, fence};
use seckill::reconcile::Job;
use seckill::stock::keys;

#[tokio::test]
async fn a_healthy_sale_is_left_alone_and_nothing_is_locked() {
    let fixture = ReconcilerFixture::start(&hasty("healthy").await, Roles::OBSERVE).await;
    let sale = fixture.open(3).await;
    let purchase = fixture.buy(&sale, "ann").await;
    fixture.record(&sale, &purchase).await;
    assert!(fixture.reconcile(&sale).await.is_clean());
    let fence = fence::mint(fixture.running.service.ledger.pool(), Name::sale(sale.id).as_str(), "test", 0)
        .await
        .expect("a token");
    assert_eq!(fence, 2, "only the opening has claimed it before");
}

/// Kafka lost the message and the outbox has let go of it: the claim is the order's last trace.
#[tokio::test]
async fn an_accepted_order_without_a_row_is_published_again_once() {
    let fixture = ReconcilerFixture::start(&hasty("orphan").await, Roles::CONSUME).await;
    let sale = fixture.open(3).await;
    let purchase = fixture.buy(&sale, "ann").await;
    fixture.drain_outbox(&sale).await;
    assert_eq!(fixture.reconcile(&sale).await.of(Job::Republish).repaired, 1);
    wait_until("the order has its row", PATIENCE, async || fixture.status(purchase.order).await.is_some()).await;
    assert_eq!(fixture.status(purchase.order).await, Some((OrderStatus::Created, None)));
    assert!(fixture.reconcile(&sale).await.is_clean(), "and is not looked for again");
    fixture.running.settle(sale.id).await;
}

/// The grace keeps orders that are merely on their way from being published twice.
#[tokio::test]
async fn a_young_claim_without_a_row_is_left_alone() {
    let mut settings = hasty("grace").await;
    settings.reconcile.grace_ms = 3_600_000;
    let fixture = ReconcilerFixture::start(&settings, Roles::OBSERVE).await;
    let sale = fixture.open(3).await;
    fixture.buy(&sale, "ann").await;
    assert!(fixture.reconcile(&sale).await.is_clean());
}

/// The closer died between the ledger and Redis.
#[tokio::test]
async fn the_claim_of_a_closed_order_is_released() {
    let fixture = ReconcilerFixture::start(&hasty("closed").await, Roles::OBSERVE).await;
    let sale = fixture.open(1).await;
    let purchase = fixture.buy(&sale, "ann").await;
    fixture.record(&sale, &purchase).await;
    fixture.drain_outbox(&sale).await;
    fixture.running.service.ledger.close(purchase.order, OrderStatus::Cancelled).await.expect("a move");
    assert_eq!(fixture.reconcile(&sale).await.of(Job::Release).repaired, 1);
    fixture.buy(&sale, "bob").await;
}

#[tokio::test]
async fn an_unpaid_order_expires_and_its_unit_is_sold_again() {
    let fixture = ReconcilerFixture::start(&hasty("expiry").await, Roles::OBSERVE).await;
    let sale = fixture.open(1).await;
    let purchase = fixture.buy(&sale, "ann").await;
    fixture.record(&sale, &purchase).await;
    fixture.drain_outbox(&sale).await;
    assert_eq!(fixture.reconcile(&sale).await.of(Job::Expire).found, 0, "not before its time");
    let pool = fixture.running.service.ledger.pool();
    let late = "UPDATE orders SET pay_before = clock_timestamp() - interval '1 second'";
    sqlx::query(late).execute(pool).await.expect("an update");
    assert_eq!(fixture.reconcile(&sale).await.of(Job::Expire).repaired, 1);
    assert_eq!(fixture.status(purchase.order).await, Some((OrderStatus::Expired, None)));
    let again = fixture.buy(&sale, "ann").await;
    fixture.record(&sale, &again).await;
    assert_eq!(fixture.status(again.order).await, Some((OrderStatus::Created, None)), "the same buyer may buy again");
}

/// The adder died between the ledger and Redis.
#[tokio::test]
async fn units_that_redis_has_not_heard_of_are_brought_to_it_once() {
    let fixture = ReconcilerFixture::start(&hasty("total").await, Roles::OBSERVE).await;
    let sale = fixture.open(1).await;
    fixture.running.service.ledger.add_stock(sale.id, 2, "more").await.expect("added");
    assert_eq!(fixture.reconcile(&sale).await.of(Job::Total).repaired, 1);
    assert!(fixture.reconcile(&sale).await.is_clean());
    let update = fixture.running.service.stock.probe(sale.id).await.expect("an answer").expect("a warm sale");
    assert_eq!(update.remaining, 3);
}

/// Redis is sent only the units of its own pool: the reserve is no part of it.
#[tokio::test]
async fn redis_is_never_told_of_the_units_of_the_reserve() {
    let fixture = ReconcilerFixture::start(&hasty("total_reserve").await, Roles::OBSERVE).await;
    let sale = fixture.open_with(3, 2).await;
    fixture.running.service.ledger.add_stock(sale.id, 2, "more").await.expect("added");
    assert_eq!(fixture.reconcile(&sale).await.of(Job::Total).repaired, 1);
    assert_eq!(fixture.remaining(&sale).await, 3);
}

/// One that is overdue takes none along that is not.
#[tokio::test]
async fn only_what_is_overdue_is_closed() {
    let fixture = ReconcilerFixture::start(&hasty("expiry_only").await, Roles::OBSERVE).await;
    let sale = fixture.open(2).await;
    for user in ["ann", "bob"] {
        fixture.record(&sale, &fixture.buy(&sale, user).await).await;
    }
    fixture
        .meddle(&sale, "UPDATE orders SET pay_before = clock_timestamp() WHERE sale_id = $1 AND user_id = 'ann'")
        .await;
    assert_eq!(fixture.reconcile(&sale).await.of(Job::Expire).repaired, 1);
    assert_eq!(fixture.remaining(&sale).await, 1);
}

/// Paid while the expiry waited for the stock row: it has seen the order unpaid, and finds it paid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_is_paid_in_the_moment_of_its_expiry_stays_paid() {
    let fixture = ReconcilerFixture::start(&hasty("expiry_paid").await, Roles::OBSERVE).await;
    let sale = fixture.open(1).await;
    let bought = fixture.buy(&sale, "ann").await;
    fixture.record(&sale, &bought).await;
    fixture.meddle(&sale, "UPDATE orders SET pay_before = clock_timestamp() WHERE sale_id = $1").await;
    let pool = fixture.running.service.ledger.pool();
    let mut payment = pool.begin().await.expect("a transaction");
    let pay = "WITH paid AS (UPDATE orders SET status = 'paid' WHERE sale_id = $1 RETURNING sale_id)
               UPDATE stock SET version = version + 1 FROM paid WHERE stock.sale_id = paid.sale_id";
    sqlx::query(pay).bind(sale.id.get()).execute(&mut *payment).await.expect("a payment");
    let commit = async {
        let waiting = "SELECT count(*) > 0 FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        wait_until("the expiry waits", PATIENCE, async || {
            sqlx::query_scalar(waiting).fetch_one(pool).await.expect("an answer")
        })
        .await;
        payment.commit().await.expect("a commit");
    };
    let (stats, ()) = tokio::join!(fixture.reconcile(&sale), commit);
    assert_eq!(stats.of(Job::Expire).repaired, 0);
    assert_eq!(fixture.status(bought.order).await, Some((OrderStatus::Paid, None)));
}

#[tokio::test]
async fn an_expired_order_of_the_reserve_goes_home_to_the_reserve() {
    let fixture = ReconcilerFixture::start(&hasty("expiry_reserve").await, Roles::OBSERVE).await;
    let sale = fixture.open_with(3, 1).await;
    let ledger = &fixture.running.service.ledger;
    let asked = crate::support::fixtures::purchase(&sale, "ann");
    ledger.reserve_purchase(sale.id, asked.clone(), asked.order).await.expect("an answer");
    assert_eq!(fixture.row(&sale).await.reserve, 0);
    fixture
        .meddle(&sale, "UPDATE orders SET pay_before = clock_timestamp() - interval '1 second' WHERE sale_id = $1")
        .await;
    assert_eq!(fixture.reconcile(&sale).await.of(Job::Expire).repaired, 1);
    let row = fixture.row(&sale).await;
    assert_eq!((row.available, row.reserve, row.redis_total), (2, 1, 2));
    assert_eq!(fixture.remaining(&sale).await, 2);
}

#[tokio::test]
async fn before_the_end_the_reserve_goes_to_redis_even_if_that_still_has_units() {
    let mut settings = hasty("reserve_end").await;
    settings.reconcile.move_before_end_s = 7200;
    let fixture = ReconcilerFixture::start(&settings, Roles::OBSERVE).await;
    let sale = fixture.open_with(3, 1).await;
    assert_eq!(fixture.reconcile(&sale).await.of(Job::ReleaseReserve).repaired, 1);
    assert_eq!(fixture.remaining(&sale).await, 3);
}

/// The reserve is there for a Redis that is away; once Redis has sold out, it is sold there.
#[tokio::test]
async fn the_reserve_goes_to_redis_when_that_has_sold_out_and_again_when_units_come_back_to_it() {
    let fixture = ReconcilerFixture::start(&hasty("reserve").await, Roles::OBSERVE).await;
    let sale = fixture.open(1).await;
    let pool = fixture.running.service.ledger.pool();
    let more = "UPDATE stock SET total = total + 2, reserve = reserve + 2 WHERE sale_id = $1";
    sqlx::query(more).bind(sale.id.get()).execute(pool).await.expect("an update");
    assert_eq!(fixture.reconcile(&sale).await.of(Job::ReleaseReserve).found, 0, "Redis still has a unit");
    fixture.buy(&sale, "ann").await;
    assert_eq!(fixture.reconcile(&sale).await.of(Job::ReleaseReserve).repaired, 1);
    fixture.buy(&sale, "bob").await;
    fixture.buy(&sale, "cid").await;
    sqlx::query(more).bind(sale.id.get()).execute(pool).await.expect("an update");
    assert_eq!(fixture.reconcile(&sale).await.of(Job::ReleaseReserve).repaired, 1, "for ever, not once");
}

/// A job that lost its lock writes nothing, even if it does not know of the loss.
#[tokio::test]
async fn a_job_that_was_overtaken_writes_nothing() {
    let fixture = ReconcilerFixture::start(&hasty("overtaken").await, Roles::OBSERVE).await;
    let sale = fixture.open(1).await;
    let purchase = fixture.buy(&sale, "ann").await;
    fixture.record(&sale, &purchase).await;
    let ledger = &fixture.running.service.ledger;
    let late = "UPDATE orders SET pay_before = clock_timestamp() - interval '1 second'";
    sqlx::query(late).execute(ledger.pool()).await.expect("an update");
    let guard = fixture.lock.acquire(&Name::sale(sale.id), Options::default()).await.expect("the lock");
    let fence = guard.claim().await.expect("a claim");
    fence::mint(ledger.pool(), Name::sale(sale.id).as_str(), "a later holder", 0).await.expect("a token");
    let expired = ledger.expire(sale.id, 10, &fence).await;
    assert!(matches!(expired, Err(ledger::Error::Overtaken(_))), "{expired:?}");
    let moved = ledger.release_reserve(sale.id, "late", &fence).await;
    assert!(matches!(moved, Err(ledger::Error::Overtaken(_))), "{moved:?}");
    let opened = ledger.open_generation(sale.id, 1, Some(&fence)).await;
    assert!(matches!(opened, Err(ledger::Error::Overtaken(_))), "{opened:?}");
    let raised = ledger.catch_up(sale.id, 2, &fence).await;
    assert!(matches!(raised, Err(ledger::Error::Overtaken(_))), "{raised:?}");
    assert_eq!(fixture.status(purchase.order).await, Some((OrderStatus::Created, None)));
    assert_eq!(ledger.stock(sale.id).await.expect("a row").expect("a sale").generation, 1);
}

/// A Redis of one's own, to lose.
async fn own(name: &str) -> (Sandbox, Settings) {
    let (sandbox, settings) = with_own(name, own_redis()).await;
    let mut settings = prepared(settings).await;
    settings.reconcile.deep_every_ms = 500;
    settings.reconcile.grace_ms = 12_000;
    (sandbox, settings)
}

async fn sells_again(http: &mut Connection, sale: &Sale, token: &str) {
    let http = tokio::sync::Mutex::new(http);
    wait_until("the sale sells again", PATIENCE, async || {
        http.lock().await.buy(sale.id, token, &[]).await.status == 202
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_redis_is_rebuilt_and_sells_exactly_what_is_left() {
    let (sandbox, settings) = own("restarted").await;
    let running = Running::start(&settings, Roles::ALL).await;
    let sale = running.open_sale(3).await;
    let mut http = Connection::open(running.address()).await;
    let key = [("idempotency-key", "k")];
    let first = http.buy(sale.id, &running.token("ann"), &key).await;
    assert_eq!(first.status, 202);
    sandbox.redis().kill().expect("a kill");
    sandbox.redis().restart().await.expect("a restart");
    sells_again(&mut http, &sale, &running.token("bob")).await;
    let again = http.buy(sale.id, &running.token("ann"), &key).await;
    assert_eq!((again.status, again.text), (202, first.text), "the key is known in the new life");
    let held = http.buy(sale.id, &running.token("bob"), &[]).await;
    assert_eq!(held.code(), "already_purchased");
    assert_eq!(http.buy(sale.id, &running.token("cid"), &[]).await.status, 202);
    assert_eq!(http.buy(sale.id, &running.token("dan"), &[]).await.code(), "sold_out");
    running.settle(sale.id).await;
    let row = running.service.ledger.stock(sale.id).await.expect("an answer").expect("a row");
    assert_eq!(row.generation, 2);
    running.stop().await;
}

/// Redis forgot everything in the same process: what Kafka and the ledger have is kept, nothing is sold twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_redis_is_rebuilt_from_the_ledger() {
    let (_sandbox, settings) = own("flushed").await;
    let running = Running::start(&settings, Roles::ALL).await;
    let sale = running.open_sale(3).await;
    let mut http = Connection::open(running.address()).await;
    assert_eq!(http.buy(sale.id, &running.token("ann"), &[]).await.status, 202);
    running.settle(sale.id).await;
    let mut redis = redis(&settings.redis).await;
    redis::cmd("FLUSHALL").exec_async(&mut redis).await.expect("a flush");
    sells_again(&mut http, &sale, &running.token("bob")).await;
    assert_eq!(http.buy(sale.id, &running.token("ann"), &[]).await.code(), "already_purchased");
    assert_eq!(http.buy(sale.id, &running.token("cid"), &[]).await.status, 202);
    assert_eq!(http.buy(sale.id, &running.token("dan"), &[]).await.code(), "sold_out");
    running.settle(sale.id).await;
    let ttl: i64 = redis.ttl(keys::claims(sale.id)).await.expect("a time to live");
    assert!(ttl > 0);
    running.stop().await;
}

/// An order of an older generation that arrives after the rebuild: a readable row, rejected, and no unit twice.
#[tokio::test]
async fn an_order_of_an_older_life_that_comes_late_is_superseded() {
    let fixture = ReconcilerFixture::start(&hasty("late").await, Roles::OBSERVE).await;
    let sale = fixture.open(1).await;
    let late = fixture.buy(&sale, "ann").await;
    fixture.running.service.ledger.open_generation(sale.id, 1, None).await.expect("a new life");
    fixture.record(&sale, &late).await;
    assert_eq!(fixture.status(late.order).await, Some((OrderStatus::Rejected, Some(Rejection::Superseded))));
}

/// Three reconcilers at once: what is found is repaired once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_reconcilers_repair_once_what_all_of_them_see() {
    let settings = hasty("three").await;
    let fixture = ReconcilerFixture::start(&settings, Roles::OBSERVE).await;
    let sale = fixture.open(40).await;
    for n in 0..40 {
        let purchase = fixture.buy(&sale, &format!("u{n}")).await;
        fixture.record(&sale, &purchase).await;
    }
    fixture.drain_outbox(&sale).await;
    let late = "UPDATE orders SET pay_before = clock_timestamp() - interval '1 second'";
    sqlx::query(late).execute(fixture.running.service.ledger.pool()).await.expect("an update");
    let others = [
        ReconcilerFixture::start(&settings, Roles::OBSERVE).await,
        ReconcilerFixture::start(&settings, Roles::OBSERVE).await,
    ];
    let runs = futures_util::join!(
        fixture.reconciler.run_once(&sale, true),
        others[0].reconciler.run_once(&sale, true),
        others[1].reconciler.run_once(&sale, true),
    );
    let repaired: u64 =
        [runs.0, runs.1, runs.2].into_iter().map(|run| run.expect("a run").of(Job::Expire).repaired).sum();
    assert_eq!(repaired, 40);
    tokio::time::timeout(Duration::from_secs(60), fixture.running.settle(sale.id)).await.expect("settled");
    let update = fixture.running.service.stock.probe(sale.id).await.expect("an answer").expect("a warm sale");
    assert_eq!(update.remaining, 40);
}
