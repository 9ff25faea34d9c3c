//! What becomes of an order after it was accepted: paid, cancelled, expired, by its buyer or by a provider.

use std::time::{Duration, Instant};

use crate::support::fixtures::new_sale;
use crate::support::http::{Answer, Connection};
use crate::support::servers::{own_redis, with_own};
use crate::support::service::{PATIENCE, Running, prepared, settings};
use crate::support::wait_until;
use seckill::app::Roles;
use seckill::catalogue::NewSale;
use seckill::closing::Closing;
use seckill::config::Settings;
use seckill::domain::{OrderId, OrderStatus, SaleId};
use seckill::payment::Signature;
use seckill::stock::script::ReleaseCode;
use serde_json::{Value, json};

const CALLBACK_SECRET: &str = "a callback secret of the tests, long enough";

/// A running service and one connection to it.
struct Shop {
    running: Running,
    http: Connection,
}

impl Shop {
    async fn open(name: &str) -> Self {
        Self::with(&callbacks(settings(&format!("life_{name}")).await), Roles::ALL).await
    }

    async fn with(settings: &Settings, roles: Roles) -> Self {
        let running = Running::start(settings, roles).await;
        let http = Connection::open(running.address()).await;
        Self { running, http }
    }

    async fn buy(&mut self, sale: SaleId, user: &str, headers: &[(&str, &str)]) -> Answer {
        self.http.buy(sale, &self.running.token(user), headers).await
    }

    /// Buys, and waits for the row.
    async fn order(&mut self, sale: SaleId, user: &str) -> String {
        let bought = self.buy(sale, user, &[]).await;
        assert_eq!(bought.status, 202, "{}", bought.text);
        let order = id(&bought);
        self.until(user, &order, "created").await;
        order
    }

    async fn until(&mut self, user: &str, order: &str, status: &str) {
        let (address, token) = (self.running.address(), self.running.token(user));
        let path = format!("/api/v1/orders/{order}");
        wait_until(status, PATIENCE, async || {
            Connection::open(address).await.get(&path, &token).await.json()["status"] == status
        })
        .await;
    }

    async fn post(&mut self, user: &str, order: &str, verb: &str) -> Answer {
        post(&mut self.http, &self.running.token(user), order, verb, "").await
    }

    async fn status(&mut self, user: &str, order: &str) -> String {
        let read = self.http.get(&format!("/api/v1/orders/{order}"), &self.running.token(user)).await;
        read.json()["status"].as_str().unwrap_or_default().to_owned()
    }

    /// Units left in Redis and in the ledger.
    async fn left(&self, sale: SaleId) -> (i64, i64) {
        let redis = self.running.service.stock.view(sale).await.expect("Redis answers").expect("a warm sale");
        let ledger = self.running.service.ledger.view(sale).await.expect("a view").expect("a sale");
        (redis.remaining, ledger.available)
    }

    async fn callback(&mut self, payment: &Value) -> Answer {
        let body = payment.to_string();
        self.signed(&body, &sign(body.as_bytes())).await
    }

    async fn signed(&mut self, body: &str, signature: &str) -> Answer {
        let headers = [("content-type", "application/json"), ("x-payment-signature", signature)];
        self.http.send("POST", "/callbacks/v1/payments", &headers, body).await
    }

    async fn end(self, sale: SaleId) {
        self.running.settle(sale).await;
        self.running.stop().await;
    }
}

fn callbacks(mut settings: Settings) -> Settings {
    settings.payment.callback_secret = CALLBACK_SECRET.into();
    settings
}

fn sign(body: &[u8]) -> String {
    let signature = Signature::new(&CALLBACK_SECRET.into()).expect("a usable secret").expect("a secret");
    signature.sign(body).expect("a signature")
}

async fn post(http: &mut Connection, token: &str, order: &str, verb: &str, body: &str) -> Answer {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    http.send("POST", &format!("/api/v1/orders/{order}/{verb}"), &headers, body).await
}

fn id(answer: &Answer) -> String {
    answer.json()["order_id"].as_str().expect("an order id").to_owned()
}

fn payment(id: &str, order: &str, cents: i64) -> Value {
    json!({"payment_id": id, "order_id": order, "amount_cents": cents, "paid_at": "2026-01-01T00:00:00Z", "fee": 3})
}

