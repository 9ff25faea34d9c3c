//! Parts that die, pause and come back in mid-sale. The roles are processes of their own, driven over HTTP.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::fixtures::new_sale;
use crate::support::http::Connection;
use crate::support::servers::{own_redis, with_own};
use crate::support::service::{PATIENCE, Running, prepared};
use crate::support::wait_until;
use drive::environment::env_for;
use sandbox::{Options, Process, Sandbox, free_port};
use seckill::app::{Roles, Service};
use seckill::catalogue::NewSale;
use seckill::config::Settings;
use seckill::domain::{OrderStatus, SaleId};
use seckill::promises::{CheckResult, Finding};
use seckill::shutdown::Stop;
use tokio::task::JoinSet;

const BINARY: &str = env!("CARGO_BIN_EXE_seckill");

/// Servers that may be killed, and the roles on them.
struct Scene {
    nodes: Vec<(Process, SocketAddr)>,
    relay: Process,
    consumer: Process,
    _reconciler: Process,
    /// Plays no role: the operator and the observer, straight to the stores.
    observer: Running,
    settings: Settings,
    sandbox: Sandbox,
}

impl Scene {
    async fn set(name: &str, own: Options, nodes: usize) -> Self {
        let (sandbox, settings) = with_own(name, own).await;
        let mut settings = prepared(settings).await;
        settings.http.workers = 1;
        let mut running = Vec::new();
        for n in 0..nodes {
            running.push(serve(&sandbox, &settings, n).await);
        }
        let spawn =
            |role: &str| sandbox.spawn(role, Path::new(BINARY), &[role], env_for(&settings)).expect("a process");
        let (relay, consumer, reconciler) = (spawn("relay"), spawn("consume"), spawn("reconcile"));
        let stop = Stop::new();
        let service = Service::start(&settings, Roles::OBSERVE, &stop).await.expect("the stores answer");
        let observer = Running { settings: settings.clone(), service, stop };
        Self { nodes: running, relay, consumer, _reconciler: reconciler, observer, settings, sandbox }
    }

    async fn open(&self, total: u32) -> SaleId {
        let sale = self.observer.open_sale_of(NewSale { total, ..new_sale() }).await.id;
        for (_, address) in &self.nodes {
            let path = format!("/api/v1/sales/{sale}");
            wait_until("the node knows the sale", PATIENCE, async || {
                Connection::open(*address).await.get(&path, "").await.status == 200
            })
            .await;
        }
        sale
    }

    fn respawn(&self, role: &str) -> Process {
        self.sandbox.spawn(role, Path::new(BINARY), &[role], env_for(&self.settings)).expect("a process")
    }

    /// Starts buyers that keep coming until told to stop, each a new user.
    fn crowd(&self, sale: SaleId) -> Crowd {
        let stop = Arc::new(AtomicBool::new(false));
        let mut buyers = JoinSet::new();
        for (line, (_, address)) in self.nodes.iter().cycle().take(8).enumerate() {
            let (stop, address) = (Arc::clone(&stop), *address);
            let tokens: Vec<_> = (0..20_000).map(|n| format!("u{line}-{n}")).collect();
            let sign: Vec<_> = tokens.iter().map(|user| self.observer.token(user)).collect();
            buyers.spawn(async move { line_of_buyers(address, sale, sign, &stop).await });
        }
        Crowd { stop, buyers }
    }

    async fn settle(&self, sale: SaleId) -> Vec<Finding> {
        self.observer.settle(sale).await
    }

    /// Every 202 must have become a live order of the ledger, and the promises must hold.
    async fn assert_all_ordered(&self, sale: SaleId, told: &Told) {
        self.settle(sale).await;
        let ledger = self.observer.service.ledger.view(sale).await.expect("a view").expect("a sale");
        let rows: HashMap<_, _> = ledger.orders.iter().map(|order| (order.id.to_string(), order.status)).collect();
        for order in &told.accepted {
            assert_eq!(rows.get(order), Some(&OrderStatus::Created), "order {order} was answered 202");
        }
    }
}

