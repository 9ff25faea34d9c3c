//! The reconciler as operators meet it: a run by hand, a dry run, figures to be scraped, and a stop.

use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use crate::support::fixtures::redis;
use crate::support::http::Connection;
use crate::support::reconciler::{ReconcilerFixture, hasty};
use crate::support::service::{PATIENCE, Running, settings};
use crate::support::wait_until;
use drive::environment::{SandboxSettings, env_for};
use prometheus::{Encoder, Registry, TextEncoder};
use redis::AsyncCommands;
use sandbox::{Options, Sandbox};
use seckill::app::Roles;
use seckill::config::Settings;
use seckill::domain::{OrderId, OrderStatus, Sale, SaleId};
use seckill::ledger::{self, Ledger};
use seckill::lock::{Lock, Name, Options as LockOptions, Released};
use seckill::stock::keys;
use secrecy::ExposeSecret;
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use tokio_util::sync::CancellationToken;

/// Runs `seckill reconcile …` and answers with the stats of one job: checked, found, repaired.
fn reconcile(settings: &Settings, sale: &Sale, how: &str, job: &str) -> Option<[u64; 3]> {
    let id = sale.id.to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
    command.args(["reconcile", how, "--sale", &id]).envs(env_for(settings));
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = words.into_iter().find(|words| words.first() == Some(&&*id) && words.get(1) == Some(&job))?;
    let counts = |at: usize| line[at].parse().expect("a number");
    Some([counts(2), counts(3), counts(4)])
}

/// A reconciler that silently does nothing: what it has checked, found and repaired is always counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_says_what_a_run_would_do_and_a_run_does_it_once() {
    let mut settings = settings("reconciler_by_hand").await;
    settings.reconcile.grace_ms = 0;
    let running = Running::start(&settings, Roles::ALL).await;
    let sale = running.open_sale(1).await;
    let mut http = Connection::open(running.address()).await;
    let bought = http.buy(sale.id, &running.token("ann"), &[]).await;
    assert_eq!(bought.status, 202, "{}", bought.text);
    running.settle(sale.id).await;
    running.stop().await;

    // The closer died between the ledger and Redis.
    let observer = Running::observe(&settings).await;
    let order = bought.json()["order_id"].as_str().expect("an id").parse().expect("an order id");
    observer.service.ledger.close(order, OrderStatus::Cancelled).await.expect("a move");
    let left = async || observer.service.stock.probe(sale.id).await.expect("an answer").expect("a sale").remaining;

    assert_eq!(reconcile(&settings, &sale, "--dry-run", "release"), Some([1, 1, 0]));
    assert_eq!(left().await, 0, "a dry run writes nothing");
    assert_eq!(reconcile(&settings, &sale, "--once", "release"), Some([1, 1, 1]));
    assert_eq!(left().await, 1);
    assert_eq!(reconcile(&settings, &sale, "--dry-run", "release"), Some([0, 0, 0]));
}

#[tokio::test]
async fn a_role_without_http_shows_its_figures_where_it_is_told_to() {
    let mut settings = settings("reconciler_figures").await;
    settings.telemetry.bind = Some(([127, 0, 0, 1], 0).into());
    let running = Running::start(&settings, Roles::RECONCILE).await;
    running.open_sale(1).await;
    let http = tokio::sync::Mutex::new(Connection::open(running.address()).await);
    wait_until("the reconciler has looked at the sale", PATIENCE, async || {
        let metrics = http.lock().await.send("GET", "/metrics", &[], "").await;
        assert_eq!(metrics.status, 200, "{}", metrics.text);
        metrics.text.contains("seckill_reconcile_checked_total{job=\"rebuild\"}")
    })
    .await;
    assert_eq!(http.lock().await.send("GET", "/livez", &[], "").await.status, 200);
    running.stop().await;
}

/// The orders of a sale whose ledger is older than Redis wait in Kafka in front of those of others, so each catches up
/// first. A single run of the reconciler includes the rebuild, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_by_hand_lets_the_ledger_catch_up_and_then_rebuilds() {
    let settings = settings("reconciler_catches_up").await;
    let running = Running::start(&settings, Roles::ALL).await;
    let sale = running.open_sale(2).await;
    let mut http = Connection::open(running.address()).await;
    assert_eq!(http.buy(sale.id, &running.token("ann"), &[]).await.status, 202);
    running.settle(sale.id).await;
    running.stop().await;

    let observer = Running::observe(&settings).await;
    let mut redis = redis(&settings.redis).await;
    let () = redis.hset(keys::sale(sale.id), "generation", 5).await.expect("a hash");
    assert_eq!(reconcile(&settings, &sale, "--once", "restore"), Some([1, 0, 0]), "one live order, and its claim");
    let row = observer.service.ledger.stock(sale.id).await.expect("an answer").expect("a row");
    assert_eq!(row.generation, 6);
    let update = observer.service.stock.probe(sale.id).await.expect("an answer").expect("it sells");
    assert_eq!((update.version.generation, update.remaining), (6, 1));
}

