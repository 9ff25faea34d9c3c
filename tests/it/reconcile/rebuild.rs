//! The rebuild, safeguard by safeguard: what it waits for, what it republishes, and when it is called for.
//!
//! A rebuild that waits for something that does not come ends with the longest hold of its lock. What it must not have
//! done by then shows that it waited.

use std::time::Duration;

use crate::support::fixtures::{new_sale, purchase};
use crate::support::reconciler::{ReconcilerFixture, hasty};
use crate::support::servers::{own_redis, with_own};
use crate::support::service::{PATIENCE, Running, prepared};
use crate::support::wait_until;
use drive::environment::SandboxSettings;
use prometheus::Registry;
use redis::AsyncCommands;
use sandbox::{BreakAt, Sandbox, Timing};
use seckill::app::Roles;
use seckill::catalogue::NewSale;
use seckill::config::Settings;
use seckill::domain::{OrderId, OrderStatus, Outcome, Sale};
use seckill::lock::Lost;
use seckill::operator::opening::{self, Opened};
use seckill::purchasing::Purchasing;
use seckill::reconcile::{Error, Job, JobStats, Reconciler};
use seckill::stock::keys;
use time::OffsetDateTime;

/// Nobody who waits in vain does so for long.
async fn impatient(name: &str) -> Settings {
    let mut settings = hasty(name).await;
    settings.reconcile.max_hold_ms = 1_500;
    settings
}

/// One run. If Kafka is slow to answer, it is made again, as the service does.
async fn run(fixture: &ReconcilerFixture, sale: &Sale) -> Result<JobStats, Error> {
    let run = async {
        loop {
            match fixture.reconciler.run_once(sale, true).await {
                Err(Error::Kafka(_)) => {}
                outcome => return outcome,
            }
        }
    };
    tokio::time::timeout(PATIENCE, run).await.expect("a run has an end")
}

/// The same sale, and a reconciler with time.
async fn patient(fixture: &ReconcilerFixture, roles: Roles) -> ReconcilerFixture {
    let mut settings = fixture.running.settings.clone();
    settings.reconcile.max_hold_ms = 600_000;
    ReconcilerFixture::start(&settings, roles).await
}

fn assert_clean(stats: &JobStats) {
    assert!(stats.is_clean(), "{stats:?}");
}

async fn assert_waits(fixture: &ReconcilerFixture, sale: &Sale, generation: i64) {
    let waited = run(fixture, sale).await;
    assert!(matches!(waited, Err(Error::Lost(Lost::MaxHold))), "{waited:?}");
    assert_eq!(fixture.row(sale).await.generation, generation, "nothing was raised");
}

async fn assert_rebuilt(fixture: &ReconcilerFixture, sale: &Sale, generation: i64) -> JobStats {
    let stats = run(fixture, sale).await.expect("a run");
    assert_eq!(stats.of(Job::Rebuild).repaired, 1);
    assert_eq!(fixture.row(sale).await.generation, generation);
    let update = fixture.running.service.stock.probe(sale.id).await.expect("an answer").expect("it sells");
    assert_eq!(update.version.generation, generation);
    stats
}

/// The first inspection of a sale whose ledger is older than Redis.
async fn assert_catches_up(fixture: &ReconcilerFixture, sale: &Sale, generation: i64) {
    let stats = run(fixture, sale).await.expect("a run");
    assert_eq!((stats.of(Job::CatchUp).repaired, stats.of(Job::Rebuild).repaired), (1, 0));
    assert_eq!(fixture.row(sale).await.generation, generation);
}

/// As a reconciler leaves a sale that died in the middle of a rebuild: the same generation, and no sales.
async fn freeze(fixture: &ReconcilerFixture, sale: &Sale) {
    fixture.running.service.stock.freeze(sale.id, 1).await.expect("an answer");
}

