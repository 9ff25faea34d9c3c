//! Health, metrics and the description of the API.

use actix_web::{HttpRequest, HttpResponse, web};

use super::Api;
use super::problem::{Code, Problem};

/// The process runs.
pub async fn livez() -> HttpResponse {
    HttpResponse::Ok().body("ok\n")
}

/// The node takes requests. Off from the first moment of a stop. A Redis or database outage does not turn it off:
/// it hits every node alike, and the answers say so one by one.
pub async fn readyz(api: web::Data<Api>) -> HttpResponse {
    if api.is_ready() { HttpResponse::Ok().body("ready\n") } else { Problem::unavailable().response() }
}

pub async fn metrics(api: web::Data<Api>) -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(api.telemetry.render())
}

pub async fn openapi() -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(super::openapi())
}

/// A page that shows the description; made of nothing but itself.
pub async fn docs() -> HttpResponse {
    HttpResponse::Ok().content_type("text/html; charset=utf-8").body(include_str!("docs.html"))
}

/// Everything else.
pub async fn no_such_route(request: HttpRequest) -> HttpResponse {
    Problem::new(Code::NotFound).detail(format!("no such route: {}", request.method())).response()
}
