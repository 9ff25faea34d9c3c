//! Operators: by HTTP, by the command line, twice, at once, and after a crash at any line.

mod support;

use std::path::Path;

use seckill::app::{Roles, Service};
use seckill::catalogue::{NewSale, SaleChange};
use seckill::config::Settings;
use seckill::domain::{OrderId, Purchase, Sale, SaleId, SaleState};
use seckill::operator::Error;
use seckill::promises::RedisView;
use seckill::reconcile::opening;
use seckill::sandbox::{Options, Sandbox};
use seckill::shutdown::Stop;
use seckill::stock::script::WarmCode;
use seckill::stock::{Frozen, OnSale, WarmPart};
use sqlx::{Connection as _, PgPool};
use support::http::{Answer, Connection};
use support::service::{PATIENCE, Running, new_sale, prepared, settings};
use support::wait_until;

const BINARY: &str = env!("CARGO_BIN_EXE_seckill");

fn to(state: SaleState) -> SaleChange {
    SaleChange { state: Some(state), ..SaleChange::default() }
}

/// An operator without a node.
async fn observer(settings: &Settings) -> Running {
    let stop = Stop::new();
    let service = Service::start(settings, Roles::OBSERVE, &stop).await.expect("the stores answer");
    Running { settings: settings.clone(), service, stop }
}

async fn redis_view(running: &Running, sale: SaleId) -> RedisView {
    running.service.stock.view(sale).await.expect("a view").expect("a sale in Redis")
}

async fn generation(running: &Running, sale: SaleId) -> i64 {
    running.service.ledger.stock(sale).await.expect("a stock row").expect("a sale").generation
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
    assert_eq!(created.header("location"), Some(format!("/api/v1/sales/{sale}").as_str()));
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
    let process = sandbox.spawn(&name, Path::new(BINARY), &args, settings).expect("a process");
    let ended = process.wait(PATIENCE).await.expect("it ends");
    (ended.code(), std::fs::read_to_string(process.log()).expect("a log"))
}

#[tokio::test]
async fn an_operator_runs_a_sale_by_the_command_line() {
    let sandbox = seckill::sandbox::shared().await.expect("the servers start");
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

/// Openings happen one after the other: the first one opens, the others find nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn six_openings_at_once_are_one() {
    let settings = settings("at_once").await;
    let operators = [observer(&settings).await, observer(&settings).await];
    for _ in 0..5 {
        let sale = operators[0].service.operator.create(NewSale { total: 7, ..new_sale() }).await.expect("a draft").id;
        let openings = (0..6).map(|n| operators[n % 2].service.operator.change(sale, to(SaleState::Open)));
        for opened in futures_util::future::join_all(openings).await {
            assert_eq!(opened.expect("each is told that it is open").state, SaleState::Open);
        }
        assert_eq!(generation(&operators[0], sale).await, 1, "opened once");
        let view = redis_view(&operators[0], sale).await;
        assert_eq!((view.selling, view.generation, view.total, view.remaining), (true, 1, 7, 7));
    }
}

/// Freezes as an opening does, and answers with what it goes on with.
async fn freeze(running: &Running, sale: SaleId) -> (i64, seckill::stock::Home) {
    let token = running.service.ledger.fence_token(&format!("sale:{sale}"), "crashed").await.expect("a token");
    match running.service.stock.freeze(sale, token).await.expect("an answer") {
        Frozen::Yes { home, .. } => (token, home),
        Frozen::Stale => panic!("nobody else was here"),
    }
}