/// A connection that a firewall forgot never ends. A reconciler that waits on it would never check that sale again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_at_a_postgresql_that_fell_silent_ends() {
    let sandbox = Sandbox::start(Options::none().postgres()).await.expect("PostgreSQL starts");
    let mut settings = sandbox.settings("silence").await.expect("settings").postgres;
    let direct = Ledger::connect(&settings, PATIENCE).await.expect("a ledger");
    ledger::migrate(direct.pool()).await.expect("the schema");
    // The server ends a wait for a lock after 1.5 seconds, and the client gives up on a silent server after nine.
    settings.statement_timeout_ms = 3_000;
    let proxy = sandbox.postgres().proxy().expect("a proxy");
    let own = PgConnectOptions::from_str(settings.url.expose_secret()).expect("a URL");
    settings.url = own.port(proxy.port()).to_url_lossy().to_string().into();
    let far = Ledger::connect(&settings, PATIENCE).await.expect("a ledger");

    let mut lock = direct.pool().begin().await.expect("a transaction");
    sqlx::query("LOCK TABLE stock, orders").execute(&mut *lock).await.expect("the lock");
    let (sale, order) = (SaleId::new(1).expect("an id"), OrderId::mint(SaleId::new(1).expect("an id"), 1, 1));
    let looks = async {
        let orders = [order];
        let (stock, overdue, claimed, order_states) =
            tokio::join!(far.stock(sale), far.overdue(sale, 1), far.claimed(sale, 0), far.order_states(&orders));
        [stock.err(), overdue.err(), claimed.err(), order_states.err()]
    };
    let silence = async {
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        wait_until("all of them wait", PATIENCE, async || {
            sqlx::query_scalar::<_, i64>(waiting).fetch_one(direct.pool()).await.expect("a count") == 4
        })
        .await;
        proxy.black_hole();
        lock.rollback().await.expect("an end");
    };
    let (ended, ()) = tokio::join!(tokio::time::timeout(PATIENCE, looks), silence);
    for error in ended.expect("every look ends") {
        let error = error.expect("nobody answered").to_string();
        assert!(error.contains("silent"), "{error}");
    }
}

/// The rebuild waits for a relay that never flushes. The lease is far longer than the test.
#[tokio::test]
async fn a_reconciler_that_stops_in_the_middle_of_a_repair_gives_its_lock_back() {
    let mut settings = hasty("stops_in_a_repair").await;
    settings.reconcile.lock_ttl_ms = 600_000;
    let ReconcilerFixture { running, reconciler, lock } = ReconcilerFixture::start(&settings, Roles::OBSERVE).await;
    let registry = Registry::new();
    lock.metrics().register(&registry).expect("metrics");
    let sale = running.open_sale(1).await;
    let relay =
        "INSERT INTO relays (instance, seen_at, flushed_home) VALUES ('r', clock_timestamp() + interval '1 h', 'x')";
    sqlx::query(relay).execute(running.service.ledger.pool()).await.expect("a relay");
    running.service.stock.freeze(sale.id, 1).await.expect("an answer");

    let stop = CancellationToken::new();
    let run = tokio::spawn(reconciler.run(stop.clone()));
    let client = redis::Client::open(settings.redis.url.expose_secret()).expect("a URL");
    let redis = client.get_multiplexed_async_connection().await.expect("Redis answers");
    wait_until("the rebuild has begun", PATIENCE, async || {
        let fence: i64 = redis.clone().hget(keys::sale(sale.id), "fence").await.expect("a hash");
        fence > 1
    })
    .await;
    stop.cancel();
    tokio::time::timeout(PATIENCE, run).await.expect("an end").expect("no panic");

    let next = Lock::new(&settings.redis, running.service.ledger.pool().clone()).expect("a lock");
    let try_once = LockOptions { wait_at_most: Duration::ZERO, ..LockOptions::default() };
    let guard = next.acquire(&Name::sale(sale.id), try_once).await.expect("the lock is free at once");
    assert_eq!(guard.release().await, Released::Released);
    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text).expect("text");
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains("seckill_lock_release_total{outcome=\"closing\"} 1"), "released by its job: {text}");
    assert!(text.contains("seckill_lock_dropped_total 0"), "{text}");
}