async fn serve(sandbox: &Sandbox, settings: &Settings, n: usize) -> (Process, SocketAddr) {
    let mut settings = settings.clone();
    settings.http.bind = ([127, 0, 0, 1], free_port().expect("a free port")).into();
    let name = format!("node{n}");
    let process = sandbox.spawn(&name, Path::new(BINARY), &["serve"], env_for(&settings)).expect("a process");
    let address = settings.http.bind;
    wait_until("the node listens", PATIENCE, async || tokio::net::TcpStream::connect(address).await.is_ok()).await;
    (process, address)
}

struct Crowd {
    stop: Arc<AtomicBool>,
    buyers: JoinSet<Told>,
}

/// What buyers were told, together.
#[derive(Default)]
struct Told {
    accepted: HashSet<String>,
    /// Answers by status and code; 0 is a connection that broke.
    answers: HashMap<(u16, String), usize>,
}

impl Crowd {
    async fn end(self) -> Told {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Told::default();
        for told in self.buyers.join_all().await {
            all.accepted.extend(told.accepted);
            for (answer, count) in told.answers {
                *all.answers.entry(answer).or_default() += count;
            }
        }
        all
    }
}

impl Told {
    fn count(&self, status: u16) -> usize {
        self.answers.iter().filter(|((s, _), _)| *s == status).map(|(_, count)| count).sum()
    }
}

/// Buyers of one connection, one after the other; a new connection when the old one breaks.
async fn line_of_buyers(address: SocketAddr, sale: SaleId, tokens: Vec<String>, stop: &AtomicBool) -> Told {
    let mut told = Told::default();
    let mut http: Option<Connection> = None;
    for token in tokens {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if http.is_none() {
            http = Connection::try_open(address).await;
        }
        let answer = match &mut http {
            Some(connection) => connection.try_buy(sale, &token).await,
            None => None,
        };
        match answer {
            Some(answer) => {
                if answer.status == 202 {
                    told.accepted.insert(answer.json()["order_id"].as_str().expect("an order id").to_owned());
                }
                *told.answers.entry((answer.status, answer.code())).or_default() += 1;
            }
            None => {
                http = None;
                *told.answers.entry((0, String::new())).or_default() += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    told
}

/// Waits until the ledger has sold at least this many units: the sale is in full swing.
async fn until_sold(scene: &Scene, sale: SaleId, units: i64) {
    wait_until("the sale is in full swing", PATIENCE, async || {
        let row = scene.observer.service.ledger.stock(sale).await.ok().flatten();
        row.is_some_and(|row| i64::from(row.total) - i64::from(row.available) >= units)
    })
    .await;
}

/// Units that Redis has sold.
async fn claimed(scene: &Scene, sale: SaleId) -> usize {
    let view = scene.observer.service.stock.view(sale).await.ok().flatten();
    view.map_or(0, |view| view.claims.len())
}

/// The broker is away for ten seconds of a sale. Nobody gets a 5xx, the sale goes on at once,
/// and everything ends up ordered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_down_for_ten_seconds_of_a_sale_costs_delay_and_nothing_else() {
    let scene = Scene::set("kafka_down", own_redis().kafka(), 2).await;
    let sale = scene.open(100_000).await;
    let crowd = scene.crowd(sale);
    until_sold(&scene, sale, 50).await;
    scene.sandbox.kafka().kill().expect("a kill");
    let before = claimed(&scene, sale).await;
    // The ten seconds are the fault itself, not a wait for something.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(claimed(&scene, sale).await > before, "the sale goes on without Kafka");
    scene.sandbox.kafka().restart().await.expect("a restart");
    let told = crowd.end().await;
    let others: Vec<_> = told.answers.iter().filter(|((status, _), _)| *status != 202).collect();
    assert!(others.is_empty(), "nobody is told of it: {others:?}");
    scene.assert_all_ordered(sale, &told).await;
}

/// Redis is killed and comes back from its file in mid-sale: 503s, then the sale goes on, and every promise holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_killed_and_restarted_from_its_file_in_mid_sale_loses_nothing() {
    let scene = Scene::set("redis_killed", own_redis(), 2).await;
    let sale = scene.open(100_000).await;
    let crowd = scene.crowd(sale);
    until_sold(&scene, sale, 50).await;
    scene.sandbox.redis().kill().expect("a kill");
    scene.sandbox.redis().restart().await.expect("a restart");
    let before = claimed(&scene, sale).await;
    wait_until("the sale goes on", PATIENCE, async || claimed(&scene, sale).await > before + 50).await;
    let told = crowd.end().await;
    assert!(told.count(503) > 0, "somebody met the fault: {:?}", told.answers);
    let odd: Vec<_> = told.answers.keys().filter(|(status, _)| !matches!(status, 202 | 503)).collect();
    assert!(odd.is_empty(), "a fault is never dressed as a refusal: {odd:?}");
    scene.assert_all_ordered(sale, &told).await;
}

/// SIGTERM of each role under load: it ends by itself and in order, another takes over, and nothing is lost.
/// Nothing that was queued in the process goes with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_of_each_role_under_load_loses_nothing() {
    let mut scene = Scene::set("sigterm", own_redis(), 2).await;
    let sale = scene.open(100_000).await;
    let crowd = scene.crowd(sale);
    until_sold(&scene, sale, 50).await;

    scene.relay.terminate().expect("a signal");
    let ended = scene.relay.wait(PATIENCE).await.expect("the relay ends");
    assert!(ended.success(), "the relay: {ended}\n{}", scene.relay.log_tail());
    scene.relay = scene.respawn("relay");

    scene.consumer.terminate().expect("a signal");
    let ended = scene.consumer.wait(PATIENCE).await.expect("the consumer ends");
    assert!(ended.success(), "the consumer: {ended}\n{}", scene.consumer.log_tail());
    scene.consumer = scene.respawn("consume");

    let (node, _) = &scene.nodes[1];
    node.terminate().expect("a signal");
    let ended = node.wait(PATIENCE).await.expect("the node ends");
    assert!(ended.success(), "the node: {ended}\n{}", node.log_tail());

    let before = claimed(&scene, sale).await;
    wait_until("the other node sells on", PATIENCE, async || claimed(&scene, sale).await > before + 50).await;
    let told = crowd.end().await;
    assert_eq!(told.count(503), 0, "a node that stops answers what it has accepted: {:?}", told.answers);
    scene.assert_all_ordered(sale, &told).await;
}

