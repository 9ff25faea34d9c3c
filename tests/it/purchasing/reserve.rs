//! Nodes that cannot reach Redis: they sell the reserve, exactly, and say 503 for the rest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use crate::support::fixtures::new_sale;
use crate::support::http::{Answer, Connection};
use crate::support::servers::{own_redis, with_own};
use crate::support::service::{PATIENCE, Running, prepared};
use crate::support::wait_until;
use drive::environment::SandboxSettings;
use sandbox::{BreakAt, Options, Proxy, Sandbox, Timing};
use seckill::app::Roles;
use seckill::catalogue::NewSale;
use seckill::config::Settings;
use seckill::domain::{Pool, SaleId};
use seckill::promises::CheckResult;

/// The statement that takes units of the reserve.
const TAKE: BreakAt = BreakAt::Statement("UPDATE stock SET reserve = reserve - $4");

/// Two nodes with relay and consumer: one whose way to Redis can be cut, one that always reaches it.
struct Scene {
    cut: Running,
    whole: Running,
    sandbox: Sandbox,
}

impl Scene {
    async fn set(name: &str, own: Options) -> Self {
        Self::with(name, own, |_| {}).await
    }

    async fn with(name: &str, own: Options, change: impl FnOnce(&mut Settings)) -> Self {
        let (sandbox, settings) = with_own(&format!("fallback_{name}"), own).await;
        let direct = prepared(settings).await;
        let ways = sandbox.proxied(&direct);
        let mut proxied = Settings { redis: ways.redis, postgres: ways.postgres, ..direct.clone() };
        proxied.redis.response_timeout_ms = 300;
        change(&mut proxied);
        let whole = Running::start(&direct, Roles::ALL).await;
        let cut = Running::start(&proxied, Roles::SERVE).await;
        Self { cut, whole, sandbox }
    }

    async fn open(&self, total: u32, reserve: u32) -> SaleId {
        let sale = self.whole.open_sale_of(NewSale { total, reserve: Some(reserve), ..new_sale() }).await.id;
        self.cut.service.catalogue.refresh().await.expect("PostgreSQL answers");
        sale
    }

    fn proxy(&self) -> &Proxy {
        self.sandbox.redis().proxy().expect("a proxy")
    }

    async fn broken(&self, sale: SaleId) -> Vec<(&'static str, String)> {
        let findings = self.whole.service.operator.audit(sale).await.expect("an audit");
        let broken = findings.into_iter().filter(|finding| finding.holds == CheckResult::Broken);
        broken.map(|finding| (finding.name, finding.detail)).collect()
    }

    async fn stop(self) {
        self.cut.stop().await;
        self.whole.stop().await;
    }
}

async fn reserve_left(scene: &Scene, sale: SaleId) -> u32 {
    scene.whole.service.ledger.stock(sale).await.expect("an answer").expect("a sale").reserve
}

async fn buy(node: &Running, sale: SaleId, user: &str) -> Answer {
    Connection::open(node.address()).await.buy(sale, &node.token(user), &[]).await
}

fn id(answer: &Answer) -> String {
    answer.json()["order_id"].as_str().expect("an order id").to_owned()
}

async fn status(node: &Running, user: &str, order: &str) -> String {
    let path = format!("/api/v1/orders/{order}");
    let read = Connection::open(node.address()).await.get(&path, &node.token(user)).await;
    read.json()["status"].as_str().unwrap_or_default().to_owned()
}

fn tally<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> HashMap<(u16, String), usize> {
    let mut tally = HashMap::new();
    for answer in answers {
        *tally.entry((answer.status, answer.code())).or_default() += 1;
    }
    tally
}

fn accepted(count: usize) -> ((u16, String), usize) {
    ((202, String::new()), count)
}

fn unavailable(count: usize) -> ((u16, String), usize) {
    ((503, "unavailable".to_owned()), count)
}