/// A relay holds orders in its memory that stand nowhere else: they are late, and known to be, if it is not waited for.
#[tokio::test]
async fn a_rebuild_sells_nothing_and_raises_nothing_until_every_relay_has_published_what_it_held() {
    let fixture = ReconcilerFixture::start(&impatient("relays").await, Roles::OBSERVE).await;
    let sale = fixture.open(3).await;
    // Redis sells on at the generation that the nodes know, while the ledger is at the next.
    fixture.running.service.ledger.open_generation(sale.id, 1, None).await.expect("a generation");
    let relay = "INSERT INTO relays (instance, seen_at, flushed_home)
                 SELECT 'one', clock_timestamp() + interval '1 hour', 'another Redis' WHERE $1 > 0";
    fixture.meddle(&sale, relay).await;
    assert_waits(&fixture, &sale, 2).await;
    let asked = fixture.running.service.stock.purchase(sale.id, purchase(&sale, "ann")).await.outcome;
    assert_eq!(asked, Outcome::Cold, "frozen first: nothing is accepted while the rebuild waits");
    // A dead one is not waited for.
    fixture.meddle(&sale, "UPDATE relays SET seen_at = clock_timestamp() - interval '1 hour' WHERE $1 > 0").await;
    assert_rebuilt(&patient(&fixture, Roles::OBSERVE).await, &sale, 3).await;
}

#[tokio::test]
async fn a_rebuild_raises_nothing_while_an_order_stands_in_the_outbox() {
    let fixture = ReconcilerFixture::start(&impatient("outbox").await, Roles::OBSERVE).await;
    let sale = fixture.open(3).await;
    let bought = fixture.buy(&sale, "ann").await;
    fixture.record(&sale, &bought).await;
    freeze(&fixture, &sale).await;
    assert_waits(&fixture, &sale, 1).await;
    fixture.drain_outbox(&sale).await;
    assert_rebuilt(&patient(&fixture, Roles::OBSERVE).await, &sale, 2).await;
}

/// Redis has forgotten the order, and the consumer has not got to it yet: only Kafka knows.
#[tokio::test]
async fn a_rebuild_raises_nothing_before_every_order_in_kafka_has_its_row() {
    let fixture = ReconcilerFixture::start(&impatient("watermarks").await, Roles::OBSERVE).await;
    let sale = fixture.open(3).await;
    let bought = fixture.buy(&sale, "ann").await;
    fixture.drain_outbox(&sale).await;
    assert_eq!(run(&fixture, &sale).await.expect("a run").of(Job::Republish).repaired, 1, "it is in Kafka");
    let _: i64 = fixture.redis().await.del(keys::all(sale.id).to_vec()).await.expect("an answer");
    assert_waits(&fixture, &sale, 1).await;

    let fixture = patient(&fixture, Roles::CONSUME).await;
    assert_rebuilt(&fixture, &sale, 2).await;
    assert_eq!(fixture.status(bought.order).await, Some((OrderStatus::Created, None)), "and not superseded");
    assert_eq!(fixture.remaining(&sale).await, 2);
}

/// Kafka lost the message, so the claim is the order's last trace, and the rebuild takes the claims of the ledger.
#[tokio::test]
async fn a_claim_without_a_row_is_published_again_before_the_rebuild_forgets_it() {
    let fixture = ReconcilerFixture::start(&hasty("rows_before").await, Roles::CONSUME).await;
    let sale = fixture.open(3).await;
    let bought = fixture.buy(&sale, "ann").await;
    fixture.drain_outbox(&sale).await;
    freeze(&fixture, &sale).await;
    assert_rebuilt(&fixture, &sale, 2).await;
    assert_eq!(fixture.status(bought.order).await, Some((OrderStatus::Created, None)));
    assert_eq!(fixture.remaining(&sale).await, 2);
    fixture.running.settle(sale.id).await;
}

/// Orders of a generation that the ledger has lost may still come. None may count as one of the new generation.
#[tokio::test]
async fn a_ledger_from_an_older_copy_goes_on_above_the_generation_in_redis() {
    let fixture = ReconcilerFixture::start(&hasty("older_ledger").await, Roles::OBSERVE).await;
    let sale = fixture.open(3).await;
    let () = fixture.redis().await.hset(keys::sale(sale.id), "generation", 5).await.expect("a hash");
    assert_catches_up(&fixture, &sale, 5).await;
    assert_rebuilt(&fixture, &sale, 6).await;
}

/// Sells a rebuilt sale, whose ledger was restored from before that.
async fn sell_ahead_of_the_ledger(fixture: &ReconcilerFixture, sale: &Sale) -> OrderId {
    fixture.meddle(sale, "UPDATE stock SET generation = 1 WHERE sale_id = $1").await;
    fixture.buy(&Sale { generation: 2, ..sale.clone() }, "ann").await.order
}

