//! A shop on several nodes that does everything right except counting: it knows its buyers, sells one order to each,
//! starts on time, repeats an answer for a repeated key, and lets every buyer read the order.
//!
//! So whatever the verdict finds comes from the counter. The shop keeps the real sales in memory for the verdict; no
//! decision reads them.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use actix_web::dev::ServerHandle;
use actix_web::http::StatusCode;
use actix_web::http::header::AUTHORIZATION;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use anyhow::Context;
use drive::environment::JWT_SECRET;
use drive::observer::StoreObserver;
use seckill::admission::identity::Verifier;
use seckill::domain::{OrderId, OrderStatus, Pool, SaleId, UserId};
use seckill::promises::{Flow, LedgerView, OrderFact, RedisView};
use serde::Deserialize;
use serde_json::json;

use super::counter::Counter;

/// The only sale of the shop.
pub fn sale() -> anyhow::Result<SaleId> {
    SaleId::new(1).context("a sale id")
}

/// All nodes, open for one sale.
pub struct Shop {
    pub urls: Vec<String>,
    handles: Vec<ServerHandle>,
    books: Arc<Books>,
    /// Any node's view of the shared store.
    first: Arc<Node>,
    versions: BTreeMap<&'static str, String>,
    stock: u32,
    max_quantity: u32,
}

/// One node.
struct Node {
    counter: Counter,
    books: Arc<Books>,
}

/// Who bought what, shared by the nodes.
struct Books {
    sale: SaleId,
    start: Instant,
    verifier: Verifier,
    orders: Mutex<Vec<OrderFact>>,
    /// Each buyer's order and the key that it was asked for with, once there is one. Locked while the buyer is served.
    buyers: Mutex<HashMap<UserId, Arc<tokio::sync::Mutex<Option<Bought>>>>>,
}

struct Bought {
    order: OrderId,
    key: Option<String>,
}

#[derive(Deserialize)]
struct PurchaseRequest {
    quantity: u32,
}

impl Shop {
    /// Opens one node for each counter, on free ports.
    pub fn open(
        counters: Vec<Counter>,
        versions: BTreeMap<&'static str, String>,
        stock: u32,
        max_quantity: u32,
        start: Instant,
    ) -> anyhow::Result<Self> {
        let verifier = Verifier::new(&JWT_SECRET.into())?;
        let (orders, buyers) = (Mutex::default(), Mutex::default());
        let books = Arc::new(Books { sale: sale()?, start, verifier, orders, buyers });
        let nodes: Vec<_> =
            counters.into_iter().map(|counter| Arc::new(Node { counter, books: Arc::clone(&books) })).collect();
        let first = Arc::clone(nodes.first().context("a shop without nodes")?);
        let (mut urls, mut handles) = (Vec::new(), Vec::new());
        for node in nodes {
            let data = web::Data::from(node);
            let app = move || {
                App::new()
                    .app_data(data.clone())
                    .route("/api/v1/sales/{sale}/purchases", web::post().to(purchase))
                    .route("/api/v1/sales/{sale}/order", web::get().to(own_order))
                    .route("/api/v1/orders/{order}", web::get().to(order))
            };
            let server = HttpServer::new(app).workers(1).disable_signals().bind((Ipv4Addr::LOCALHOST, 0))?;
            urls.extend(server.addrs().iter().map(|address| format!("http://{address}")));
            let running = server.run();
            handles.push(running.handle());
            tokio::spawn(running);
        }
        Ok(Self { urls, handles, books, first, versions, stock, max_quantity })
    }

    pub async fn close(self) {
        for handle in self.handles {
            handle.stop(false).await;
        }
    }
}

impl Books {
    fn orders(&self) -> MutexGuard<'_, Vec<OrderFact>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn user(&self, request: &HttpRequest) -> Option<UserId> {
        let header = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
        self.verifier.verify(Some(header)).ok().map(|identity| identity.user)
    }

    /// The record of one buyer, to be locked while a purchase is decided.
    fn buyer(&self, user: &UserId) -> Arc<tokio::sync::Mutex<Option<Bought>>> {
        let mut buyers = self.buyers.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(buyers.entry(user.clone()).or_default())
    }

    fn enter(&self, user: UserId, quantity: u32) -> OrderId {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut orders = self.orders();
        let id = OrderId::mint(self.sale, u32::try_from(now.as_secs()).unwrap_or(u32::MAX), orders.len() as u64);
        let status = OrderStatus::Created;
        orders.push(OrderFact { id, user, quantity, status, reason: None, pool: Pool::Redis, generation: 1 });
        id
    }
}

