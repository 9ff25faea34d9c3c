//! The status of an order that a buyer sees, in each state and with each server away.

use crate::support::fixtures::{new_sale, order_message, redis};
use crate::support::http::{Answer, Connection};
use crate::support::servers::{own_redis, with_own};
use crate::support::service::{PATIENCE, Running, prepared, settings};
use crate::support::wait_until;
use drive::environment::SandboxSettings;
use redis::AsyncCommands;
use sandbox::{Options, Sandbox};
use seckill::app::Roles;
use seckill::catalogue::NewSale;
use seckill::domain::{OrderId, OrderStatus, SaleId, UserId};
use seckill::stock::keys;

fn status(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["status"].as_str().expect("a status").to_owned()
}

fn order_id(answer: &Answer) -> OrderId {
    answer.json()["order_id"].as_str().expect("an order id").parse().expect("an order id")
}

fn user(name: &str) -> UserId {
    name.parse().expect("a user id")
}

/// A node whose ways to the servers can be cut, and an observer straight at them.
struct Cuttable {
    sandbox: Sandbox,
    node: Running,
    observer: Running,
}

impl Cuttable {
    async fn start(name: &str, own: Options, response_timeout_ms: u64) -> Self {
        let (sandbox, settings) = with_own(name, own).await;
        let direct = prepared(settings).await;
        let mut proxied = sandbox.proxied(&direct);
        proxied.redis.response_timeout_ms = response_timeout_ms;
        let node = Running::start(&proxied, Roles::SERVE).await;
        let observer = Running::observe(&direct).await;
        Self { sandbox, node, observer }
    }

    /// A sale that the node knows of.
    async fn open_sale(&self, total: u32) -> SaleId {
        let sale = self.observer.open_sale(total).await.id;
        wait_until("the node knows the sale", PATIENCE, async || {
            self.node.service.catalogue.get(sale).is_some_and(|known| known.generation > 0)
        })
        .await;
        sale
    }
}

#[tokio::test]
async fn an_order_can_be_read_at_each_moment_of_its_life() {
    let settings = settings("each_moment").await;
    let node = Running::start(&settings, Roles::SERVE).await;
    let sale = node.open_sale(1).await.id;
    let mut http = Connection::open(node.address()).await;
    let ann = node.token("ann");
    let bought = order_id(&http.buy(sale, &ann, &[]).await);
    let (by_id, own) = (format!("/api/v1/orders/{bought}"), format!("/api/v1/sales/{sale}/order"));
    for path in [&by_id, &own] {
        assert_eq!(status(&http.get(path, &ann).await), "queued");
    }

    let flow = [Running::start(&settings, Roles::RELAY).await, Running::start(&settings, Roles::CONSUME).await];
    loop {
        let seen = [status(&http.get(&by_id, &ann).await), status(&http.get(&own, &ann).await)];
        assert!(seen.iter().all(|status| status == "queued" || status == "created"), "{seen:?}");
        if seen[0] == "created" {
            break;
        }
    }
    node.service.ledger.close(bought, OrderStatus::Cancelled).await.expect("a close");
    assert_eq!(status(&http.get(&by_id, &ann).await), "cancelled", "the claim still stands, and the row knows better");
    node.service.stock.release(sale, &user("ann"), bought).await.expect("a release");
    for path in [&by_id, &own] {
        assert_eq!(status(&http.get(path, &ann).await), "cancelled");
    }

    let again = order_id(&http.buy(sale, &ann, &[]).await);
    assert_ne!(again, bought);
    assert_eq!(order_id(&http.get(&own, &ann).await), again, "the latest one");
    assert_eq!(status(&http.get(&by_id, &ann).await), "cancelled", "the old one is still itself");
    node.settle(sale).await;
    for part in flow {
        part.stop().await;
    }
    node.stop().await;
}