/// One node is cut off from Redis, the other is not, and both are asked by more buyers than there are units.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_cut_off_sells_exactly_the_reserve_and_the_other_exactly_the_rest() {
    let scene = Scene::set("rest", own_redis()).await;
    let sale = scene.open(30, 5).await;
    scene.proxy().cut().await;
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for n in 0..35 {
        let (one, other) = (format!("cut-{n}"), format!("whole-{n}"));
        let (one, other) = tokio::join!(buy(&scene.cut, sale, &one), buy(&scene.whole, sale, &other));
        here.push(one);
        there.push(other);
    }
    assert_eq!(tally(&here), HashMap::from([accepted(5), unavailable(30)]));
    assert_eq!(tally(&there), HashMap::from([accepted(25), ((409, "sold_out".to_owned()), 10)]));
    let refused = here.iter().filter(|answer| answer.status == 503);
    assert!(refused.into_iter().all(|answer| answer.header("retry-after").is_some()));
    // Readable at once, on the node that sold it.
    for (n, answer) in here.iter().enumerate().filter(|(_, answer)| answer.status == 202) {
        assert_eq!(status(&scene.cut, &format!("cut-{n}"), &id(answer)).await, "created");
    }
    scene.whole.settle(sale).await;
    let ledger = scene.whole.service.ledger.view(sale).await.expect("a view").expect("a sale");
    assert_eq!((ledger.available, ledger.reserve), (0, 0), "every unit is sold, and none twice");
    assert_eq!(ledger.orders.iter().filter(|order| order.pool == Pool::Reserve).count(), 5);
    scene.stop().await;
}

/// The purchase is carried out in Redis, its answer is lost, and the fallback takes the same order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_purchase_goes_on_under_its_own_id_and_is_one_row() {
    let scene = Scene::set("unknown", own_redis()).await;
    let sale = scene.open(10, 5).await;
    // From here on Redis knows the script, so that the lost answer is not that it does not.
    assert_eq!(buy(&scene.cut, sale, "zoe").await.status, 202);
    scene.proxy().drop_responses().await;
    let bought = buy(&scene.cut, sale, "ann").await;
    assert_eq!(bought.status, 202, "{}", bought.text);
    let order = id(&bought);
    scene.proxy().heal().await;
    let claimed = async || {
        let view = scene.whole.service.stock.view(sale).await.expect("Redis answers").expect("a warm sale");
        view.claims.iter().any(|claim| claim.order.to_string() == order)
    };
    wait_until("Redis took it, too", PATIENCE, claimed).await;
    let ledger = scene.whole.service.ledger.view(sale).await.expect("a view").expect("a sale");
    let rows: Vec<_> = ledger.orders.iter().filter(|row| row.user.as_str() == "ann").collect();
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].id.to_string(), rows[0].pool), (order.clone(), Pool::Reserve));
    // All that is left of it is the claim in Redis, whose unit the reconciler gives back.
    scene.whole.settle(sale).await;
    assert!(!claimed().await);
    assert_eq!(status(&scene.cut, "ann", &order).await, "created");
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_buyer_in_both_pools_keeps_the_first_order_and_the_later_is_already_purchased() {
    let scene = Scene::set("both_pools", own_redis()).await;
    let sale = scene.open(10, 5).await;
    let first = id(&buy(&scene.whole, sale, "ann").await);
    wait_until("the row", PATIENCE, async || status(&scene.whole, "ann", &first).await == "created").await;
    scene.proxy().cut().await;
    let again = buy(&scene.cut, sale, "ann").await;
    assert_eq!((again.status, again.code().as_str()), (409, "already_purchased"), "{}", again.text);
    assert_eq!(id(&again), first);

    // The other way round Redis cannot know, and the ledger decides.
    let reserved = id(&buy(&scene.cut, sale, "bob").await);
    let second = buy(&scene.whole, sale, "bob").await;
    assert_eq!(second.status, 202, "{}", second.text);
    let second = id(&second);
    wait_until("the decision", PATIENCE, async || status(&scene.whole, "bob", &second).await == "rejected").await;
    assert_eq!(status(&scene.whole, "bob", &reserved).await, "created");
    let path = format!("/api/v1/sales/{sale}/order");
    let own = Connection::open(scene.whole.address()).await.get(&path, &scene.whole.token("bob")).await;
    assert_eq!((own.json()["order_id"].as_str(), own.json()["status"].as_str()), (Some(&*reserved), Some("created")));
    // The reconciler gives the unit of the rejected order back.
    scene.whole.settle(sale).await;
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_buyers_at_once_get_exactly_the_five_units_of_the_reserve() {
    let scene = Scene::with("twenty", own_redis(), |settings| settings.fallback.concurrency = 20).await;
    let sale = scene.open(30, 5).await;
    scene.proxy().cut().await;
    let users: Vec<_> = (0..20).map(|n| format!("u{n}")).collect();
    let answers = futures_util::future::join_all(users.iter().map(|user| buy(&scene.cut, sale, user))).await;
    assert_eq!(tally(&answers), HashMap::from([accepted(5), unavailable(15)]));
    scene.whole.settle(sale).await;
    scene.stop().await;
}

/// Beyond the permits of the bulkhead a buyer is rejected at once, without a query to the ledger.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_bulkhead_a_buyer_is_told_to_come_back_at_once() {
    let scene = Scene::with("bulkhead", own_redis(), |settings| settings.fallback.concurrency = 2).await;
    let sale = scene.open(30, 5).await;
    scene.proxy().cut().await;
    // Somebody holds the stock row, so that two buyers wait with their permits.
    let pool = scene.whole.service.ledger.pool();
    let mut hold = pool.begin().await.expect("a transaction");
    let lock = sqlx::query("SELECT 1 FROM stock WHERE sale_id = $1 FOR UPDATE").bind(sale.get());
    lock.execute(&mut *hold).await.expect("a lock");
    let waiting = async || {
        let count = "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND wait_event_type = 'Lock'";
        sqlx::query_scalar::<_, i64>(count).fetch_one(pool).await.expect("PostgreSQL answers")
    };
    let third = async {
        wait_until("both seats are taken", PATIENCE, async || waiting().await == 2).await;
        let third = buy(&scene.cut, sale, "cid").await;
        assert_eq!(waiting().await, 2, "the third never reached PostgreSQL");
        hold.rollback().await.expect("a rollback");
        third
    };
    let (one, two, third) = tokio::join!(buy(&scene.cut, sale, "ann"), buy(&scene.cut, sale, "bob"), third);
    assert_eq!((third.status, third.code().as_str()), (503, "unavailable"));
    assert_eq!((one.status, two.status), (202, 202), "{} {}", one.text, two.text);
    scene.whole.settle(sale).await;
    scene.stop().await;
}

