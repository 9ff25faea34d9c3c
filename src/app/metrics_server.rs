//! What a process without the HTTP role shows to operators: that it lives, and its metrics.

use std::net::SocketAddr;

use actix_web::{App, HttpResponse, HttpServer, web};
use anyhow::Context;
use prometheus::Registry;

use super::http::answer_until;
use crate::shutdown::Stop;
use crate::telemetry;

/// Binds and answers `/livez` and `/metrics` until the stop. Answers with the address.
pub fn start(bind: SocketAddr, registry: Registry, stop: &Stop) -> anyhow::Result<SocketAddr> {
    let application = move || {
        let registry = registry.clone();
        App::new()
            .route("/livez", web::get().to(|| async { HttpResponse::Ok().body("ok\n") }))
            .route("/metrics", web::get().to(move || answer(registry.clone())))
    };
    let server = HttpServer::new(application).workers(1).disable_signals().bind(bind);
    let server = server.with_context(|| format!("cannot listen on {bind}"))?;
    let address = server.addrs().first().copied().context("no address was bound")?;
    answer_until(stop, server.run());
    tracing::info!(%address, "metrics");
    Ok(address)
}

async fn answer(registry: Registry) -> HttpResponse {
    match telemetry::scrape(&registry).await {
        Ok(text) => HttpResponse::Ok().content_type(telemetry::CONTENT_TYPE).body(text),
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the metrics cannot be written");
            HttpResponse::InternalServerError().finish()
        }
    }
}