#[tokio::test]
async fn an_opening_that_crashed_at_any_line_is_completed_by_the_next() {
    let settings = settings("crashed").await;
    let node = Running::start(&settings, Roles::ALL).await;
    let operator = &node.service.operator;
    let draft = async || operator.create(NewSale { total: 3, ..new_sale() }).await.expect("a draft");

    // Frozen, and nothing more.
    let frozen = draft().await;
    freeze(&node, frozen.id).await;
    // A generation without a warm Redis.
    let raised = draft().await;
    freeze(&node, raised.id).await;
    node.service.ledger.open_generation(raised.id, 0).await.expect("a generation");
    // A warm Redis, and the sale is still a draft.
    let warm = draft().await;
    let (token, home) = freeze(&node, warm.id).await;
    let generation = node.service.ledger.open_generation(warm.id, 0).await.expect("a generation").generation;
    let on_sale = OnSale { generation, total: 3, remaining: 3 };
    let open = Sale { state: SaleState::Open, ..warm.clone() };
    let warmed = node.service.stock.warm(&open, token, &home, &on_sale, WarmPart::FRESH).await.expect("an answer");
    assert_eq!(warmed, WarmCode::Warmed);

    let mut http = Connection::open(node.address()).await;
    for sale in [frozen.id, raised.id, warm.id] {
        let early = http.buy(sale, &node.token("early"), &[]).await;
        assert_eq!((early.status, early.code().as_str()), (404, "sale_not_found"), "a draft sells to nobody");
        operator.change(sale, to(SaleState::Open)).await.expect("it opens");
        for n in 0..3 {
            assert_eq!(http.buy(sale, &node.token(&format!("u{n}")), &[]).await.status, 202);
        }
        assert_eq!(http.buy(sale, &node.token("late"), &[]).await.code(), "sold_out");
        node.settle(sale).await;
    }
    node.stop().await;
}

/// Makes the first update of any stock row wait for the advisory lock 1, before it has locked anything.
async fn stop_the_first_raise(pool: &PgPool) {
    let stop = "CREATE SEQUENCE updates;
                CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    IF nextval('updates') = 1 THEN PERFORM pg_advisory_xact_lock_shared(1); END IF;
                    RETURN NULL;
                END $$;
                CREATE TRIGGER stop BEFORE UPDATE ON stock FOR EACH STATEMENT EXECUTE FUNCTION stop();";
    sqlx::raw_sql(stop).execute(pool).await.expect("a trigger");
}

async fn until_it_raises(pool: &PgPool) {
    let waiting = "SELECT count(*) = 1 FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event = 'advisory'";
    wait_until("the opening raises the generation", PATIENCE, async || {
        sqlx::query_scalar(waiting).fetch_one(pool).await.expect("an answer")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_opening_that_redis_refuses_leaves_a_draft_and_the_next_one_opens_it() {
    let settings = settings("refused").await;
    let running = observer(&settings).await;
    let sale = running.service.operator.create(NewSale { total: 3, ..new_sale() }).await.expect("a draft").id;
    let pool = running.service.ledger.pool();
    stop_the_first_raise(pool).await;
    let mut holder = pool.acquire().await.expect("a connection");
    let mut hold = holder.begin().await.expect("a transaction");
    sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *hold).await.expect("a lock");
    let operator = running.service.operator.clone();
    let opening = tokio::spawn(async move { operator.change(sale, to(SaleState::Open)).await });
    until_it_raises(pool).await;
    // Between its freeze and its warm somebody else freezes the sale.
    freeze(&running, sale).await;
    hold.rollback().await.expect("the opening goes on");
    let refused = opening.await.expect("it ends");
    assert!(matches!(refused, Err(Error::NotOnSale(_))), "{refused:?}");
    assert_eq!(generation(&running, sale).await, 0, "nothing was raised");

    let opened = running.service.operator.change(sale, to(SaleState::Open)).await.expect("it opens");
    assert_eq!(opened.state, SaleState::Open);
    let view = redis_view(&running, sale).await;
    assert_eq!((view.selling, view.remaining), (true, 3));
}

/// An opening whose session is gone has lost its lock. Whatever it does afterwards must not touch the sale that the
/// next one has opened: a generation raised behind its back would turn every order of the sale into a rejection.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_opening_that_was_overtaken_changes_nothing_of_the_sale_that_sells() {
    let settings = settings("overtaken").await;
    let (slow, quick) = (observer(&settings).await, observer(&settings).await);
    let sale = quick.service.operator.create(NewSale { total: 3, ..new_sale() }).await.expect("a draft").id;
    let pool = quick.service.ledger.pool();
    stop_the_first_raise(pool).await;
    let mut holder = pool.acquire().await.expect("a connection");
    let mut hold = holder.begin().await.expect("a transaction");
    sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *hold).await.expect("a lock");

    let operator = slow.service.operator.clone();
    let opening = tokio::spawn(async move { operator.change(sale, to(SaleState::Open)).await });
    until_it_raises(pool).await;
    // What a server does to a session that was idle in a transaction for too long.
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks
               WHERE relation = 'sales'::regclass AND mode = 'RowShareLock'
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let ended: i64 = sqlx::query_scalar(end).fetch_one(pool).await.expect("an answer");
    assert_eq!(ended, 1, "the slow one held the lock");

    quick.service.operator.change(sale, to(SaleState::Open)).await.expect("the next one opens");
    let selling = redis_view(&quick, sale).await;
    hold.rollback().await.expect("the slow one goes on");
    // How it ends is its own affair.
    let _ = opening.await.expect("it ends");
    assert_eq!(generation(&quick, sale).await, selling.generation, "the ledger is where Redis sells");
    let after = redis_view(&quick, sale).await;
    assert_eq!(format!("{after:?}"), format!("{selling:?}"));
}

