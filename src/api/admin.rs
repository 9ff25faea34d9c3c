//! The operator's side.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::serde::rfc3339;

use super::Api;
use super::caller::{self, Body};
use super::problem::{Code, Problem};
use super::problems;
use super::sales::SaleView;
use crate::catalogue::{NewSale, SaleChange};
use crate::domain::{InvalidId, SaleId, SaleState, UserId};
use crate::operator;
use crate::promises::Finding;

/// A sale to be created, as a draft.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSale {
    #[schema(min_length = 1)]
    pub name: String,
    /// Price of one unit, in cents.
    #[schema(minimum = 0)]
    pub price_cents: i64,
    /// Units.
    #[schema(minimum = 1)]
    pub stock: u32,
    /// Units of these that are sold only while Redis cannot be reached; the share of the settings if absent.
    pub reserve: Option<u32>,
    /// Most units that one order may hold.
    #[serde(default = "one")]
    #[schema(minimum = 1, default = 1)]
    pub max_quantity: u32,
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub starts_at: OffsetDateTime,
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub ends_at: OffsetDateTime,
    /// Whether a purchase must carry a token earned by a challenge.
    #[serde(default)]
    pub challenge: bool,
}

const fn one() -> u32 {
    1
}

/// What is to change. Absent members stay as they are.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeSale {
    pub state: Option<SaleState>,
    #[serde(default, with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub starts_at: Option<OffsetDateTime>,
    #[serde(default, with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ends_at: Option<OffsetDateTime>,
}

/// Units to add to a sale.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddStock {
    /// Units, at least 1.
    #[schema(minimum = 1)]
    pub add: u32,
}

/// Why a user is blocked.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// 1 to 200 characters.
    #[schema(min_length = 1, max_length = 200)]
    pub reason: String,
}

/// Every promise, with its figures.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Audit {
    #[schema(value_type = String)]
    pub sale_id: SaleId,
    pub promises: Vec<Finding>,
}

/// Create a sale, as a draft.
#[utoipa::path(
    post,
    path = "/admin/v1/sales",
    operation_id = "createSale",
    tag = "operators",
    request_body = CreateSale,
    responses((status = 201, body = SaleView, description = "The sale"), problems::Create),
    security(("bearer" = [])),
)]
pub async fn create(api: web::Data<Api>, request: HttpRequest, body: Body) -> Result<HttpResponse, Problem> {
    let body = caller::read(body)?;
    caller::operator(&api, &request)?;
    let asked: CreateSale = caller::json_required(&request, &body)?;
    let new = NewSale {
        name: asked.name,
        price_cents: asked.price_cents,
        total: asked.stock,
        reserve: asked.reserve,
        max_quantity: asked.max_quantity,
        starts_at: asked.starts_at,
        ends_at: asked.ends_at,
        challenge: asked.challenge,
    };
    let sale = api.operator.create(new).await.map_err(problem)?;
    // Without a Location: a draft is nowhere to be read until it is opened.
    Ok(HttpResponse::Created().json(SaleView::new(&api, &sale)))
}

/// Open, pause or end a sale, or change its times.
///
/// Safe to repeat: a repeat completes what a crash left half done.
#[utoipa::path(
    patch,
    path = "/admin/v1/sales/{sale}",
    operation_id = "changeSale",
    tag = "operators",
    params(("sale" = String, Path, description = "Sale id", pattern = "^[1-9][0-9]{0,9}$")),
    request_body = ChangeSale,
    responses((status = 200, body = SaleView, description = "The sale"), problems::Change),
    security(("bearer" = [])),
)]
pub async fn change(
    api: web::Data<Api>,
    path: web::Path<String>,
    request: HttpRequest,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let body = caller::read(body)?;
    caller::operator(&api, &request)?;
    let id = sale_id(&path)?;
    let asked: ChangeSale = caller::json_required(&request, &body)?;
    let change = SaleChange { state: asked.state, starts_at: asked.starts_at, ends_at: asked.ends_at };
    let sale = api.operator.change(id, change).await.map_err(problem)?;
    Ok(HttpResponse::Ok().json(SaleView::new(&api, &sale)))
}