/// An order that is created, closed and released during a look-up is missed if the ledger is read first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_created_closed_and_released_between_the_two_reads_is_found() {
    let scene = Cuttable::start("between_reads", own_redis(), 120_000).await;
    let sale = scene.open_sale(1).await;
    let mut http = Connection::open(scene.node.address()).await;
    let ann = scene.node.token("ann");
    let bought = order_id(&http.buy(sale, &ann, &[]).await);
    scene.sandbox.redis().proxy().expect("a proxy").stall().await;
    let reading = tokio::spawn(async move { http.get(&format!("/api/v1/orders/{bought}"), &ann).await });

    let direct = &scene.observer.settings;
    let flow = [Running::start(direct, Roles::RELAY).await, Running::start(direct, Roles::CONSUME).await];
    let observer = &scene.observer.service;
    wait_until("the order has its row", PATIENCE, async || {
        observer.ledger.order(bought).await.is_ok_and(|order| order.is_some())
    })
    .await;
    observer.ledger.close(bought, OrderStatus::Cancelled).await.expect("a close");
    observer.stock.release(sale, &user("ann"), bought).await.expect("a release");
    assert!(!reading.is_finished(), "the node waits for Redis");
    scene.sandbox.redis().proxy().expect("a proxy").heal().await;
    assert_eq!(status(&reading.await.expect("an answer")), "cancelled");
    for part in flow {
        part.stop().await;
    }
    scene.node.stop().await;
}

#[tokio::test]
async fn where_redis_cannot_prove_that_it_would_know_an_order_it_is_unavailable_and_never_not_found() {
    let settings = settings("cold").await;
    let node = Running::start(&settings, Roles::SERVE).await;
    let sale = node.open_sale_of(NewSale { total: 5, ..new_sale() }).await.id;
    let mut http = Connection::open(node.address()).await;
    let [ann, bob, cid, dan] = ["ann", "bob", "cid", "dan"].map(|name| node.token(name));
    let queued = order_id(&http.buy(sale, &ann, &[]).await);
    // Rows without a claim: one that is open, and one that was closed.
    let row = |name: &str, n| order_message(OrderId::mint(sale, 1, n), name);
    let (live, closed) = (row("cid", 1), row("dan", 2));
    node.service.ledger.record(&[live.clone(), closed.clone()]).await.expect("rows");
    node.service.ledger.close(closed.id, OrderStatus::Expired).await.expect("a close");
    let (mine, nobodys) =
        (format!("/api/v1/sales/{sale}/order"), format!("/api/v1/orders/{}", OrderId::mint(sale, 1, 3)));

    let mut redis = redis(&settings.redis).await;
    let hash = keys::sale(sale);
    let mut ask = async |cold: bool, what: &str| {
        for path in [&mine, &nobodys] {
            let answer = http.get(path, &bob).await;
            let expected = if cold { (503, "unavailable") } else { (404, "order_not_found") };
            assert_eq!((answer.status, answer.code().as_str()), expected, "{what}: {path}");
            assert_eq!(answer.header("retry-after"), cold.then_some("1"), "{what}: {path}");
        }
        let by_id = async |http: &mut Connection, id, token| http.get(&format!("/api/v1/orders/{id}"), token).await;
        assert_eq!(status(&by_id(&mut http, live.id, &cid).await), "created", "{what}");
        assert_eq!(status(&http.get(&mine, &cid).await), "created", "{what}");
        assert_eq!(status(&by_id(&mut http, closed.id, &dan).await), "expired", "{what}");
        let latest = http.get(&mine, &dan).await;
        // Behind a closed order another may be on its way that only Redis knew of.
        assert_eq!(latest.status, if cold { 503 } else { 200 }, "{what}: {}", latest.text);
        by_id(&mut http, queued, &ann).await
    };

    assert_eq!(status(&ask(false, "warm").await), "queued");
    for (field, cold, warm) in [("frozen", "1", "0"), ("generation", "9", "1")] {
        let () = redis.hset(&hash, field, cold).await.expect("a hash");
        assert_eq!(status(&ask(true, field).await), "queued", "the claim is a fact, whatever the sale's state");
        let () = redis.hset(&hash, field, warm).await.expect("a hash");
    }
    assert_eq!(status(&ask(false, "warm again").await), "queued");
    let () = redis.del(keys::all(sale).to_vec()).await.expect("keys");
    let lost = ask(true, "a Redis that has lost its memory").await;
    assert_eq!((lost.status, lost.code().as_str()), (503, "unavailable"), "on its way in the outbox, for all we know");
    node.stop().await;
}

