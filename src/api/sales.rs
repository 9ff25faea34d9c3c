//! What is on sale, and the challenge that some sales ask for.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use time::OffsetDateTime;
use time::serde::rfc3339;

use super::problem::Problem;
use super::problems;
use super::{Api, caller, orders};
use crate::domain::{Sale, SaleId, SaleState};

/// A sale as buyers see it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Sale)]
pub struct SaleView {
    #[schema(value_type = String)]
    pub id: SaleId,
    pub name: String,
    pub state: SaleState,
    /// Price of one unit, in cents.
    pub price_cents: i64,
    /// Most units that one order may hold.
    pub max_quantity: u32,
    /// Units put on sale.
    pub total: u32,
    /// Units left; may lag by a second. `null` while this node does not know.
    pub remaining: Option<u32>,
    /// Whether a purchase needs a solved challenge.
    pub challenge: bool,
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub starts_at: OffsetDateTime,
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub ends_at: OffsetDateTime,
    /// The clock to count down by.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub server_time: OffsetDateTime,
}

impl SaleView {
    pub fn new(api: &Api, sale: &Sale) -> Self {
        let remaining = match sale.state {
            SaleState::Draft => Some(sale.total),
            _ => api.flags.of(sale.id).remaining().map(|units| units.min(sale.total)),
        };
        Self {
            id: sale.id,
            name: sale.name.clone(),
            state: sale.state,
            price_cents: sale.price_cents,
            max_quantity: sale.max_quantity,
            total: sale.total,
            remaining,
            challenge: sale.challenge,
            starts_at: sale.starts_at,
            ends_at: sale.ends_at,
            server_time: (api.clock)(),
        }
    }
}

/// A list of sales.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SaleList {
    pub sales: Vec<SaleView>,
}

/// Sales that were opened.
#[utoipa::path(
    get,
    path = "/api/v1/sales",
    operation_id = "listSales",
    tag = "buyers",
    responses((status = 200, body = SaleList, description = "Sales")),
)]
pub async fn list(api: web::Data<Api>) -> HttpResponse {
    let visible = api.catalogue.all().into_iter().filter(|sale| sale.state != SaleState::Draft);
    HttpResponse::Ok().json(SaleList { sales: visible.map(|sale| SaleView::new(&api, &sale)).collect() })
}

/// One sale, with the clock to count down by.
#[utoipa::path(
    get,
    path = "/api/v1/sales/{sale}",
    operation_id = "readSale",
    tag = "buyers",
    params(("sale" = String, Path, description = "Sale id", pattern = "^[1-9][0-9]{0,9}$")),
    responses((status = 200, body = SaleView, description = "The sale"), problems::Sale),
)]
pub async fn one(api: web::Data<Api>, path: web::Path<String>) -> Result<HttpResponse, Problem> {
    let sale = caller::sale(&api, &path)?;
    Ok(HttpResponse::Ok().json(SaleView::new(&api, &sale)))
}

/// A challenge for one user and one sale.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Challenge)]
pub struct ChallengeView {
    /// Find a NONCE so that SHA-256 of `CHALLENGE:NONCE` begins with `bits` zero bits, and send `CHALLENGE:NONCE`
    /// as the header `X-Purchase-Token` of the purchase.
    pub challenge: String,
    pub bits: u8,
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: OffsetDateTime,
}

/// A challenge to earn a purchase token by.
#[utoipa::path(
    get,
    path = "/api/v1/sales/{sale}/challenge",
    operation_id = "challenge",
    tag = "buyers",
    params(("sale" = String, Path, description = "Sale id", pattern = "^[1-9][0-9]{0,9}$")),
    responses((status = 200, body = ChallengeView, description = "The challenge"), problems::Challenge),
    security(("bearer" = [])),
)]
pub async fn challenge(
    api: web::Data<Api>,
    path: web::Path<String>,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let user = caller::identity(&api, &request)?.user;
    let sale = caller::sale(&api, &path)?;
    let challenges = api.admission.challenges();
    let issued = challenges
        .issue(sale.id, &user, caller::seconds(&api))
        .map_err(|error| orders::fault("issuing a challenge", &error))?;
    let expires_at = i64::try_from(issued.expires_at).ok().and_then(|at| OffsetDateTime::from_unix_timestamp(at).ok());
    Ok(HttpResponse::Ok().json(ChallengeView {
        challenge: issued.challenge,
        bits: issued.bits,
        expires_at: expires_at.ok_or_else(Problem::unavailable)?,
    }))
}
