//! A shop in memory, over real HTTP: it sells honestly, or with one fault that the verdict has to find.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use actix_web::http::StatusCode;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use serde_json::json;

use crate::observer::StoreObserver;
use seckill::domain::{OrderId, OrderStatus, Pool, Rejection, SaleId, UserId};
use seckill::promises::{ClaimFact, Flow, LedgerView, OrderFact, RedisView};

/// What is wrong with a shop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// Hands out one unit more than there is.
    SellsTwice,
    /// Stops selling with one unit left.
    KeepsOne,
    /// Answers 202 for its tenth order and forgets it.
    Loses,
    /// Rejects its tenth order afterwards.
    Rejects,
    /// Rejects its tenth order as the second one of a buyer who has no other.
    RejectsAsSecond,
    /// Sells, then answers every third buyer 503.
    Mute,
    /// Answers every third request 503 and sells nothing.
    Busy,
    /// Answers 503 to every purchase after its tenth order.
    StopsAnswering,
    /// Says that its last order is still on its way, for ever.
    Stuck,
    /// Takes a while for each answer.
    Slow(Duration),
    /// Does not sell again what was cancelled.
    KeepsWhatComesBack,
    /// Lets no order expire.
    NeverExpires,
    /// Says that an order is paid and forgets it.
    ForgetsPayments,
}

#[derive(Default)]
struct State {
    orders: Vec<OrderFact>,
    forgotten: HashSet<OrderId>,
    requests: HashMap<(UserId, String), OrderId>,
    calls: u64,
    /// When each order lapses, and units that came back and are kept.
    lapses: Vec<Instant>,
    kept: u32,
}

impl State {
    fn live(&self) -> u32 {
        self.orders.iter().filter(|order| order.status.is_live()).map(|order| order.quantity).sum()
    }

    fn close(&mut self, at: usize, status: OrderStatus, fault: Fault) {
        if fault == Fault::KeepsWhatComesBack {
            self.kept += self.orders[at].quantity;
        }
        self.orders[at].status = status;
    }
}

/// The shop, open for one sale.
#[derive(Clone)]
pub struct Shop {
    state: Arc<Mutex<State>>,
    fault: Fault,
    stock: u32,
    pay_within: Duration,
    pub url: String,
}

pub fn sale() -> SaleId {
    SaleId::new(3).expect("a sale id")
}

impl Shop {
    /// Opens on a free port, in the background, until the test's runtime ends.
    pub fn open(stock: u32, fault: Fault) -> Self {
        Self::begin(stock, Duration::from_secs(3600), fault)
    }

    fn begin(stock: u32, pay_within: Duration, fault: Fault) -> Self {
        let mut shop = Self { state: Arc::default(), fault, stock, pay_within, url: String::new() };
        let data = web::Data::new(shop.clone());
        let app = move || {
            App::new()
                .app_data(data.clone())
                .route("/api/v1/sales/3/purchases", web::post().to(purchase))
                .route("/api/v1/sales/3/order", web::get().to(own_order))
                .route("/api/v1/orders/{id}", web::get().to(order))
                .route("/api/v1/orders/{id}/{step}", web::post().to(step))
                .route("/api/v1/sales/3", web::get().to(page))
        };
        let server = HttpServer::new(app).workers(1).disable_signals().bind(("127.0.0.1", 0)).expect("a free port");
        shop.url = format!("http://{}", server.addrs()[0]);
        tokio::spawn(server.run());
        shop
    }

    /// The books, after every order that lapsed by now is closed.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for at in 0..state.orders.len() {
            let lapsed = state.orders[at].status == OrderStatus::Created && state.lapses[at] <= Instant::now();
            if lapsed && self.fault != Fault::NeverExpires {
                state.close(at, OrderStatus::Expired, self.fault);
            }
        }
        state
    }

    /// Opens with orders that lapse after this time.
    pub fn paid_within(stock: u32, time: Duration, fault: Fault) -> Self {
        Self::begin(stock, time, fault)
    }
}

