//! What a node says while it does not know, and how much of itself it gives to one caller.

use std::time::Duration;

use crate::support::http::{Answer, Connection};
use crate::support::service::{PATIENCE, Running, settings};
use crate::support::wait_until;
use seckill::app::Roles;
use seckill::config::Settings;
use seckill::domain::{OrderId, SaleId};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

#[tokio::test]
async fn an_open_sale_never_shows_a_number_of_units_that_nobody_has_told() {
    let settings = settings("unknown_units").await;
    let running = Running::start(&settings, Roles::SERVE).await;
    let mut http = Connection::open(running.address()).await;
    let bearer = format!("Bearer {}", running.operator_token());
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let new = json!({
        "name": "a kettle", "price_cents": 100, "stock": 5,
        "starts_at": "2020-01-01T00:00:00Z", "ends_at": "2999-01-01T00:00:00Z",
    });
    let draft = http.send("POST", "/admin/v1/sales", &headers, &new.to_string()).await;
    assert_eq!((draft.status, &draft.json()["remaining"]), (201, &json!(5)), "{}", draft.text);
    assert_eq!(draft.header("location"), None, "a draft is nowhere to be read");
    let id = draft.json()["id"].as_str().expect("an id").to_owned();

    let open = http.send("PATCH", &format!("/admin/v1/sales/{id}"), &headers, r#"{"state":"open"}"#).await;
    let told = |answer: &Value, all: u32| answer["remaining"].is_null() || answer["remaining"] == all;
    assert!(open.status == 200 && told(&open.json(), 5), "{}", open.text);
    let path = format!("/api/v1/sales/{id}");
    let mut shown = async |all: u32| {
        let start = std::time::Instant::now();
        loop {
            let sale = http.get(&path, "").await.json();
            assert!(told(&sale, all), "{sale}");
            if sale["remaining"] == all {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "nobody finds out");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    shown(5).await;
    running.stop().await;
}

#[tokio::test]
async fn an_order_of_a_sale_that_this_node_has_not_heard_of_is_unavailable_and_not_missing() {
    let settings = settings("not_heard_of").await;
    let running = Running::start(&settings, Roles::SERVE).await;
    let pool = running.service.ledger.pool();
    // While this is held the node cannot read the catalogue.
    let mut deaf = pool.begin().await.expect("a transaction");
    sqlx::query("LOCK TABLE blacklist").execute(&mut *deaf).await.expect("a lock");
    let id: i32 = sqlx::query_scalar(
        "WITH new AS (
             INSERT INTO sales (name, price_cents, max_quantity, starts_at, ends_at, state)
             VALUES ('of another node', 1, 1, now(), now() + interval '1 hour', 'open') RETURNING id
         ), stock AS (
             INSERT INTO stock (sale_id, total, available, redis_total, generation) SELECT id, 5, 5, 5, 1 FROM new
         )
         SELECT id FROM new",
    )
    .fetch_one(pool)
    .await
    .expect("a sale");
    let sale = SaleId::new(id).expect("a sale id");
    let nobodys = SaleId::new(i32::MAX).expect("a sale id");
    let mut http = Connection::open(running.address()).await;
    let ann = running.token("ann");
    let order = |sale| format!("/api/v1/orders/{}", OrderId::mint(sale, 1, 1));
    for path in [order(sale), format!("/api/v1/sales/{sale}/order"), format!("{}/events", order(sale))] {
        let answer = http.get(&path, &ann).await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "unavailable"), "{path}: {}", answer.text);
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    let answer = http.get(&order(nobodys), &ann).await;
    assert_eq!((answer.status, answer.code().as_str()), (404, "order_not_found"), "{}", answer.text);
    let answer = http.get(&format!("/api/v1/sales/{nobodys}/order"), &ann).await;
    assert_eq!((answer.status, answer.code().as_str()), (404, "sale_not_found"), "{}", answer.text);

    deaf.rollback().await.expect("an end");
    wait_until("the node hears of the sale", PATIENCE, async || running.service.catalogue.get(sale).is_some()).await;
    running.stop().await;
}

/// Lets nobody into the database of these settings, or everybody again.
async fn doors(settings: &Settings, open: bool) {
    let (server, database) = settings.postgres.url.expose_secret().rsplit_once('/').expect("a URL");
    let admin = sqlx::PgPool::connect(&format!("{server}/postgres")).await.expect("PostgreSQL answers");
    let sql = format!(
        "ALTER DATABASE \"{database}\" ALLOW_CONNECTIONS {open};
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}' AND NOT {open};"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&admin).await.expect("PostgreSQL answers");
}

/// A node that sold its one unit to ann: her connection, her token, and what she was answered.
async fn sold_to_ann(settings: &Settings) -> (Running, Connection, String, Answer) {
    let running = Running::start(settings, Roles::SERVE).await;
    let sale = running.open_sale(1).await.id;
    let mut http = Connection::open(running.address()).await;
    let ann = running.token("ann");
    let bought = http.buy(sale, &ann, &[]).await;
    (running, http, ann, bought)
}

/// Its claim says that an order was accepted; what became of it since, only its row says.
#[tokio::test]
async fn an_order_whose_row_cannot_be_read_is_unavailable_and_not_queued() {
    let settings = settings("no_row").await;
    let (running, mut http, ann, bought) = sold_to_ann(&settings).await;
    let order = bought.header("location").expect("an address").to_owned();
    doors(&settings, false).await;
    let own = format!("/api/v1/sales/{}/order", bought.json()["sale_id"].as_str().expect("a sale id"));
    for path in [order.clone(), own] {
        let answer = http.get(&path, &ann).await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "unavailable"), "{path}: {}", answer.text);
    }
    doors(&settings, true).await;
    let answer = http.get(&order, &ann).await;
    assert_eq!((answer.status, &answer.json()["status"]), (200, &json!("queued")), "{}", answer.text);
    running.stop().await;
}

