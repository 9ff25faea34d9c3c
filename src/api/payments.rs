//! The callback of a payment provider. It is not a buyer, so it shows no token: it signs what it says.

use actix_web::http::header::HeaderName;
use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::serde::rfc3339;

use super::Api;
use super::caller::{self, Body};
use super::orders::fault;
use super::problem::{Code, Problem};
use super::problems;
use crate::domain::{OrderId, OrderStatus};
use crate::payment::{self, Payment, Settled};

static SIGNATURE: HeaderName = HeaderName::from_static("x-payment-signature");

/// A payment as its provider reports it. Members that we do not know are the provider's own business.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = Payment)]
pub struct Callback {
    /// 1 to 64 visible ASCII characters.
    #[schema(min_length = 1, max_length = 64)]
    pub payment_id: String,
    #[schema(value_type = String, format = Uuid)]
    pub order_id: OrderId,
    pub amount_cents: i64,
    /// By the provider's clock. Decides nothing.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub paid_at: OffsetDateTime,
}

/// What the provider is to do with the money.
#[derive(Clone, Copy, Debug, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PaymentResult {
    Kept,
    Refund,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Settled)]
pub struct Answer {
    pub result: PaymentResult,
    #[schema(value_type = String, format = Uuid)]
    pub order_id: OrderId,
    /// How the order stands.
    pub status: OrderStatus,
}

/// Report a payment.
///
/// Signed over the body as it was sent. `refund` asks the provider to give the money back: the order was closed or
/// rejected meanwhile, or is paid by another payment. The same report again gets the same answer. Without
/// `payment.callback_secret` this address does not exist.
#[utoipa::path(
    post,
    path = "/callbacks/v1/payments",
    operation_id = "reportPayment",
    tag = "providers",
    params(("X-Payment-Signature" = String, Header, description = "base64url of HMAC-SHA256 over the body")),
    request_body = Callback,
    responses((status = 200, body = Answer, description = "Settled"), problems::Callback),
)]
pub async fn callback(api: web::Data<Api>, request: HttpRequest, body: Body) -> Result<HttpResponse, Problem> {
    let body = caller::read(body)?;
    // Without a secret no signature can be checked, so this address does not exist.
    let signature = api.callbacks.as_ref().ok_or_else(|| Problem::new(Code::NotFound))?;
    let shown = caller::single_header(request.headers(), &SIGNATURE)?.unwrap_or_default();
    if !signature.is_genuine(&body, shown) {
        return Err(Problem::new(Code::Unauthorized).detail("the signature does not fit the body"));
    }
    let said: Callback = caller::json_required(&request, &body)?;
    if !(1..=64).contains(&said.payment_id.len()) || !said.payment_id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Problem::invalid("a payment_id is 1 to 64 visible ASCII characters"));
    }
    let payment = Payment { id: said.payment_id, order: said.order_id, amount_cents: said.amount_cents };
    let settled = payment::settle(&api.ledger, &payment).await.map_err(|error| fault("settling a payment", &error))?;
    let (result, order) = match settled {
        Settled::Kept(order) => (PaymentResult::Kept, order),
        Settled::Refund(order) => (PaymentResult::Refund, order),
        Settled::WrongAmount { due } => {
            tracing::warn!(payment = payment.id, order = %payment.order, paid = payment.amount_cents, due,
                "a payment is not the order's amount");
            return Err(Problem::new(Code::AmountMismatch).with("amount_cents", due));
        }
        Settled::UnknownOrder => return Err(Problem::new(Code::OrderNotFound)),
    };
    tracing::info!(payment = payment.id, order = %order.id, ?result, paid_at = %said.paid_at, "a payment is settled");
    Ok(HttpResponse::Ok().json(Answer { result, order_id: order.id, status: order.status }))
}
