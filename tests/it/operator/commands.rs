//! Operators: by HTTP, by the command line, and again after Redis has missed a command.

use std::path::Path;

use crate::support::fixtures::{new_sale, redis};
use crate::support::http::{Answer, Connection};
use crate::support::servers::{own_redis, with_own};
use crate::support::service::{PATIENCE, Running, prepared, settings};
use crate::support::wait_until;
use drive::environment::{SandboxSettings, env_for};
use redis::AsyncCommands;
use sandbox::Sandbox;
use seckill::app::Roles;
use seckill::catalogue::SaleChange;
use seckill::config::Settings;
use seckill::domain::{OrderId, Purchase, SaleId, SaleState};
use seckill::operator::Error;
use seckill::promises::{CheckResult, RedisView};
use seckill::stock::keys;

const BINARY: &str = env!("CARGO_BIN_EXE_seckill");

fn to(state: SaleState) -> SaleChange {
    SaleChange { state: Some(state), ..SaleChange::default() }
}

async fn redis_view(running: &Running, sale: SaleId) -> RedisView {
    running.service.stock.view(sale).await.expect("a view").expect("a sale in Redis")
}

#[tokio::test]
async fn an_operator_runs_a_sale_by_http_from_its_draft_to_its_end() {
    let settings = settings("by_http").await;
    let node = Running::start(&settings, Roles::ALL).await;
    let operator = format!("Bearer {}", node.operator_token());
    let mut http = Connection::open(node.address()).await;
    let mut send = async |method: &str, path: &str, key: Option<&str>, body: &str| -> Answer {
        let mut headers = vec![("authorization", operator.as_str()), ("content-type", "application/json")];
        headers.extend(key.map(|key| ("idempotency-key", key)));
        http.send(method, path, &headers, body).await
    };
    let mut buyers = Connection::open(node.address()).await;

    let body = r#"{"name":"lamp","price_cents":500,"stock":1,"starts_at":"2020-01-01T00:00:00Z","ends_at":"2099-01-01T00:00:00Z"}"#;
    let created = send("POST", "/admin/v1/sales", None, body).await;
    assert_eq!(created.status, 201, "{}", created.text);
    let sale: SaleId = created.json()["id"].as_str().expect("an id").parse().expect("a sale id");
    assert_eq!(created.header("location"), None, "a draft is nowhere to be read");
    let path = format!("/admin/v1/sales/{sale}");
    let draft = buyers.buy(sale, &node.token("ann"), &[]).await;
    assert_eq!((draft.status, draft.code().as_str()), (404, "sale_not_found"), "a draft does not exist for buyers");

    for _ in 0..2 {
        let opened = send("PATCH", &path, None, r#"{"state":"open"}"#).await;
        assert_eq!((opened.status, opened.json()["state"].as_str()), (200, Some("open")), "{}", opened.text);
    }
    assert_eq!(buyers.buy(sale, &node.token("ann"), &[]).await.status, 202);
    assert_eq!(buyers.buy(sale, &node.token("bob"), &[]).await.code(), "sold_out");

    let stock = format!("{path}/stock");
    for _ in 0..2 {
        let added = send("POST", &stock, Some("truck-1"), r#"{"add":1}"#).await;
        assert_eq!((added.status, added.json()["total"].as_u64()), (200, Some(2)), "{}", added.text);
    }
    assert_eq!(send("POST", &stock, Some("truck-1"), r#"{"add":2}"#).await.code(), "idempotency_key_reused");
    assert_eq!(send("POST", &stock, None, r#"{"add":1}"#).await.code(), "invalid_request");
    let buyers = tokio::sync::Mutex::new(buyers);
    let bob = node.token("bob");
    wait_until("the added unit is sold", PATIENCE, async || {
        buyers.lock().await.buy(sale, &bob, &[]).await.status == 202
    })
    .await;
    let buyers = buyers.into_inner();

    // More units, so that the state answers and not the flag.
    assert_eq!(send("POST", &stock, Some("truck-2"), r#"{"add":5}"#).await.status, 200);
    let cid = node.token("cid");
    let buyers = tokio::sync::Mutex::new(buyers);
    for (state, code) in [("paused", "sale_paused"), ("ended", "sale_ended")] {
        let told = send("PATCH", &path, None, &format!(r#"{{"state":"{state}"}}"#)).await;
        assert_eq!(told.json()["state"], state, "{}", told.text);
        wait_until(code, PATIENCE, async || buyers.lock().await.buy(sale, &cid, &[]).await.code() == code).await;
    }
    let reopened = send("PATCH", &path, None, r#"{"state":"open"}"#).await;
    assert_eq!((reopened.status, reopened.code().as_str()), (409, "illegal_transition"));

    node.settle(sale).await;
    let audit = send("GET", &format!("{path}/audit"), None, "").await;
    let promises = audit.json()["promises"].as_array().expect("promises").clone();
    assert!(promises.iter().any(|promise| promise["name"] == "no_oversell"), "{}", audit.text);
    node.stop().await;
}

#[tokio::test]
async fn a_blocked_user_is_refused_until_unblocked() {
    let settings = settings("blocked").await;
    let node = Running::start(&settings, Roles::SERVE).await;
    let sale = node.open_sale(1).await.id;
    let mut http = Connection::open(node.address()).await;
    let operator = format!("Bearer {}", node.operator_token());
    let headers = [("authorization", operator.as_str()), ("content-type", "application/json")];
    let ann = node.token("ann");
    assert_eq!(http.send("PUT", "/admin/v1/blacklist/ann", &headers, r#"{"reason":"a robot"}"#).await.status, 204);
    let refused = http.buy(sale, &ann, &[]).await;
    assert_eq!((refused.status, refused.code().as_str()), (403, "blocked"));
    assert_eq!(http.send("DELETE", "/admin/v1/blacklist/ann", &headers, "").await.status, 204);
    assert_eq!(http.buy(sale, &ann, &[]).await.status, 202);
    node.stop().await;
}

/// Runs `seckill sale …` to its end; answers with its exit code and what it printed.
async fn cli(sandbox: &Sandbox, settings: &Settings, args: &[&str]) -> (Option<i32>, String) {
    let name = format!("cli-{}", args.join("-"));
    let args: Vec<_> = ["sale"].iter().chain(args).copied().collect();
    let process = sandbox.spawn(&name, Path::new(BINARY), &args, env_for(settings)).expect("a process");
    let ended = process.wait(PATIENCE).await.expect("it ends");
    (ended.code(), std::fs::read_to_string(process.log()).expect("a log"))
}

#[tokio::test]
async fn an_operator_runs_a_sale_by_the_command_line() {
    let sandbox = sandbox::shared().await.expect("the servers start");
    let settings = settings("by_cli").await;
    let node = Running::start(&settings, Roles::ALL).await;
    let run = async |args: &[&str]| {
        let (code, text) = cli(sandbox, &settings, args).await;
        assert_eq!(code, Some(0), "{args:?}: {text}");
        text
    };
    let created = run(&["create", "lamp", "--stock", "1"]).await;
    let id = created.split_whitespace().next().expect("an id").to_owned();
    let sale: SaleId = id.parse().expect("a sale id");
    run(&["open", &id]).await;
    let mut http = Connection::open(node.address()).await;
    wait_until("the node knows the sale", PATIENCE, async || {
        node.service.catalogue.get(sale).is_some_and(|known| known.state == SaleState::Open)
    })
    .await;
    assert_eq!(http.buy(sale, &node.token("ann"), &[]).await.status, 202);
    assert_eq!(http.buy(sale, &node.token("bob"), &[]).await.code(), "sold_out");
    run(&["add-stock", &id, "3", "--operation", "truck"]).await;
    let (code, text) = cli(sandbox, &settings, &["add-stock", &id, "4", "--operation", "truck"]).await;
    assert_ne!(code, Some(0), "another operation under the same name: {text}");
    assert_eq!(redis_view(&node, sale).await.total, 4);
    let http = tokio::sync::Mutex::new(http);
    let bob = node.token("bob");
    wait_until("the added units are sold", PATIENCE, async || {
        http.lock().await.buy(sale, &bob, &[]).await.status == 202
    })
    .await;

    run(&["pause", &id]).await;
    assert!(run(&["list"]).await.contains("paused"));
    let cid = node.token("cid");
    assert_eq!(http.lock().await.buy(sale, &cid, &[]).await.code(), "sale_paused");
    run(&["end", &id]).await;
    assert_eq!(http.lock().await.buy(sale, &cid, &[]).await.code(), "sale_ended");
    assert_ne!(cli(sandbox, &settings, &["open", &id]).await.0, Some(0), "an ended sale stays ended");
    node.settle(sale).await;
    assert!(run(&["audit", &id]).await.contains("no_oversell"));
    node.stop().await;
}

/// It may hide an order: an audit must not take it for a Redis that is away.
#[tokio::test]
async fn an_audit_does_not_pass_over_a_claim_that_it_cannot_read() {
    let settings = settings("unreadable").await;
    let running = Running::start(&settings, Roles::SERVE).await;
    let sale = running.open_sale(1).await.id;
    let mut redis = redis(&settings.redis).await;
    let () = redis.hset(keys::claims(sale), "zoe", "one kettle").await.expect("a hash");
    let audited = running.service.operator.audit(sale).await;
    assert!(matches!(&audited, Err(Error::Corrupt(what)) if what.contains("zoe")), "{audited:?}");
    let mut http = Connection::open(running.address()).await;
    let answer = http.get(&format!("/admin/v1/sales/{sale}/audit"), &running.operator_token()).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "unavailable"), "{}", answer.text);
    assert!(answer.text.contains("zoe"), "{}", answer.text);
    running.stop().await;
}

/// Ledger first, then Redis: what the second step missed, the repeat of the command makes good, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_redis_missed_is_completed_by_its_repeat() {
    let (sandbox, settings) = with_own("missed", own_redis()).await;
    let direct = prepared(settings).await;
    let mut proxied = sandbox.proxied(&direct);
    proxied.redis.response_timeout_ms = 300;
    let running = Running::observe(&proxied).await;
    let operator = &running.service.operator;
    let sale = running.open_sale(1).await.id;
    let proxy = sandbox.redis().proxy().expect("a proxy");
    let direct = Running::observe(&direct).await;

    proxy.cut().await;
    let missed = operator.add_stock(sale, 5, "truck").await;
    assert!(matches!(missed, Err(Error::NotOnSale(_))), "{missed:?}");
    assert_eq!(redis_view(&direct, sale).await.total, 1);
    let audited = operator.audit(sale).await.expect("an audit of what can be seen");
    let conserved = audited.iter().find(|finding| finding.name == "redis_conserved").expect("every promise");
    assert_eq!(conserved.holds, CheckResult::Unknown, "a silent Redis is no finding");
    let draft = operator.create(new_sale()).await.expect("a draft").id;
    let unopened = operator.change(draft, to(SaleState::Open)).await;
    assert!(matches!(unopened, Err(Error::NotOpened(_))), "the ledger has nothing of it: {unopened:?}");
    let missed = operator.change(sale, to(SaleState::Paused)).await;
    assert!(matches!(missed, Err(Error::NotOnSale(_))), "{missed:?}");
    proxy.heal().await;

    wait_until("Redis is reached again", PATIENCE, async || operator.add_stock(sale, 5, "truck").await.is_ok()).await;
    operator.add_stock(sale, 5, "truck").await.expect("a repeat");
    let view = redis_view(&direct, sale).await;
    assert_eq!((view.total, view.remaining), (6, 6));
    operator.change(sale, to(SaleState::Paused)).await.expect("the repeat");
    let purchase = Purchase {
        order: OrderId::mint(sale, 1, 1),
        user: "ann".parse().expect("a user id"),
        quantity: 1,
        generation: 1,
        request: None,
    };
    let answer = direct.service.stock.purchase(sale, purchase).await;
    assert_eq!(answer.outcome, seckill::domain::Outcome::Refused(seckill::domain::Refusal::Paused));
}
