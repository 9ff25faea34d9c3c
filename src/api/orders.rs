//! What became of an order: Redis first, then the ledger.
//!
//! The other order of reading would miss an order that is created, closed and released between the two reads.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use time::OffsetDateTime;
use time::serde::rfc3339;

use super::Api;
use super::caller;
use super::problem::{Code, Problem};
use super::problems;
use crate::domain::{Order, OrderId, OrderStatus, Rejection, Sale, SaleId, UserId};
use crate::stock::Claim;

/// An order as its buyer sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = Order)]
pub struct OrderView {
    #[schema(value_type = String, format = Uuid)]
    pub order_id: OrderId,
    #[schema(value_type = String)]
    pub sale_id: SaleId,
    /// Units.
    pub quantity: u32,
    pub status: OrderStatus,
    /// Why it was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Rejection>,
    /// Price of all units, in cents; from the ledger, so absent while queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amount_cents: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none", with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub created_at: Option<OffsetDateTime>,
    /// When an unpaid order lapses.
    #[serde(skip_serializing_if = "Option::is_none", with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub pay_before: Option<OffsetDateTime>,
}

impl From<Order> for OrderView {
    fn from(order: Order) -> Self {
        Self {
            order_id: order.id,
            sale_id: order.sale,
            quantity: order.quantity,
            status: order.status,
            reason: order.reason,
            amount_cents: Some(order.amount_cents),
            created_at: Some(order.created_at),
            pay_before: (order.status == OrderStatus::Created).then_some(order.pay_before),
        }
    }
}

/// My order.
#[utoipa::path(
    get,
    path = "/api/v1/orders/{order}",
    operation_id = "readOrder",
    tag = "buyers",
    params(("order" = String, Path, description = "Order id", format = Uuid)),
    responses((status = 200, body = OrderView, description = "The order"), problems::Order),
    security(("bearer" = [])),
)]
pub async fn one(api: web::Data<Api>, path: web::Path<String>, request: HttpRequest) -> Result<HttpResponse, Problem> {
    let user = caller::identity(&api, &request)?.user;
    let id = path.parse::<OrderId>().map_err(|_| Problem::new(Code::OrderNotFound))?;
    Ok(HttpResponse::Ok().json(find(&api, &user, id).await?))
}

/// My latest order in this sale, queued ones included.
///
/// The question to ask after an unknown answer.
#[utoipa::path(
    get,
    path = "/api/v1/sales/{sale}/order",
    operation_id = "ownOrder",
    tag = "buyers",
    params(("sale" = String, Path, description = "Sale id", pattern = "^[1-9][0-9]{0,9}$")),
    responses((status = 200, body = OrderView, description = "The order"), problems::OwnOrder),
    security(("bearer" = [])),
)]
pub async fn own(api: web::Data<Api>, path: web::Path<String>, request: HttpRequest) -> Result<HttpResponse, Problem> {
    let user = caller::identity(&api, &request)?.user;
    let sale = match caller::sale(&api, &path) {
        Ok(sale) => sale,
        Err(no_such_sale) => return Err(not_heard_of(&api, path.parse().ok()).await?.unwrap_or(no_such_sale)),
    };
    let claim = claim(&api, Some(&sale), &user).await;
    if let Claim::Held { order, quantity } = claim {
        let view = held(&api, &user, order, quantity).await?;
        // A claim whose order was rejected must not hide the live order that it was rejected for.
        if view.status != OrderStatus::Rejected {
            return Ok(HttpResponse::Ok().json(view));
        }
    }
    let latest = api.ledger.latest_order(sale.id, &user).await.map_err(|error| fault("reading an order", &error))?;
    // A closed one is the latest only where Redis can prove that none is on its way behind it.
    let order = latest.filter(|order| order.status.is_live() || claim != Claim::Cold).ok_or_else(|| absent(&claim))?;
    Ok(HttpResponse::Ok().json(OrderView::from(order)))
}

/// The order with this id, if it is this user's.
pub async fn find(api: &Api, user: &UserId, id: OrderId) -> Result<OrderView, Problem> {
    let sale = id.sale().and_then(|sale| api.catalogue.get(sale));
    let is_known = sale.is_some();
    let claim = claim(api, sale.as_deref(), user).await;
    if let Claim::Held { order, quantity } = claim
        && order == id
    {
        return held(api, user, order, quantity).await;
    }
    let row = api.ledger.order(id).await.map_err(|error| fault("reading an order", &error))?;
    match row {
        Some(order) if order.user == *user => Ok(order.into()),
        Some(_) => Err(Problem::new(Code::OrderNotFound)),
        None if is_known => Err(absent(&claim)),
        None => Err(not_heard_of(api, id.sale()).await?.unwrap_or_else(|| absent(&claim))),
    }
}

/// The answer about a sale that another node opened a moment ago and that is not in this node's snapshot yet: Redis
/// was not asked for the right generation, so nothing is known. `None` if the sale is not on sale in PostgreSQL either.
async fn not_heard_of(api: &Api, sale: Option<SaleId>) -> Result<Option<Problem>, Problem> {
    let Some(sale) = sale else { return Ok(None) };
    let on_sale = api.catalogue.is_on_sale(sale).await.map_err(|error| fault("looking for a sale", &error))?;
    if on_sale {
        api.catalogue.request_refresh();
    }
    Ok(on_sale.then(|| Problem::unavailable().detail("this node has not heard of the sale yet: ask again")))
}

/// An order with a claim: the ledger knows how it stands, or it is still on its way there.
async fn held(api: &Api, user: &UserId, id: OrderId, quantity: u32) -> Result<OrderView, Problem> {
    match api.ledger.order(id).await {
        Ok(Some(order)) if order.user == *user => Ok(order.into()),
        Ok(Some(_)) => Err(Problem::new(Code::OrderNotFound)),
        Ok(None) => queued(id, quantity),
        // Its row may say created, cancelled or rejected: without a read nothing is known.
        Err(error) => Err(fault("reading an order", &error)),
    }
}

fn queued(id: OrderId, quantity: u32) -> Result<OrderView, Problem> {
    let sale_id = id.sale().ok_or_else(|| Problem::new(Code::OrderNotFound))?;
    Ok(OrderView {
        order_id: id,
        sale_id,
        quantity,
        status: OrderStatus::Queued,
        reason: None,
        amount_cents: None,
        created_at: None,
        pay_before: None,
    })
}

/// Without a sale in the catalogue there is nothing to ask Redis for.
async fn claim(api: &Api, sale: Option<&Sale>, user: &UserId) -> Claim {
    let Some(sale) = sale else {
        return Claim::None;
    };
    api.stock.claim(sale.id, user, sale.generation).await.unwrap_or_else(|error| {
        tracing::debug!(sale = %sale.id, %error, "no answer about a claim");
        Claim::Cold
    })
}

/// No row and no claim: not found only where Redis can prove that it would know.
fn absent(claim: &Claim) -> Problem {
    match claim {
        Claim::Cold => Problem::unavailable().detail("an order may be on its way: ask again"),
        Claim::None | Claim::Held { .. } => Problem::new(Code::OrderNotFound),
    }
}

/// A fault of a server behind this one, told as 503 and so counted. No warning: there would be one for each request
/// of each buyer, and the catalogue warns once when PostgreSQL is away.
pub fn fault(doing: &str, error: &dyn std::fmt::Display) -> Problem {
    tracing::debug!(doing, %error, "a server behind this one failed");
    Problem::unavailable()
}