/// The order's message waits for a ledger that knows its generation, and the rebuild waits for the message.
#[tokio::test]
async fn an_order_of_a_life_that_the_ledger_forgot_has_its_row_when_the_rebuild_ends() {
    let fixture = ReconcilerFixture::start(&hasty("forgotten_life").await, Roles::CONSUME).await;
    let sale = fixture.open(3).await;
    freeze(&fixture, &sale).await;
    assert_rebuilt(&fixture, &sale, 2).await;
    let order = sell_ahead_of_the_ledger(&fixture, &sale).await;
    fixture.drain_outbox(&sale).await;
    assert_catches_up(&fixture, &sale, 2).await;
    let stats = assert_rebuilt(&fixture, &sale, 3).await;
    assert_eq!(stats.of(Job::Restore).repaired, 0, "it was the ledger that had lost data");
    assert_eq!(fixture.status(order).await, Some((OrderStatus::Created, None)));
    assert_eq!(fixture.remaining(&sale).await, 2);
    fixture.running.settle(sale.id).await;
}

/// The message of one waits in front of those of the other.
#[tokio::test]
async fn two_sales_whose_ledger_is_older_do_not_wait_for_each_other() {
    let settings = hasty("forgotten_lives").await;
    let fixture = ReconcilerFixture::start(&settings, Roles::CONSUME).await;
    let relay = Running::start(&settings, Roles::RELAY).await;
    let sales = [fixture.open(3).await, fixture.open(3).await];
    for sale in &sales {
        freeze(&fixture, sale).await;
        assert_rebuilt(&fixture, sale, 2).await;
    }
    for sale in &sales {
        sell_ahead_of_the_ledger(&fixture, sale).await;
        let stock = &fixture.running.service.stock;
        let published = || async { stock.outbox_length(sale.id).await.is_ok_and(|left| left == 0) };
        wait_until("the order is in Kafka", PATIENCE, published).await;
    }
    for sale in &sales {
        assert_catches_up(&fixture, sale, 2).await;
    }
    for sale in &sales {
        assert_rebuilt(&fixture, sale, 3).await;
        fixture.running.settle(sale.id).await;
    }
    relay.stop().await;
}

/// PostgreSQL was restored from before the sale was opened, and somebody opens it.
#[tokio::test]
async fn a_draft_that_has_been_sold_already_is_not_opened_with_nothing_sold() {
    let fixture = ReconcilerFixture::start(&hasty("draft_again").await, Roles::CONSUME).await;
    let sale = fixture.open(3).await;
    let bought = fixture.buy(&sale, "ann").await;
    fixture.drain_outbox(&sale).await;
    fixture.meddle(&sale, "UPDATE stock SET generation = 0 WHERE sale_id = $1").await;
    fixture.meddle(&sale, "UPDATE sales SET state = 'draft' WHERE id = $1").await;
    let service = &fixture.running.service;
    // The ledger forgot its tokens, too.
    fixture.meddle(&sale, "DELETE FROM lock_fence WHERE resource = 'sale:' || $1").await;
    let () = fixture.redis().await.hset(keys::sale(sale.id), "fence", 4_000).await.expect("a hash");
    let opened = opening::open(&service.ledger, &service.stock, sale.id).await.expect("it opens");
    assert_eq!(opened, Opened::LeftToReconciler);
    assert_eq!(fixture.row(&sale).await.generation, 1);
    assert_rebuilt(&fixture, &sale, 2).await;
    assert_eq!(fixture.status(bought.order).await, Some((OrderStatus::Created, None)));
    assert_eq!(fixture.remaining(&sale).await, 2);
    fixture.running.settle(sale.id).await;
}

/// Its unit would be sold again. A young one is left alone: what made it may be under way.
#[tokio::test]
async fn a_live_order_without_a_claim_leads_to_a_rebuild_once_it_is_old_enough() {
    let mut settings = hasty("uncovered").await;
    settings.reconcile.grace_ms = 3_600_000;
    let fixture = ReconcilerFixture::start(&settings, Roles::OBSERVE).await;
    let sale = fixture.open(3).await;
    let bought = fixture.buy(&sale, "ann").await;
    fixture.record(&sale, &bought).await;
    fixture.drain_outbox(&sale).await;
    let _: i64 = fixture.redis().await.hdel(keys::claims(sale.id), "ann").await.expect("a hash");
    assert_clean(&run(&fixture, &sale).await.expect("a run"));
    fixture.meddle(&sale, "UPDATE orders SET created_at = created_at - interval '2 hours' WHERE sale_id = $1").await;
    let stats = assert_rebuilt(&fixture, &sale, 2).await;
    assert_eq!(stats.of(Job::Restore).repaired, 1, "an operator learns that Redis has lost data");
    fixture.running.settle(sale.id).await;
}