fn assert_illegal(answer: &Answer, status: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (409, "illegal_transition"), "{}", answer.text);
    assert_eq!(answer.json()["order_status"], status, "{}", answer.text);
}

#[tokio::test]
async fn a_paid_order_stays_paid_and_a_repeat_changes_nothing() {
    let mut shop = Shop::open("pay").await;
    let sale = shop.running.open_sale(2).await.id;
    let order = shop.order(sale, "ann").await;
    let paid = shop.post("ann", &order, "pay").await;
    assert_eq!((paid.status, paid.json()["status"].as_str()), (200, Some("paid")), "{}", paid.text);
    assert_eq!(shop.post("ann", &order, "pay").await.text, paid.text);
    assert_illegal(&shop.post("ann", &order, "cancel").await, "paid");
    for verb in ["pay", "cancel"] {
        let stranger = shop.post("bob", &order, verb).await;
        assert_eq!((stranger.status, stranger.code().as_str()), (404, "order_not_found"));
        let unknown = shop.post("ann", "00000001-0000-8000-8400-000000000001", verb).await;
        assert_eq!((unknown.status, unknown.code().as_str()), (404, "order_not_found"), "{}", unknown.text);
    }
    shop.end(sale).await;
}

/// restock is not idempotent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_order_cancelled_ten_times_in_parallel_restocks_once() {
    let mut shop = Shop::open("cancel_ten").await;
    let sale = shop.running.open_sale(5).await.id;
    let order = shop.order(sale, "ann").await;
    assert_eq!(shop.left(sale).await, (4, 4));
    let (address, token) = (shop.running.address(), shop.running.token("ann"));
    let cancels = (0..10).map(|_| async {
        let mut http = Connection::open(address).await;
        post(&mut http, &token, &order, "cancel", "").await
    });
    for answer in futures_util::future::join_all(cancels).await {
        assert_eq!((answer.status, answer.json()["status"].as_str()), (200, Some("cancelled")), "{}", answer.text);
    }
    assert_eq!(shop.left(sale).await, (5, 5));
    assert_illegal(&shop.post("ann", &order, "pay").await, "cancelled");
    shop.end(sale).await;
}

/// restock addressed by user, so that a late job frees the new purchase (ABA).
/// restock does not clear the user's quota.
#[tokio::test]
async fn who_cancels_may_buy_again_and_a_late_release_of_the_first_order_leaves_the_second_alone() {
    let mut shop = Shop::open("rebuy").await;
    let sale = shop.running.open_sale(3).await.id;
    let first = shop.order(sale, "ann").await;
    let again = shop.buy(sale, "ann", &[]).await;
    assert_eq!((again.status, again.code().as_str()), (409, "already_purchased"), "the limit is one order");
    assert_eq!(shop.post("ann", &first, "cancel").await.status, 200);
    let second = shop.order(sale, "ann").await;
    assert_ne!(first, second);

    // The cancel once more, and the bare release of a job that comes late.
    assert_eq!(shop.post("ann", &first, "cancel").await.status, 200);
    let (user, late) = ("ann".parse().expect("a user id"), first.parse::<OrderId>().expect("an order id"));
    let released = shop.running.service.stock.release(sale, &user, late).await.expect("Redis answers");
    assert_eq!(released, ReleaseCode::NotHeld);
    assert_eq!((shop.status("ann", &second).await.as_str(), shop.left(sale).await), ("created", (2, 2)));
    let third = shop.buy(sale, "ann", &[]).await;
    assert_eq!((third.status, id(&third)), (409, second));
    shop.end(sale).await;
}

/// the replay of an idempotency key after the order was closed deducts again.
#[tokio::test]
async fn a_key_replayed_after_the_cancel_gets_the_cancelled_order_back_and_takes_nothing() {
    let mut shop = Shop::open("replay_closed").await;
    let sale = shop.running.open_sale(3).await.id;
    let key = [("idempotency-key", "checkout-1")];
    let bought = shop.buy(sale, "ann", &key).await;
    let order = id(&bought);
    shop.until("ann", &order, "created").await;
    assert_eq!(shop.post("ann", &order, "cancel").await.status, 200);
    let replayed = shop.buy(sale, "ann", &key).await;
    assert_eq!((replayed.status, id(&replayed)), (202, order.clone()));
    assert_eq!((shop.status("ann", &order).await.as_str(), shop.left(sale).await), ("cancelled", (3, 3)));
    shop.end(sale).await;
}