fn problem(status: StatusCode, code: &str) -> HttpResponse {
    HttpResponse::build(status).json(json!({ "code": code, "status": status.as_u16() }))
}

fn accepted(order: OrderId) -> HttpResponse {
    HttpResponse::Accepted().json(json!({ "order_id": order, "status": OrderStatus::Queued }))
}

async fn purchase(node: web::Data<Node>, request: HttpRequest, wanted: web::Json<PurchaseRequest>) -> HttpResponse {
    let books = &node.books;
    let Some(user) = books.user(&request) else { return problem(StatusCode::UNAUTHORIZED, "unauthorized") };
    if Instant::now() < books.start {
        return problem(StatusCode::CONFLICT, "sale_not_started");
    }
    let key = request.headers().get("idempotency-key").and_then(|key| key.to_str().ok()).map(str::to_owned);
    let record = books.buyer(&user);
    let mut record = record.lock().await;
    if let Some(bought) = &*record {
        let again = key.is_some() && bought.key == key;
        return if again { accepted(bought.order) } else { problem(StatusCode::CONFLICT, "already_purchased") };
    }
    match node.counter.take(wanted.quantity).await {
        Ok(Ok(())) => {
            let order = books.enter(user, wanted.quantity);
            *record = Some(Bought { order, key });
            accepted(order)
        }
        Ok(Err(..=0)) => problem(StatusCode::CONFLICT, "sold_out"),
        Ok(Err(_)) => problem(StatusCode::CONFLICT, "not_enough_left"),
        Err(_) => problem(StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
    }
}

fn shown(order: Option<&OrderFact>) -> HttpResponse {
    match order {
        Some(order) => HttpResponse::Ok().json(json!({ "order_id": order.id, "status": order.status, "reason": null })),
        None => problem(StatusCode::NOT_FOUND, "order_not_found"),
    }
}

async fn own_order(node: web::Data<Node>, request: HttpRequest) -> HttpResponse {
    let user = node.books.user(&request);
    shown(node.books.orders().iter().find(|order| Some(&order.user) == user.as_ref()))
}

async fn order(node: web::Data<Node>, id: web::Path<OrderId>, request: HttpRequest) -> HttpResponse {
    let user = node.books.user(&request);
    shown(node.books.orders().iter().find(|order| order.id == *id && Some(&order.user) == user.as_ref()))
}

/// The shop's books as the ledger, beside what its counter says.
impl StoreObserver for Shop {
    async fn ledger(&self, _: SaleId) -> anyhow::Result<Option<LedgerView>> {
        let available = self.first.counter.left().await?;
        let total = i64::from(self.stock);
        Ok(Some(LedgerView {
            sale: self.books.sale,
            total,
            available,
            reserve: 0,
            redis_total: total,
            generation: 1,
            version: 0,
            max_quantity: self.max_quantity,
            orders: self.books.orders().clone(),
        }))
    }

    async fn redis(&self, _: SaleId) -> anyhow::Result<Option<RedisView>> {
        Ok(None)
    }

    /// Orders are in the books before their buyers hear of them.
    async fn flow(&self, _: SaleId) -> anyhow::Result<Option<Flow>> {
        Ok(Some(Flow::default()))
    }

    async fn sold(&self, _: SaleId) -> anyhow::Result<Option<i64>> {
        Ok(Some(self.books.orders().iter().map(|order| i64::from(order.quantity)).sum()))
    }

    async fn remaining(&self, _: SaleId) -> anyhow::Result<Option<i64>> {
        self.first.counter.left().await.map(Some)
    }

    async fn versions(&self) -> BTreeMap<&'static str, String> {
        self.versions.clone()
    }
}
