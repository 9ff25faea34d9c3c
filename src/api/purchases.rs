//! The purchase, from the request to the answer.

use actix_web::http::header::LOCATION;
use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use time::format_description::well_known::Rfc3339;

use super::Api;
use super::caller::{self, Body};
use super::problem::{self, Code, Problem};
use super::problems;
use crate::admission::{AdmissionDenied, Caller, Proof};
use crate::domain::{Accepted, OrderId, OrderStatus, Outcome, Purchase, Refusal, RequestKey, Sale, SaleId, UserId};

const PURCHASE_TOKEN: &str = "x-purchase-token";

/// What a buyer asks for. No body asks for one unit.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PurchaseRequest {
    /// Units, at least 1.
    #[serde(default = "one")]
    #[schema(minimum = 1, default = 1)]
    pub quantity: u32,
}

const fn one() -> u32 {
    1
}

/// An order that was accepted and is on its way to the ledger.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct QueuedOrder {
    #[schema(value_type = String, format = Uuid)]
    pub order_id: OrderId,
    #[schema(value_type = String)]
    pub sale_id: SaleId,
    /// Units.
    pub quantity: u32,
    /// Always `queued`.
    pub status: OrderStatus,
}

/// Where the purchases of every sale are.
pub const SALES: &str = "/api/v1/sales";

/// The sale in `/api/v1/sales/{sale}/purchases`, if this is such a path and its sale a plain number.
pub fn sale_in(path: &str) -> Option<&str> {
    let sale = path.strip_prefix(SALES)?.strip_prefix('/')?.strip_suffix("/purchases")?;
    (!sale.is_empty() && sale.bytes().all(|byte| byte.is_ascii_digit())).then_some(sale)
}

/// Buy.
///
/// 202 means that the order is durable and yours: it becomes a row within seconds. The body may be left out and then
/// asks for one unit.
#[utoipa::path(
    post,
    path = "/api/v1/sales/{sale}/purchases",
    operation_id = "purchase",
    tag = "buyers",
    params(("sale" = String, Path, description = "Sale id", pattern = "^[1-9][0-9]{0,9}$"), ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 64, description = "1 to 64 visible ASCII characters. The same key of the same user gets the same order back, also after that order was closed"), ("X-Purchase-Token" = Option<String>, Header, description = "`CHALLENGE:NONCE`, where the sale asks for it")),
    request_body = Option<PurchaseRequest>,
    responses((status = 202, body = QueuedOrder, description = "Accepted", headers(("Location" = String, description = "Where the order can be read"))), problems::Purchase),
    security(("bearer" = [])),
)]
pub async fn purchase(api: web::Data<Api>, request: HttpRequest, body: Body) -> Result<HttpResponse, Problem> {
    let body = caller::read(body)?;
    let user = caller::identity(&api, &request)?.user;
    let sale = sale_in(request.path()).unwrap_or_else(|| request.match_info().query("sale"));
    let sale = caller::sale(&api, sale)?;
    let quantity = quantity(&request, &body)?;
    let key = caller::idempotency_key(&request)?;

    admit(&api, &request, &sale, &user)?;

    // A request that may be a replay of an accepted one is answered by the stock, not by the flag.
    if api.flags.is_raised(sale.id) && key.is_none() && !api.unconfirmed.contains(sale.id, &user) {
        return Ok(problem::sold_out());
    }

    let purchase = Purchase {
        order: order_id(&api, &sale, &user, key),
        quantity,
        generation: sale.generation,
        request: key.map(|key| request_key(key, quantity)),
        user: user.clone(),
    };
    // Boxed, or every loser would carry the room that a winner's way through stock and reserve takes.
    let answer = Box::pin(api.purchasing.purchase(&sale, purchase, || minted(&api, &sale))).await;
    if let Some(update) = answer.update {
        api.flags.of(sale.id).observe(update);
    }
    respond(&api, &sale, &user, answer.outcome)
}

fn quantity(request: &HttpRequest, body: &[u8]) -> Result<u32, Problem> {
    let asked = caller::json::<PurchaseRequest>(request, body)?;
    match asked.map_or(1, |asked| asked.quantity) {
        0 => Err(Problem::invalid("quantity must be at least 1")),
        quantity => Ok(quantity),
    }
}