#[tokio::test]
async fn opening_a_live_sale_again_overwrites_nothing() {
    let settings = settings("again").await;
    let running = observer(&settings).await;
    let sale = running.open_sale_of(NewSale { total: 3, ..new_sale() }).await;
    let purchase = Purchase {
        order: OrderId::mint(sale.id, 1, 1),
        user: "ann".parse().expect("a user id"),
        quantity: 1,
        generation: 1,
        request: None,
    };
    running.service.stock.purchase_batch(sale.id, &[purchase]).await.expect("an answer");
    let before = redis_view(&running, sale.id).await;
    assert_eq!((before.remaining, before.claims.len()), (2, 1));
    for _ in 0..2 {
        running.service.operator.change(sale.id, to(SaleState::Open)).await.expect("it is open");
        opening::open(&running.service.ledger, &running.service.stock, sale.id).await.expect("nothing to do");
    }
    assert_eq!(format!("{:?}", redis_view(&running, sale.id).await), format!("{before:?}"));
    assert_eq!(generation(&running, sale.id).await, 1);
}

/// Failure mode 8 and its kin: no start of any part warms a sale from its total.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_every_part_never_overwrites_a_live_sale() {
    let sandbox = Sandbox::start(Options::default()).await.expect("the servers start");
    let settings = prepared(sandbox.settings("restarts").await.expect("settings")).await;
    let node = Running::start(&settings, Roles::ALL).await;
    let sale = node.open_sale_of(NewSale { total: 5, ..new_sale() }).await.id;
    let mut http = Connection::open(node.address()).await;
    for name in ["ann", "bob"] {
        assert_eq!(http.buy(sale, &node.token(name), &[]).await.status, 202);
    }
    drop(http);
    node.stop().await;
    let before = redis_view(&observer(&settings).await, sale).await;
    sandbox.redis().restart().await.expect("a restart");
    sandbox.postgres().restart().await.expect("a restart");
    sandbox.kafka().restart().await.expect("a restart");

    let node = Running::start(&settings, Roles::ALL).await;
    let after = redis_view(&node, sale).await;
    assert_eq!((after.generation, after.total, after.remaining), (before.generation, 5, 3));
    assert_eq!(after.claims.len(), 2);
    let mut http = Connection::open(node.address()).await;
    let again = http.buy(sale, &node.token("ann"), &[]).await;
    assert_eq!((again.status, again.code().as_str()), (409, "already_purchased"));
    for n in 0..3 {
        assert_eq!(http.buy(sale, &node.token(&format!("u{n}")), &[]).await.status, 202);
    }
    assert_eq!(http.buy(sale, &node.token("late"), &[]).await.code(), "sold_out");
    node.settle(sale).await;
    node.stop().await;
}

/// Ledger first, then Redis: what the second step missed, the repeat of the command makes good, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_redis_missed_is_completed_by_its_repeat() {
    let sandbox = Sandbox::start(Options::default()).await.expect("the servers start");
    let direct = prepared(sandbox.settings("missed").await.expect("settings")).await;
    let mut proxied = sandbox.proxied(&direct);
    proxied.redis.response_timeout_ms = 300;
    let running = observer(&proxied).await;
    let operator = &running.service.operator;
    let sale = running.open_sale(1).await.id;
    let proxy = sandbox.redis().proxy().expect("a proxy");
    let direct = observer(&direct).await;

    proxy.cut().await;
    let missed = operator.add_stock(sale, 5, "truck").await;
    assert!(matches!(missed, Err(Error::NotOnSale(_))), "{missed:?}");
    assert_eq!(redis_view(&direct, sale).await.total, 1);
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
