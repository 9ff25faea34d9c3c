//! What a buyer does with an order: pay it, or cancel it.
//!
//! Both answer with the order as it then stands, and both may be repeated. Only the ledger moves an order, so one that
//! is still on its way there cannot be moved yet: the buyer is told so and asks again, a moment later.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Deserialize;

use super::Api;
use super::caller::{self, Body};
use super::orders::{self, OrderView, fault};
use super::problem::{Code, Problem};
use super::problems;
use crate::domain::{Order, OrderId, OrderStatus, UserId};
use crate::ledger::Moved;
use crate::payment::{self, Settled, simulated};

/// A body that says nothing: least of all what is to be paid.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// Pay my order.
///
/// The simulated provider charges the order's amount, and the payment is settled. No body. A repeat answers the same. An
/// order that is still queued cannot be paid yet: 409 with Retry-After.
#[utoipa::path(
    post,
    path = "/api/v1/orders/{order}/pay",
    operation_id = "payOrder",
    tag = "buyers",
    params(("order" = String, Path, description = "Order id", format = Uuid)),
    responses((status = 200, body = OrderView, description = "The order"), problems::Move),
    security(("bearer" = [])),
)]
pub async fn pay(
    api: web::Data<Api>,
    path: web::Path<String>,
    request: HttpRequest,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let order = own_row(&api, &path, &request, body).await?;
    if order.status != OrderStatus::Created {
        return answer(order, OrderStatus::Paid);
    }
    let payment = simulated::charge(&order);
    let settled = payment::settle(&api.ledger, &payment).await.map_err(|error| fault("settling a payment", &error))?;
    match settled {
        // What comes back to the buyer was never taken: the provider is simulated.
        Settled::Kept(order) | Settled::Refund(order) => answer(order, OrderStatus::Paid),
        Settled::WrongAmount { .. } | Settled::UnknownOrder => {
            Err(fault("settling a payment", &"an order changed that cannot change"))
        }
    }
}

/// Cancel my unpaid order.
///
/// Its units are on sale again at once, and its buyer may buy again. No body. A repeat answers the same. An order that is
/// still queued cannot be cancelled yet: 409 with Retry-After.
#[utoipa::path(
    post,
    path = "/api/v1/orders/{order}/cancel",
    operation_id = "cancelOrder",
    tag = "buyers",
    params(("order" = String, Path, description = "Order id", format = Uuid)),
    responses((status = 200, body = OrderView, description = "The order"), problems::Move),
    security(("bearer" = [])),
)]
pub async fn cancel(
    api: web::Data<Api>,
    path: web::Path<String>,
    request: HttpRequest,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let order = own_row(&api, &path, &request, body).await?;
    let closed = api.closing.close(order.id, OrderStatus::Cancelled).await;
    match closed.map_err(|error| fault("cancelling an order", &error))? {
        Moved::Now(order) | Moved::Already(order) | Moved::Illegal(order) => answer(order, OrderStatus::Cancelled),
        Moved::Unknown => Err(fault("cancelling an order", &"a row that was there is gone")),
    }
}

/// The caller's order, once it has a row.
async fn own_row(api: &Api, path: &str, request: &HttpRequest, body: Body) -> Result<Order, Problem> {
    let body = caller::read(body)?;
    let user = caller::identity(api, request)?.user;
    caller::json::<Nothing>(request, &body)?;
    let id = path.parse::<OrderId>().map_err(|_| Problem::new(Code::OrderNotFound))?;
    loop {
        // The ledger first: without it nothing can be moved, and that is a fault, not a refusal.
        if let Some(order) = api.ledger.order(id).await.map_err(|error| fault("reading an order", &error))? {
            return owned(order, &user);
        }
        let view = orders::find(api, &user, id).await?;
        if view.status == OrderStatus::Queued {
            return Err(illegal(id, OrderStatus::Queued).retry_after(1));
        }
        // The row was inserted between the two reads, and the next read finds it.
    }
}

fn owned(order: Order, user: &UserId) -> Result<Order, Problem> {
    if order.user == *user { Ok(order) } else { Err(Problem::new(Code::OrderNotFound)) }
}

/// 200 with the order if it has the status that the caller wanted, even if another request moved it.
fn answer(order: Order, wanted: OrderStatus) -> Result<HttpResponse, Problem> {
    if order.status == wanted {
        Ok(HttpResponse::Ok().json(OrderView::from(order)))
    } else {
        Err(illegal(order.id, order.status))
    }
}

fn illegal(order: OrderId, status: OrderStatus) -> Problem {
    Problem::new(Code::IllegalTransition)
        .detail(format!("the order is {status}"))
        .with("order_id", order.to_string())
        .with("order_status", status.as_str())
}