/// Its keys have expired, as they should: that looks like a loss, and would be repaired for ever.
#[tokio::test]
async fn a_sale_past_its_retention_is_not_rebuilt() {
    let fixture = ReconcilerFixture::start(&hasty("retention").await, Roles::OBSERVE).await;
    let sale = fixture.open(3).await;
    let _: i64 = fixture.redis().await.del(keys::all(sale.id).to_vec()).await.expect("an answer");
    let retention = fixture.running.settings.redis.retention();
    let over = Sale { ends_at: OffsetDateTime::now_utc() - retention - Duration::from_secs(1), ..sale.clone() };
    assert_clean(&run(&fixture, &over).await.expect("a run"));
    assert_rebuilt(&fixture, &sale, 2).await;
}

#[tokio::test]
async fn a_sale_that_nobody_has_opened_is_not_put_on_sale_by_the_reconciler() {
    let fixture = ReconcilerFixture::start(&hasty("unopened").await, Roles::OBSERVE).await;
    let sale = fixture.running.service.operator.create(NewSale { total: 3, ..new_sale() }).await.expect("a sale");
    assert_clean(&run(&fixture, &sale).await.expect("a run"));
    assert_eq!(fixture.row(&sale).await.generation, 0);
}

/// Redis sells; it is the node that is behind, and a second later it will not be.
#[tokio::test]
async fn a_node_that_has_not_heard_of_the_new_life_leaves_the_reserve_alone() {
    let fixture = ReconcilerFixture::start(&hasty("behind").await, Roles::OBSERVE).await;
    let sale = fixture.open_with(4, 2).await;
    let service = &fixture.running.service;
    let fallback = &fixture.running.settings.fallback;
    let (stock, ledger) = (service.stock.clone(), service.ledger.clone());
    let node = Purchasing::new(fallback, stock, ledger, &Registry::new()).expect("metrics");
    let ask = async |user| node.purchase(&sale, purchase(&sale, user), || OrderId::mint(sale.id, 2, 1)).await.outcome;
    freeze(&fixture, &sale).await;
    assert!(matches!(ask("ann").await, Outcome::Accepted(_)), "a Redis that may not sell is bridged");
    assert_rebuilt(&fixture, &sale, 2).await;
    assert_eq!(ask("bob").await, Outcome::Cold);
    assert_eq!(fixture.row(&sale).await.reserve, 1);
}

/// A Redis of its own, a sale's fixture, and one more reconciler, whose way to them can be held up in the middle of a look.
async fn beside_one_that_can_be_held(name: &str) -> (Sandbox, ReconcilerFixture, Reconciler) {
    let (sandbox, settings) = with_own(name, own_redis()).await;
    let mut settings = prepared(settings).await;
    settings.reconcile.grace_ms = 0;
    // For as long as others work meanwhile.
    settings.redis.response_timeout_ms = 60_000;
    let fixture = ReconcilerFixture::start(&settings, Roles::OBSERVE).await;
    let reconciler = ReconcilerFixture::start(&sandbox.proxied(&settings), Roles::OBSERVE).await.reconciler;
    (sandbox, fixture, reconciler)
}