fn admit(api: &Api, request: &HttpRequest, sale: &Sale, user: &UserId) -> Result<(), Problem> {
    let headers = request.headers();
    let forwarded = headers.get_all(&caller::FORWARDED_FOR).map(|value| value.to_str().unwrap_or(""));
    let caller = Caller {
        user,
        address: api.admission.client_address(caller::peer(request), forwarded),
        blocked: api.catalogue.is_blocked(user),
        proof: sale.challenge.then(|| Proof {
            sale: sale.id,
            token: headers.get(PURCHASE_TOKEN).and_then(|value| value.to_str().ok()),
            now: caller::seconds(api),
        }),
    };
    api.admission.admit(&caller).map_err(|refused| match refused {
        AdmissionDenied::RateLimited { retry_after } => {
            let seconds = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
            Problem::new(Code::RateLimited).retry_after(seconds.max(1))
        }
        AdmissionDenied::Blocked => Problem::new(Code::Blocked),
        AdmissionDenied::ChallengeRequired(reason) => {
            let reason = reason.map_or_else(|| "there is no purchase token".to_owned(), |bad| bad.to_string());
            Problem::new(Code::ChallengeRequired)
                .detail(format!("{reason}: solve the challenge at /api/v1/sales/{}/challenge", sale.id))
        }
    })
}

fn order_id(api: &Api, sale: &Sale, user: &UserId, key: Option<&str>) -> OrderId {
    match key {
        Some(key) => OrderId::derived(sale.id, user, key, sale.generation),
        None => minted(api, sale),
    }
}

fn minted(api: &Api, sale: &Sale) -> OrderId {
    let seconds = u32::try_from(caller::seconds(api)).unwrap_or(u32::MAX);
    OrderId::mint(sale.id, seconds, (api.random)())
}

fn request_key(key: &str, quantity: u32) -> RequestKey {
    let digest = Sha256::digest(format!("quantity={quantity}"));
    let fingerprint = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    RequestKey { key: key.to_owned(), fingerprint }
}

fn respond(api: &Api, sale: &Sale, user: &UserId, outcome: Outcome) -> Result<HttpResponse, Problem> {
    if matches!(outcome, Outcome::Accepted(_) | Outcome::Refused(_)) {
        // Whatever became of an earlier try, the stock has said now how this buyer stands.
        api.unconfirmed.remove(sale.id, user);
    }
    match outcome {
        Outcome::Accepted(accepted) => Ok(accepted_response(sale.id, accepted)),
        Outcome::Refused(Refusal::SoldOut) => Ok(problem::sold_out()),
        Outcome::Refused(refusal) => Err(refusal_problem(refusal)),
        Outcome::Cold => {
            // Perhaps the sale has a newer generation than this node knows.
            api.catalogue.request_refresh();
            Err(Problem::unavailable())
        }
        // The catalogue has no part in that: an outage of Redis is not to become one of PostgreSQL.
        Outcome::NotTried => Err(Problem::unavailable()),
        Outcome::Unknown(order) => {
            api.unconfirmed.add(sale.id, user);
            Err(Problem::unavailable()
                .detail("whether this order was accepted is not known yet: ask for it")
                .with("order_id", order.to_string()))
        }
    }
}

fn accepted_response(sale_id: SaleId, accepted: Accepted) -> HttpResponse {
    let Accepted { order, quantity, replayed: _ } = accepted;
    HttpResponse::Accepted().insert_header((LOCATION, format!("/api/v1/orders/{order}"))).json(QueuedOrder {
        order_id: order,
        sale_id,
        quantity,
        status: OrderStatus::Queued,
    })
}

fn refusal_problem(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::SoldOut => Problem::new(Code::SoldOut),
        Refusal::NotEnoughLeft { remaining } => Problem::new(Code::NotEnoughLeft).with("remaining", remaining),
        Refusal::AlreadyPurchased { order } => Problem::new(Code::AlreadyPurchased)
            .with("order_id", order.to_string())
            .location(&format!("/api/v1/orders/{order}")),
        Refusal::NotStarted { starts_at } => {
            Problem::new(Code::SaleNotStarted).with("starts_at", starts_at.format(&Rfc3339).unwrap_or_default())
        }
        Refusal::Ended => Problem::new(Code::SaleEnded),
        Refusal::Paused => Problem::new(Code::SalePaused),
        Refusal::TooMany { max_quantity } => {
            Problem::invalid(format!("an order of this sale holds at most {max_quantity} units"))
                .with("max_quantity", max_quantity)
        }
        Refusal::KeyReused => Problem::new(Code::IdempotencyKeyReused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_purchase_is_told_by_its_whole_path() {
        assert_eq!(sale_in("/api/v1/sales/7/purchases"), Some("7"));
        for other in [
            "/api/v1/sales/7",
            "/api/v1/sales//purchases",
            "/api/v1/sales/7/8/purchases",
            "/api/v1/sales7/purchases",
            "/api/v1/sales/%37/purchases",
            "/7/purchases",
            "",
        ] {
            assert_eq!(sale_in(other), None, "{other}");
        }
    }
}