#[tokio::test]
async fn a_node_has_few_streams_of_events_and_none_for_ever() {
    let mut settings = settings("streams").await;
    settings.http.max_event_streams = 1;
    settings.http.event_stream_s = 2;
    let (running, mut http, ann, bought) = sold_to_ann(&settings).await;
    let path = format!("/api/v1/orders/{}/events", bought.json()["order_id"].as_str().expect("an order id"));

    let mut events = Connection::open(running.address()).await.events(&path, &ann).await;
    let first = tokio::time::timeout(PATIENCE, events.next()).await.expect("an event");
    assert_eq!(first.expect("an event")["status"], "queued");
    let second = http.get(&path, &ann).await;
    assert_eq!((second.status, second.code().as_str()), (503, "unavailable"), "{}", second.text);
    let end = tokio::time::timeout(PATIENCE, events.next()).await.expect("an end");
    assert_eq!(end, None, "the order is not final; the stream's time is over");
    let http = tokio::sync::Mutex::new(http);
    wait_until("its place is free again", PATIENCE, async || http.lock().await.get(&path, &ann).await.status == 200)
        .await;
    running.stop().await;
}

#[tokio::test]
async fn a_stream_of_events_ends_when_the_node_stops_even_while_the_ledger_is_away() {
    let settings = settings("stream_stop").await;
    let (running, _http, ann, bought) = sold_to_ann(&settings).await;
    let path = format!("/api/v1/orders/{}/events", bought.json()["order_id"].as_str().expect("an order id"));
    let mut events = Connection::open(running.address()).await.events(&path, &ann).await;
    assert!(tokio::time::timeout(PATIENCE, events.next()).await.expect("an event").is_some());
    doors(&settings, false).await;
    let patience = Duration::from_secs(settings.http.shutdown_timeout_s);
    let stopping = tokio::spawn(running.stop());
    let end = tokio::time::timeout(patience, events.next()).await.expect("before the node cuts it off");
    assert_eq!(end, None, "an end, not a broken connection");
    stopping.await.expect("a stop");
    doors(&settings, true).await;
}