/// kill -9 of each role under load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigkill_of_each_role_under_load_loses_nothing() {
    let mut scene = Scene::set("sigkill", own_redis(), 2).await;
    let sale = scene.open(100_000).await;
    let crowd = scene.crowd(sale);
    until_sold(&scene, sale, 50).await;
    for _ in 0..2 {
        scene.relay.kill().expect("a kill");
        scene.relay = scene.respawn("relay");
        scene.consumer.kill().expect("a kill");
        scene.consumer = scene.respawn("consume");
        let before = claimed(&scene, sale).await;
        wait_until("the sale goes on", PATIENCE, async || claimed(&scene, sale).await > before + 50).await;
    }
    scene.nodes[1].0.kill().expect("a kill");
    let before = claimed(&scene, sale).await;
    wait_until("the other node sells on", PATIENCE, async || claimed(&scene, sale).await > before + 50).await;
    let told = crowd.end().await;
    scene.assert_all_ordered(sale, &told).await;
}

/// Refusing is cheaper than selling. No line per refusal, whatever the flood.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_refusals_writes_no_log_lines() {
    let scene = Scene::set("flood", own_redis(), 1).await;
    let sale = scene.open(1).await;
    let (node, address) = &scene.nodes[0];
    let lines = || std::fs::read_to_string(node.log()).expect("a log").lines().count();
    let mut http = Connection::open(*address).await;
    assert_eq!(http.buy(sale, &scene.observer.token("winner"), &[]).await.status, 202);
    let before = lines();
    let crowd = scene.crowd(sale);
    wait_until("5,000 refusals", PATIENCE, async || {
        let text = Connection::open(*address).await.get("/metrics", "").await.text;
        let refused = text.lines().find_map(|line| {
            line.strip_prefix(r#"seckill_http_requests_total{code="sold_out",route="purchase",status="4xx"} "#)
        });
        refused.and_then(|count| count.parse::<u64>().ok()).is_some_and(|count| count > 5_000)
    })
    .await;
    let told = crowd.end().await;
    assert!(told.count(409) > 5_000, "{:?}", told.answers);
    assert_eq!(lines(), before, "{}", node.log_tail());
    let findings = scene.settle(sale).await;
    assert!(findings.iter().all(|finding| finding.holds != CheckResult::Broken));
}