/// create and cancel out of order. A cancel cannot overtake its order: it is refused until there is
/// something to cancel, and then gives the unit back once.
#[tokio::test]
async fn a_cancel_that_comes_before_the_row_is_refused_and_works_once_there_is_one() {
    let settings = callbacks(settings("cancel_queued").await);
    let mut shop = Shop::with(&settings, Roles::SERVE).await;
    let sale = shop.running.open_sale(1).await.id;
    let order = id(&shop.buy(sale, "ann", &[]).await);
    for verb in ["cancel", "pay"] {
        let early = shop.post("ann", &order, verb).await;
        assert_illegal(&early, "queued");
        assert_eq!(early.header("retry-after"), Some("1"));
    }
    assert_eq!(shop.left(sale).await, (0, 1), "the claim stands, and no row was made");
    // A stranger learns nothing of it.
    assert_eq!(shop.post("bob", &order, "cancel").await.status, 404);

    let behind = Running::start(&settings, Roles::ALL).await;
    shop.until("ann", &order, "created").await;
    assert_eq!(shop.post("ann", &order, "cancel").await.status, 200);
    assert_eq!(shop.left(sale).await, (1, 1));
    behind.stop().await;
    shop.running.stop().await;
}

/// a "goods over" flag tells queued winners that they have failed.
/// a status that is set before or after the fact.
#[tokio::test]
async fn a_queued_winner_of_a_sold_out_sale_is_never_told_that_he_failed_and_ends_in_a_final_state() {
    let settings = callbacks(settings("queued_winner").await);
    let mut shop = Shop::with(&settings, Roles::SERVE).await;
    let sale = shop.running.open_sale(1).await.id;
    let order = id(&shop.buy(sale, "ann", &[]).await);
    let loser = shop.buy(sale, "bob", &[]).await;
    assert_eq!((loser.status, loser.code().as_str()), (409, "sold_out"));
    // Nobody writes rows: the winner waits, and the loser has no order that could be stuck anywhere.
    assert_eq!(shop.status("ann", &order).await, "queued");
    let token = shop.running.token("bob");
    let none = shop.http.get(&format!("/api/v1/sales/{sale}/order"), &token).await;
    assert_eq!((none.status, none.code().as_str()), (404, "order_not_found"));

    // The row comes before anything else is written for this order: there is no later write that could overtake it.
    let behind = Running::start(&settings, Roles::ALL).await;
    shop.until("ann", &order, "created").await;
    assert_eq!(shop.post("ann", &order, "pay").await.status, 200);
    assert_eq!(shop.status("ann", &order).await, "paid");
    behind.stop().await;
    shop.running.stop().await;
}

#[tokio::test]
async fn the_events_of_an_order_end_with_its_final_state() {
    let mut shop = Shop::open("events").await;
    let sale = shop.running.open_sale(1).await.id;
    let order = shop.order(sale, "ann").await;
    let (address, token) = (shop.running.address(), shop.running.token("ann"));
    let path = format!("/api/v1/orders/{order}/events");
    // Reads until the node closes the stream.
    let watching = tokio::spawn(async move { Connection::open(address).await.get(&path, &token).await.text });
    assert_eq!(shop.post("ann", &order, "cancel").await.status, 200);
    let events = tokio::time::timeout(PATIENCE, watching).await.expect("the stream ends").expect("no panic");
    let last = events.lines().rfind(|line| line.starts_with("data: ")).expect("an event");
    let last: Value = serde_json::from_str(&last["data: ".len()..]).expect("JSON");
    assert_eq!((last["order_id"].as_str(), last["status"].as_str()), (Some(order.as_str()), Some("cancelled")));
    shop.end(sale).await;
}