/// A buyer who hangs up frees no permit: the purchase is still in progress.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_seat_of_a_buyer_who_hung_up_is_taken_until_the_ledger_is_done() {
    let scene = Scene::with("hung_up", own_redis().postgres(), |settings| settings.fallback.concurrency = 1).await;
    let sale = scene.open(30, 5).await;
    scene.proxy().cut().await;
    let take = scene.sandbox.postgres().proxy().expect("a proxy");
    let breakpoint = take.breakpoint(TAKE, Timing::Before);
    take.cut().await;
    take.heal().await;
    let (address, token) = (scene.cut.address(), scene.cut.token("ann"));
    let ann = tokio::spawn(async move { Connection::open(address).await.buy(sale, &token, &[]).await });
    let held = breakpoint.hit(PATIENCE).await.expect("she has a seat");
    ann.abort();
    assert!(ann.await.is_err_and(|gone| gone.is_cancelled()));
    assert_eq!(tally(&[buy(&scene.cut, sale, "bob").await]), HashMap::from([unavailable(1)]));
    held.resume();
    wait_until("her order stands", PATIENCE, async || reserve_left(&scene, sale).await == 4).await;
    wait_until("the seat is free", PATIENCE, async || buy(&scene.cut, sale, "bob").await.status == 202).await;
    scene.stop().await;
}

/// PostgreSQL has sold the unit, and the connection breaks before the answer arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_from_the_reserve_whose_answer_is_lost_is_unknown_and_its_order_can_be_asked_for() {
    let scene = Scene::set("lost_answer", own_redis().postgres()).await;
    let sale = scene.open(30, 5).await;
    // Redis says no word of its own about the purchase.
    scene.whole.service.stock.freeze(sale, 1_000).await.expect("Redis answers");
    let take = scene.sandbox.postgres().proxy().expect("a proxy");
    let breakpoint = take.breakpoint(TAKE, Timing::After);
    take.cut().await;
    take.heal().await;
    let break_it = async { drop(breakpoint.hit(PATIENCE).await.expect("the unit is sold")) };
    let (answer, ()) = tokio::join!(buy(&scene.cut, sale, "ann"), break_it);
    assert_eq!((answer.status, answer.code().as_str()), (503, "unavailable"), "{}", answer.text);
    let order = id(&answer);
    wait_until("it can be read", PATIENCE, async || status(&scene.cut, "ann", &order).await == "created").await;
    assert_eq!(reserve_left(&scene, sale).await, 4);
    scene.stop().await;
}