/// What the store that is away would have had to say is unavailable, never guessed from the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_one_store_is_away_the_other_answers_only_for_what_it_knows() {
    let scene = Cuttable::start("one_store_away", own_redis().postgres(), 300).await;
    let sale = scene.open_sale(2).await;
    let direct = &scene.observer.settings;
    let mut http = Connection::open(scene.node.address()).await;
    let (ann, bob) = (scene.node.token("ann"), scene.node.token("bob"));
    let created = format!("/api/v1/orders/{}", order_id(&http.buy(sale, &ann, &[]).await));
    let flow = [Running::start(direct, Roles::RELAY).await, Running::start(direct, Roles::CONSUME).await];
    scene.observer.settle(sale).await;
    for part in flow {
        part.stop().await;
    }
    let queued = format!("/api/v1/orders/{}", order_id(&http.buy(sale, &bob, &[]).await));

    let redis = scene.sandbox.redis().proxy().expect("a proxy");
    redis.cut().await;
    assert_eq!(status(&http.get(&created, &ann).await), "created");
    assert_eq!(http.get(&queued, &bob).await.status, 503);
    redis.heal().await;
    wait_until("Redis is reached again", PATIENCE, async || {
        let answer = Connection::open(scene.node.address()).await.get(&queued, &bob).await;
        answer.status == 200
    })
    .await;

    scene.sandbox.postgres().stop().await.expect("a stop");
    assert_eq!(http.get(&queued, &bob).await.status, 503, "a claim does not say what became of its order since");
    let nobodys = format!("/api/v1/orders/{}", OrderId::mint(sale, 1, 3));
    assert_eq!(http.get(&nobodys, &bob).await.status, 503);
    scene.sandbox.postgres().restart().await.expect("a restart");
    scene.node.stop().await;
}

/// "Sold out" would be a lie to a buyer who holds the last unit and was not told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_buyer_whose_answer_was_lost_passes_the_flag_and_hears_of_the_order() {
    let scene = Cuttable::start("lost_answer", own_redis(), 500).await;
    let sale = scene.open_sale(2).await;
    let mut http = Connection::open(scene.node.address()).await;
    let ann = scene.node.token("ann");
    // From here on Redis knows the script: what is lost is the answer, not the purchase.
    assert_eq!(http.buy(sale, &scene.node.token("zoe"), &[]).await.status, 202);
    let redis = scene.sandbox.redis().proxy().expect("a proxy");
    redis.drop_responses().await;
    let lost = http.buy(sale, &ann, &[]).await;
    assert_eq!((lost.status, lost.code().as_str()), (503, "unavailable"), "a timeout is no refusal");
    let tried = order_id(&lost);
    redis.heal().await;

    let http = tokio::sync::Mutex::new(http);
    let bob = scene.node.token("bob");
    wait_until("the flag is up", PATIENCE, async || http.lock().await.buy(sale, &bob, &[]).await.code() == "sold_out")
        .await;
    let mut http = http.into_inner();
    let again = http.buy(sale, &ann, &[]).await;
    assert_eq!((again.status, again.code().as_str()), (409, "already_purchased"));
    assert_eq!(order_id(&again), tried);
    assert_eq!(status(&http.get(&format!("/api/v1/orders/{tried}"), &ann).await), "queued");
    scene.node.stop().await;
}

#[tokio::test]
async fn the_events_of_an_order_tell_each_state_until_the_final_one_and_end() {
    let settings = settings("events").await;
    let node = Running::start(&settings, Roles::SERVE).await;
    let sale = node.open_sale(1).await.id;
    let mut http = Connection::open(node.address()).await;
    let ann = node.token("ann");
    let bought = order_id(&http.buy(sale, &ann, &[]).await);
    let path = format!("/api/v1/orders/{bought}/events");
    let stranger = http.get(&path, &node.token("bob")).await;
    assert_eq!((stranger.status, stranger.code().as_str()), (404, "order_not_found"));

    let mut events = http.events(&path, &ann).await;
    let mut next = async || {
        let next = tokio::time::timeout(PATIENCE, events.next()).await.expect("an event or the end");
        next.map(|event| {
            assert_eq!(event["order_id"], bought.to_string());
            event["status"].as_str().expect("a status").to_owned()
        })
    };
    assert_eq!(next().await.as_deref(), Some("queued"));
    let flow = [Running::start(&settings, Roles::RELAY).await, Running::start(&settings, Roles::CONSUME).await];
    assert_eq!(next().await.as_deref(), Some("created"));
    node.service.ledger.close(bought, OrderStatus::Expired).await.expect("a close");
    assert_eq!(next().await.as_deref(), Some("expired"));
    assert_eq!(next().await, None, "nothing follows a final state");
    for part in flow {
        part.stop().await;
    }
    node.stop().await;
}