/// The `sub` of a token that this test signed itself.
fn user(request: &HttpRequest) -> UserId {
    let header = request.headers().get("authorization").expect("a header").to_str().expect("text");
    let key = jsonwebtoken::DecodingKey::from_secret(super::SECRET.as_bytes()).expect("a key");
    let token = header.strip_prefix("Bearer ").expect("a bearer token");
    let claims = jsonwebtoken::decode::<serde_json::Value>(token, &key, &jsonwebtoken::Validation::default());
    claims.expect("a valid token").claims["sub"].as_str().expect("a user").parse().expect("a user id")
}

fn problem(status: u16, code: &str) -> HttpResponse {
    HttpResponse::build(StatusCode::from_u16(status).expect("a status")).json(json!({ "code": code, "status": status }))
}

fn accepted(order: OrderId) -> HttpResponse {
    HttpResponse::Accepted().json(json!({ "order_id": order, "status": "queued" }))
}

async fn purchase(shop: web::Data<Shop>, request: HttpRequest, body: web::Json<serde_json::Value>) -> HttpResponse {
    if let Fault::Slow(time) = shop.fault {
        actix_web::rt::time::sleep(time).await;
    }
    let user = user(&request);
    let quantity = body["quantity"].as_u64().and_then(|n| u32::try_from(n).ok()).expect("a quantity");
    let key = request.headers().get("idempotency-key").map(|key| key.to_str().expect("text").to_owned());
    let mut state = shop.state();
    state.calls += 1;
    let third = state.calls.is_multiple_of(3);
    let stopped = shop.fault == Fault::StopsAnswering && state.orders.len() == 10;
    if stopped || shop.fault == Fault::Busy && third {
        return problem(503, "unavailable");
    }
    if let Some(order) = key.as_ref().and_then(|key| state.requests.get(&(user.clone(), key.clone()))) {
        return accepted(*order);
    }
    let held = state.orders.iter().find(|order| order.user == user && closed(order.status).is_none());
    if let Some(held) = held {
        return HttpResponse::Conflict().json(json!({ "code": "already_purchased", "order_id": held.id }));
    }
    let sold = state.live() + state.kept;
    let stock = match shop.fault {
        Fault::SellsTwice => shop.stock + 1,
        Fault::KeepsOne => shop.stock - 1,
        _ => shop.stock,
    };
    if sold == stock {
        return problem(409, "sold_out");
    }
    if sold + quantity > stock {
        return problem(409, "not_enough_left");
    }
    let id = OrderId::mint(sale(), 1_700_000_000, state.orders.len() as u64);
    let status = OrderStatus::Created;
    state.lapses.push(Instant::now() + shop.pay_within);
    state.orders.push(OrderFact {
        id,
        user: user.clone(),
        quantity,
        status,
        reason: None,
        pool: Pool::Redis,
        generation: 1,
    });
    if let Some(key) = key {
        state.requests.insert((user, key), id);
    }
    if state.orders.len() == 10 && shop.fault == Fault::Loses {
        state.forgotten.insert(id);
    }
    let reason = match shop.fault {
        Fault::Rejects => Some(Rejection::SoldOut),
        Fault::RejectsAsSecond => Some(Rejection::AlreadyPurchased),
        _ => None,
    };
    if state.orders.len() == 10 && reason.is_some() {
        state.orders[9].status = OrderStatus::Rejected;
        state.orders[9].reason = reason;
    }
    if shop.fault == Fault::Mute && third {
        return problem(503, "unavailable");
    }
    accepted(id)
}

async fn own_order(shop: web::Data<Shop>, request: HttpRequest) -> HttpResponse {
    let user = user(&request);
    let state = shop.state();
    match state.orders.iter().rfind(|order| order.user == user) {
        Some(order) => HttpResponse::Ok().json(json!({ "order_id": order.id, "status": order.status })),
        None => problem(404, "order_not_found"),
    }
}