/// The two stores cannot be read in one instant. What happens in between is no fault, and stops no sale.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happens_between_the_looks_at_the_ledger_and_at_redis_leads_to_no_rebuild() {
    let (sandbox, fixture, reconciler) = beside_one_that_can_be_held("between_looks").await;
    let sale = fixture.open(3).await;
    let claims = BreakAt::Command("HGETALL");
    let proxy = sandbox.redis().proxy().expect("a proxy");

    // Bought and recorded after the read of Redis: reading the ledger only then would miss the claim.
    let trap = proxy.breakpoint(claims, Timing::After);
    let meanwhile = async {
        let held = trap.hit(PATIENCE).await.expect("a look");
        let bought = fixture.buy(&sale, "ann").await;
        fixture.record(&sale, &bought).await;
        held.resume();
        bought
    };
    let (found, bought) = tokio::join!(reconciler.inspect(&sale, true), meanwhile);
    assert_eq!(found.expect("a look").rebuild, None);

    // Closed and released after the read of the ledger.
    let trap = proxy.breakpoint(claims, Timing::Before);
    let meanwhile = async {
        let held = trap.hit(PATIENCE).await.expect("a look");
        let service = &fixture.running.service;
        service.ledger.close(bought.order, OrderStatus::Cancelled).await.expect("a move");
        service.stock.release(sale.id, &bought.user, bought.order).await.expect("an answer");
        held.resume();
    };
    let (found, ()) = tokio::join!(reconciler.inspect(&sale, true), meanwhile);
    assert_eq!(found.expect("a look").rebuild, None);
}

/// Between the look and the lock somebody else may have done it, and a second time would only stop the selling.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_another_reconciler_has_rebuilt_meanwhile_is_not_rebuilt_again() {
    let (sandbox, fixture, late) = beside_one_that_can_be_held("rebuilt_meanwhile").await;
    let sale = fixture.open(3).await;
    freeze(&fixture, &sale).await;
    let look = BreakAt::Script(include_str!("../../../lua/purchase.lua"));
    let trap = sandbox.redis().proxy().expect("a proxy").breakpoint(look, Timing::After);
    let meanwhile = async {
        let held = trap.hit(PATIENCE).await.expect("a look");
        assert_rebuilt(&fixture, &sale, 2).await;
        held.resume();
    };
    let (outcome, ()) = tokio::join!(late.run_once(&sale, false), meanwhile);
    assert_eq!(outcome.expect("a run").of(Job::Rebuild).repaired, 0);
    assert_eq!(fixture.row(&sale).await.generation, 2);
}

/// Nothing that Redis forgets or sleeps through keeps an order from falling due.
#[tokio::test]
async fn an_order_that_falls_due_while_redis_is_cold_is_closed_and_its_unit_is_sold_again() {
    let fixture = ReconcilerFixture::start(&hasty("due_while_cold").await, Roles::OBSERVE).await;
    let sale = fixture.open(1).await;
    let bought = fixture.buy(&sale, "ann").await;
    fixture.record(&sale, &bought).await;
    let _: i64 = fixture.redis().await.del(keys::all(sale.id).to_vec()).await.expect("an answer");
    fixture.meddle(&sale, "UPDATE orders SET pay_before = clock_timestamp() WHERE sale_id = $1").await;
    assert_rebuilt(&fixture, &sale, 2).await;
    assert_eq!(fixture.status(bought.order).await, Some((OrderStatus::Expired, None)));
    assert_eq!(fixture.remaining(&sale).await, 1);
}

/// Nobody empties the outbox, so the rebuild waits. An order of another sale falls due meanwhile.
#[tokio::test]
async fn a_rebuild_that_waits_does_not_keep_the_reconciler_from_other_sales() {
    let mut settings = hasty("waits_alone").await;
    // One sale at a time.
    settings.postgres.max_connections = 2;
    let fixture = ReconcilerFixture::start(&settings, Roles::OBSERVE).await;
    let (stuck, other) = (fixture.open(2).await, fixture.open(2).await);
    fixture.buy(&stuck, "ann").await;
    freeze(&fixture, &stuck).await;
    let bought = fixture.buy(&other, "bob").await;
    fixture.record(&other, &bought).await;
    let reconciler = Running::start(&settings, Roles::RECONCILE).await;
    let redis = tokio::sync::Mutex::new(fixture.redis().await);
    wait_until("the rebuild has begun", PATIENCE, async || {
        let fence: i64 = redis.lock().await.hget(keys::sale(stuck.id), "fence").await.expect("a hash");
        fence > 1
    })
    .await;
    fixture.meddle(&other, "UPDATE orders SET pay_before = clock_timestamp() WHERE sale_id = $1").await;
    let expired = async || fixture.status(bought.order).await == Some((OrderStatus::Expired, None));
    wait_until("the other order expires", PATIENCE, expired).await;
    assert_eq!(fixture.row(&stuck).await.generation, 1, "it still waits");
    reconciler.stop().await;
}
