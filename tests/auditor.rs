//! The auditor as operators meet it: a run by hand, a look that changes nothing, and figures to be scraped.

mod support;

use std::process::Command;

use seckill::app::Roles;
use seckill::config::Settings;
use seckill::domain::{OrderStatus, Sale};
use seckill::sandbox::env_for;
use support::http::Connection;
use support::service::{PATIENCE, Running, settings};
use support::wait_until;

/// Runs `seckill reconcile …` and answers with the figures of one job: checked, found, repaired.
fn reconcile(settings: &Settings, sale: &Sale, how: &str, job: &str) -> Option<[u64; 3]> {
    let id = sale.id.to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
    command.args(["reconcile", how, "--sale", &id]).envs(env_for(settings));
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = words.into_iter().find(|words| words.first() == Some(&&*id) && words.get(1) == Some(&job))?;
    let figure = |at: usize| line[at].parse().expect("a number");
    Some([figure(2), figure(3), figure(4)])
}

/// The auditor that never works, and nobody sees it: what it has looked at, found and repaired is always said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_says_what_a_run_would_do_and_a_run_does_it_once() {
    let mut settings = settings("auditor_by_hand").await;
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
    let mut settings = settings("auditor_figures").await;
    settings.telemetry.bind = Some(([127, 0, 0, 1], 0).into());
    let running = Running::start(&settings, Roles::RECONCILE).await;
    running.open_sale(1).await;
    let http = tokio::sync::Mutex::new(Connection::open(running.address()).await);
    wait_until("the auditor has looked at the sale", PATIENCE, async || {
        let metrics = http.lock().await.send("GET", "/metrics", &[], "").await;
        assert_eq!(metrics.status, 200, "{}", metrics.text);
        metrics.text.contains("seckill_reconcile_checked_total{job=\"rebuild\"}")
    })
    .await;
    assert_eq!(http.lock().await.send("GET", "/livez", &[], "").await.status, 200);
    running.stop().await;
}