/// the local sold-out flag is never reset, or other nodes keep it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_cancelled_on_one_node_is_sold_by_both_within_a_second() {
    let settings = callbacks(settings("two_nodes").await);
    let mut shop = Shop::with(&settings, Roles::ALL).await;
    let other = Running::start(&settings, Roles::SERVE).await;
    let sale = shop.running.open_sale(2).await.id;
    other.service.catalogue.refresh().await.expect("PostgreSQL answers");
    let mut there = Connection::open(other.address()).await;
    let orders = [shop.order(sale, "ann").await, shop.order(sale, "bob").await];
    for node in [&mut shop.http, &mut there] {
        let loser = node.buy(sale, &other.token("cid"), &[]).await;
        assert_eq!((loser.status, loser.code().as_str()), (409, "sold_out"));
    }
    for user in ["ann", "bob"] {
        let order = &orders[usize::from(user == "bob")];
        assert_eq!(shop.post(user, order, "cancel").await.status, 200);
        let freed = Instant::now();
        // Once on each node: the first unit is bought here, the second there.
        let (node, buyer) = if user == "ann" { (&mut shop.http, "dan") } else { (&mut there, "eve") };
        let token = other.token(buyer);
        while node.buy(sale, &token, &[]).await.status != 202 {
            assert!(freed.elapsed() < Duration::from_secs(1), "the flag stays up after the unit came back");
        }
    }
    other.stop().await;
    shop.end(sale).await;
}

/// A Redis that is away does not turn the ledger's yes into an error, and asking again completes the release.
#[tokio::test]
async fn a_cancel_while_redis_is_away_is_a_yes_and_its_repeat_frees_the_unit() {
    let (sandbox, settings) = with_own("away", own_redis()).await;
    let direct = prepared(settings).await;
    let mut proxied = direct.clone();
    proxied.redis.url = sandbox.redis().proxied_url().expect("a proxy").into();
    let mut shop = Shop::with(&direct, Roles::ALL).await;
    let cut_off = Running::start(&proxied, Roles::SERVE).await;
    let sale = shop.running.open_sale(1).await.id;
    let order = shop.order(sale, "ann").await;

    let proxy = sandbox.redis().proxy().expect("a proxy");
    proxy.cut().await;
    let mut http = Connection::open(cut_off.address()).await;
    let cancelled = post(&mut http, &shop.running.token("ann"), &order, "cancel", "").await;
    assert_eq!((cancelled.status, cancelled.json()["status"].as_str()), (200, Some("cancelled")), "{}", cancelled.text);
    assert_eq!(shop.left(sale).await, (0, 1), "Redis does not know yet");
    proxy.heal().await;
    assert_eq!(shop.post("ann", &order, "cancel").await.status, 200);
    assert_eq!(shop.left(sale).await, (1, 1));
    cut_off.stop().await;
    shop.end(sale).await;
}

