//! Health and metrics.

use actix_web::{HttpResponse, web};

use super::problem::{Code, Problem};
use super::problems;
use super::{Api, orders};
use crate::telemetry;

/// The process runs.
#[utoipa::path(
    get,
    path = "/livez",
    operation_id = "livez",
    tag = "operations",
    responses((status = 200, body = String, content_type = "text/plain", description = "ok")),
)]
pub async fn livez() -> HttpResponse {
    HttpResponse::Ok().body("ok\n")
}

/// The node takes requests. Off from the first moment of a stop. A Redis or database outage does not turn it off:
/// it hits every node alike, and the answers say so one by one.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readyz",
    tag = "operations",
    responses((status = 200, body = String, content_type = "text/plain", description = "ready"), problems::Health),
)]
pub async fn readyz(api: web::Data<Api>) -> HttpResponse {
    if api.stop.is_ready() { HttpResponse::Ok().body("ready\n") } else { Problem::unavailable().response() }
}

/// Prometheus metrics.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    tag = "operations",
    responses((status = 200, body = String, content_type = "text/plain", description = "Text format 0.0.4"), problems::Health),
)]
pub async fn metrics(api: web::Data<Api>) -> Result<HttpResponse, Problem> {
    let text = telemetry::scrape(&api.registry).await.map_err(|error| orders::fault("writing the metrics", &error))?;
    Ok(HttpResponse::Ok().content_type(telemetry::CONTENT_TYPE).body(text))
}

/// Everything else.
pub async fn no_such_route() -> HttpResponse {
    Problem::new(Code::NotFound).response()
}