/// PostgreSQL hangs, and wakes up when the buyer has gone: not known was not no.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_hangs_is_not_waited_for_and_not_taken_for_a_no() {
    let scene = Scene::set("hangs", own_redis().postgres()).await;
    let sale = scene.open(30, 5).await;
    scene.whole.service.stock.freeze(sale, 1_000).await.expect("Redis answers");
    let take = scene.sandbox.postgres().proxy().expect("a proxy");
    let breakpoint = take.breakpoint(TAKE, Timing::Before);
    take.cut().await;
    take.heal().await;
    let (answer, held) = tokio::join!(buy(&scene.cut, sale, "ann"), breakpoint.hit(PATIENCE));
    assert_eq!((answer.status, answer.code().as_str()), (503, "unavailable"), "{}", answer.text);
    let order = id(&answer);
    held.expect("it hangs").resume();
    wait_until("it can be read", PATIENCE, async || status(&scene.cut, "ann", &order).await == "created").await;
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_postgresql_down_too_it_is_a_503_and_afterwards_the_reserve_is_whole() {
    let scene = Scene::set("both_down", own_redis().postgres()).await;
    let sale = scene.open(10, 3).await;
    scene.proxy().cut().await;
    scene.sandbox.postgres().kill().expect("a kill");
    for n in 0..3 {
        let answer = buy(&scene.cut, sale, &format!("u{n}")).await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "unavailable"), "{}", answer.text);
    }
    scene.sandbox.postgres().restart().await.expect("a restart");
    wait_until("the reserve sells", PATIENCE, async || buy(&scene.cut, sale, "ann").await.status == 202).await;
    let ledger = scene.whole.service.ledger.view(sale).await.expect("a view").expect("a sale");
    assert_eq!((ledger.reserve, ledger.orders.len()), (2, 1));
    scene.stop().await;
}

/// A Redis that hangs costs its timeout to the few that find out, and then to one probe at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_redis_is_left_alone_but_for_one_probe_and_used_again_when_it_answers() {
    let scene = Scene::with("hanging", own_redis(), |settings| {
        settings.redis.response_timeout_ms = 1_000;
        settings.fallback.failures = 2;
        settings.fallback.open_ms = 200;
        settings.fallback.concurrency = 40;
    })
    .await;
    let sale = scene.open(200, 100).await;
    assert_eq!(buy(&scene.cut, sale, "zoe").await.status, 202);
    scene.proxy().stall().await;
    for n in 0..2 {
        assert_eq!(buy(&scene.cut, sale, &format!("early-{n}")).await.status, 202, "from the reserve");
    }
    let began = Instant::now();
    let users: Vec<_> = (0..40).map(|n| format!("u{n}")).collect();
    let answers = futures_util::future::join_all(users.iter().map(|user| buy(&scene.cut, sale, user))).await;
    assert_eq!(tally(&answers), HashMap::from([accepted(40)]));
    // A probe lasts for the timeout, and the next one waits its time.
    let probes = 1 + began.elapsed().as_millis() / 1_200;

    scene.proxy().heal().await;
    let left = async || scene.whole.service.stock.view(sale).await.expect("Redis answers").expect("warm").remaining;
    let before = left().await;
    let late = AtomicU32::new(0);
    wait_until("Redis sells to this node again", PATIENCE, async || {
        let user = format!("late-{}", late.fetch_add(1, Ordering::Relaxed));
        assert_ne!(buy(&scene.cut, sale, &user).await.code(), "sold_out");
        // More than what the stall held back could have taken.
        left().await < before - 30
    })
    .await;
    let view = scene.whole.service.stock.view(sale).await.expect("Redis answers").expect("a warm sale");
    let sent = view.claims.iter().filter(|claim| claim.user.as_str().starts_with('u')).count();
    assert!(sent as u128 <= probes, "{sent} purchases were sent to a Redis that hangs, and {probes} could be probes");
    scene.stop().await;
}

/// A Redis that answers, but may not sell because it waits to be rebuilt: the reserve bridges that, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_waits_for_a_rebuild_the_reserve_sells() {
    let scene = Scene::set("frozen", own_redis()).await;
    let sale = scene.open(10, 2).await;
    scene.whole.service.stock.freeze(sale, 1_000).await.expect("Redis answers");
    let users: Vec<_> = (0..4).map(|n| format!("u{n}")).collect();
    let mut answers = Vec::new();
    for user in &users {
        answers.push(buy(&scene.whole, sale, user).await);
    }
    assert_eq!(tally(&answers), HashMap::from([accepted(2), unavailable(2)]));
    assert_eq!(scene.broken(sale).await, []);
    scene.stop().await;
}