/// a price or an amount that the client sent is trusted.
#[tokio::test]
async fn an_order_is_paid_with_its_own_amount_and_no_other() {
    let mut shop = Shop::open("amount").await;
    let sale = shop.running.open_sale_of(NewSale { total: 1, ..new_sale() }).await.id;
    let order = shop.order(sale, "ann").await;
    let token = shop.running.token("ann");
    let said = post(&mut shop.http, &token, &order, "pay", r#"{"amount_cents":1}"#).await;
    assert_eq!((said.status, said.code().as_str()), (400, "invalid_request"));
    for cents in [1, 9_899, 9_901, 0, -9_900] {
        let wrong = shop.callback(&payment("p-1", &order, cents)).await;
        assert_eq!((wrong.status, wrong.code().as_str()), (422, "amount_mismatch"), "{}", wrong.text);
        assert_eq!(wrong.json()["amount_cents"], 9_900);
    }
    assert_eq!(shop.status("ann", &order).await, "created");
    let right = shop.callback(&payment("p-1", &order, 9_900)).await;
    assert_eq!(right.json(), json!({"result": "kept", "order_id": order, "status": "paid"}), "{}", right.text);
    shop.end(sale).await;
}

#[tokio::test]
async fn a_callback_that_is_forged_moves_nothing_and_one_that_is_replayed_moves_it_once() {
    let mut shop = Shop::open("callbacks").await;
    let sale = shop.running.open_sale(2).await.id;
    let order = shop.order(sale, "ann").await;
    let body = payment("p-1", &order, 9_900).to_string();
    let cheaper = payment("p-1", &order, 1).to_string();
    let genuine = sign(body.as_bytes());
    let other = Signature::new(&"another secret of at least 32 bytes".into()).expect("usable").expect("a secret");
    let forged = other.sign(body.as_bytes()).expect("a signature");
    let tricks = [(&body, ""), (&body, forged.as_str()), (&cheaper, &genuine), (&body, &genuine[1..])];
    for (body, signature) in tricks {
        let refused = shop.signed(body, signature).await;
        assert_eq!((refused.status, refused.code().as_str()), (401, "unauthorized"), "{}", refused.text);
    }
    for (body, status) in [("{}", 400), ("", 400), ("[]", 400), ("{\"order_id\":\"x\"}", 400)] {
        assert_eq!(shop.signed(body, &sign(body.as_bytes())).await.status, status, "{body}");
    }
    let nowhere = shop.callback(&payment("p-1", "00000001-0000-8000-8400-000000000001", 9_900)).await;
    assert_eq!((nowhere.status, nowhere.code().as_str()), (404, "order_not_found"));
    assert_eq!(shop.status("ann", &order).await, "created");

    let kept = json!({"result": "kept", "order_id": order, "status": "paid"});
    for _ in 0..3 {
        let answer = shop.signed(&body, &genuine).await;
        assert_eq!((answer.status, answer.json()), (200, kept.clone()), "{}", answer.text);
    }
    // A second payment of an order that is paid goes back; so does one of an order that was closed meanwhile.
    let refund = shop.callback(&payment("p-2", &order, 9_900)).await;
    assert_eq!(refund.json(), json!({"result": "refund", "order_id": order, "status": "paid"}));
    let closed = shop.order(sale, "bob").await;
    assert_eq!(shop.post("bob", &closed, "cancel").await.status, 200);
    for _ in 0..2 {
        let refund = shop.callback(&payment("p-3", &closed, 9_900)).await;
        assert_eq!(refund.json(), json!({"result": "refund", "order_id": closed, "status": "cancelled"}));
    }
    shop.end(sale).await;
}

#[tokio::test]
async fn without_a_secret_there_is_no_callback_and_a_short_one_stops_the_start() {
    let mut plain = settings("no_secret").await;
    let mut shop = Shop::with(&plain, Roles::SERVE).await;
    let body = payment("p-1", "00000001-0000-8000-8400-000000000001", 1).to_string();
    let answer = shop.signed(&body, &sign(body.as_bytes())).await;
    assert_eq!((answer.status, answer.code().as_str()), (404, "not_found"));
    shop.running.stop().await;
    plain.payment.callback_secret = "short".into();
    let stop = seckill::shutdown::Stop::new();
    let started = seckill::app::Service::start(&plain, Roles::SERVE, &stop).await;
    assert!(started.err().expect("a refusal").to_string().contains("payment.callback_secret"));
}

/// a payment's callback meets the closing of an order that has timed out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payment_and_expiry_fired_together_end_in_paid_and_kept_or_in_closed_and_refunded() {
    const ROUNDS: u32 = 100;
    let mut shop = Shop::open("pay_expire").await;
    let sale = shop.running.open_sale(ROUNDS).await.id;
    let service = &shop.running.service;
    let closing = Closing::new(service.ledger.clone(), service.stock.clone());
    let (mut kept, mut refunded) = (0, 0);
    for round in 0..ROUNDS {
        let user = format!("u{round}");
        let order = shop.order(sale, &user).await;
        let id: OrderId = order.parse().expect("an order id");
        let payment = payment(&format!("p-{round}"), &order, 9_900);
        let (answer, expired) = tokio::join!(shop.callback(&payment), closing.close(id, OrderStatus::Expired));
        expired.expect("the ledger answers");
        let result = answer.json()["result"].as_str().expect("a result").to_owned();
        let status = shop.status(&user, &order).await;
        match (result.as_str(), status.as_str()) {
            ("kept", "paid") => kept += 1,
            ("refund", "expired") => refunded += 1,
            both => panic!("{both:?}"),
        }
    }
    let left = i64::from(ROUNDS) - kept;
    assert_eq!(kept + refunded, i64::from(ROUNDS));
    assert_eq!(shop.left(sale).await, (left, left), "every closed order is restocked, no paid one is");
    shop.end(sale).await;
}