/// Add units, while selling or not.
#[utoipa::path(
    post,
    path = "/admin/v1/sales/{sale}/stock",
    operation_id = "addStock",
    tag = "operators",
    params(("sale" = String, Path, description = "Sale id", pattern = "^[1-9][0-9]{0,9}$"), ("Idempotency-Key" = String, Header, min_length = 1, max_length = 64, description = "Makes a repeat harmless")),
    request_body = AddStock,
    responses((status = 200, body = SaleView, description = "The sale"), problems::AddStock),
    security(("bearer" = [])),
)]
pub async fn add_stock(
    api: web::Data<Api>,
    path: web::Path<String>,
    request: HttpRequest,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let body = caller::read(body)?;
    caller::operator(&api, &request)?;
    let id = sale_id(&path)?;
    let asked: AddStock = caller::json_required(&request, &body)?;
    if asked.add == 0 {
        return Err(Problem::invalid("add must be at least 1"));
    }
    let operation = caller::idempotency_key(&request)?
        .ok_or_else(|| Problem::invalid("an Idempotency-Key is needed: a repeat must not add twice"))?;
    let sale = api.operator.add_stock(id, asked.add, operation).await.map_err(problem)?;
    Ok(HttpResponse::Ok().json(SaleView::new(&api, &sale)))
}

/// Check every promise of a sale.
#[utoipa::path(
    get,
    path = "/admin/v1/sales/{sale}/audit",
    operation_id = "auditSale",
    tag = "operators",
    params(("sale" = String, Path, description = "Sale id", pattern = "^[1-9][0-9]{0,9}$")),
    responses((status = 200, body = Audit, description = "The promises, with figures"), problems::Audit),
    security(("bearer" = [])),
)]
pub async fn audit(
    api: web::Data<Api>,
    path: web::Path<String>,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    caller::operator(&api, &request)?;
    let id = sale_id(&path)?;
    let promises = api.operator.audit(id).await.map_err(problem)?;
    Ok(HttpResponse::Ok().json(Audit { sale_id: id, promises }))
}

/// Keep a user from buying.
#[utoipa::path(
    put,
    path = "/admin/v1/blacklist/{user}",
    operation_id = "block",
    tag = "operators",
    params(("user" = String, Path, description = "User id", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    request_body = Option<Block>,
    responses((status = 204, description = "Blocked; nodes know within a second"), problems::Block),
    security(("bearer" = [])),
)]
pub async fn block(
    api: web::Data<Api>,
    path: web::Path<String>,
    request: HttpRequest,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let body = caller::read(body)?;
    caller::operator(&api, &request)?;
    let user = user_id(&path)?;
    let asked: Block = caller::json(&request, &body)?.unwrap_or_else(|| Block { reason: "not given".to_owned() });
    api.operator.block(&user, &asked.reason).await.map_err(problem)?;
    Ok(HttpResponse::NoContent().finish())
}

/// Let a user buy again.
#[utoipa::path(
    delete,
    path = "/admin/v1/blacklist/{user}",
    operation_id = "unblock",
    tag = "operators",
    params(("user" = String, Path, description = "User id", pattern = "^[A-Za-z0-9_-]{1,64}$")),
    responses((status = 204, description = "Not blocked"), problems::Unblock),
    security(("bearer" = [])),
)]
pub async fn unblock(
    api: web::Data<Api>,
    path: web::Path<String>,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    caller::operator(&api, &request)?;
    api.operator.unblock(&user_id(&path)?).await.map_err(problem)?;
    Ok(HttpResponse::NoContent().finish())
}

fn sale_id(text: &str) -> Result<SaleId, Problem> {
    text.parse().map_err(|_| Problem::new(Code::SaleNotFound))
}

fn user_id(text: &str) -> Result<UserId, Problem> {
    text.parse().map_err(|error: InvalidId| Problem::invalid(error.to_string()))
}

fn problem(error: operator::Error) -> Problem {
    match error {
        operator::Error::NoSuchSale => Problem::new(Code::SaleNotFound),
        operator::Error::IllegalMove(_) => Problem::new(Code::IllegalTransition).detail(error.to_string()),
        operator::Error::Invalid(reason) => Problem::invalid(reason),
        operator::Error::OperationReused => Problem::new(Code::IdempotencyKeyReused),
        operator::Error::NotOnSale(_)
        | operator::Error::NotOpened(_)
        | operator::Error::Corrupt(_)
        | operator::Error::Unavailable(_) => {
            tracing::warn!(%error, "an operator's command failed");
            Problem::unavailable().detail(error.to_string())
        }
    }
}