async fn order(shop: web::Data<Shop>, path: web::Path<OrderId>, request: HttpRequest) -> HttpResponse {
    let user = user(&request);
    let state = shop.state();
    let mine = state.orders.iter().find(|order| order.id == *path && order.user == user);
    match mine.filter(|order| !state.forgotten.contains(&order.id)) {
        Some(order) => {
            HttpResponse::Ok().json(json!({ "order_id": order.id, "status": order.status, "reason": order.reason }))
        }
        None => problem(404, "order_not_found"),
    }
}

/// Pays or cancels.
async fn step(shop: web::Data<Shop>, path: web::Path<(OrderId, String)>, request: HttpRequest) -> HttpResponse {
    let (user, (id, step)) = (user(&request), path.into_inner());
    let mut state = shop.state();
    let Some(at) = state.orders.iter().position(|order| order.id == id && order.user == user) else {
        return problem(404, "order_not_found");
    };
    let wanted = if step == "pay" { OrderStatus::Paid } else { OrderStatus::Cancelled };
    match (state.orders[at].status, wanted) {
        (OrderStatus::Created, OrderStatus::Paid) if shop.fault == Fault::ForgetsPayments => {
            state.lapses[at] = Instant::now();
        }
        (OrderStatus::Created, OrderStatus::Paid) => state.orders[at].status = wanted,
        (OrderStatus::Created, _) => state.close(at, wanted, shop.fault),
        (status, _) if status == wanted => {}
        (status, _) => {
            return HttpResponse::Conflict().json(json!({ "code": "illegal_transition", "order_status": status }));
        }
    }
    HttpResponse::Ok().json(json!({ "order_id": id, "status": wanted }))
}

async fn page(shop: web::Data<Shop>) -> HttpResponse {
    let state = shop.state();
    HttpResponse::Ok().json(json!({ "remaining": shop.stock - state.live() - state.kept }))
}

/// How an order ended that holds its buyer's place no more.
const fn closed(status: OrderStatus) -> Option<OrderStatus> {
    match status {
        OrderStatus::Cancelled | OrderStatus::Expired => Some(status),
        _ => None,
    }
}

impl StoreObserver for Shop {
    async fn ledger(&self, sale: SaleId) -> anyhow::Result<Option<LedgerView>> {
        let state = self.state();
        let orders: Vec<_> = state.orders.iter().filter(|o| !state.forgotten.contains(&o.id)).cloned().collect();
        let sold: i64 = orders.iter().filter(|o| o.status.is_live()).map(|o| i64::from(o.quantity)).sum();
        Ok(Some(LedgerView {
            sale,
            total: self.stock.into(),
            available: i64::from(self.stock) - sold,
            reserve: 0,
            redis_total: self.stock.into(),
            generation: 1,
            version: 1,
            max_quantity: 2,
            orders,
        }))
    }

    async fn redis(&self, _: SaleId) -> anyhow::Result<Option<RedisView>> {
        let state = self.state();
        let claim = |o: &OrderFact| ClaimFact { user: o.user.clone(), order: o.id, quantity: o.quantity };
        let claims: Vec<_> = state.orders.iter().filter(|o| o.status.is_live()).map(claim).collect();
        let claimed: i64 = claims.iter().map(|claim| i64::from(claim.quantity)).sum();
        let total = i64::from(self.stock);
        let remaining = total - claimed;
        Ok(Some(RedisView { selling: true, generation: 1, total, remaining, claims, outbox: 0 }))
    }

    async fn flow(&self, _: SaleId) -> anyhow::Result<Option<Flow>> {
        Ok(Some(Flow { backlog: u64::from(self.fault == Fault::Stuck), ..Flow::default() }))
    }

    async fn sold(&self, _: SaleId) -> anyhow::Result<Option<i64>> {
        Ok(Some(self.state().orders.len().try_into()?))
    }
}
