//! What a process without the HTTP role shows to operators: that it lives, and its metrics.

use std::net::SocketAddr;

use actix_web::{App, HttpResponse, HttpServer, web};
use anyhow::Context;
use prometheus::Registry;

use crate::shutdown::{Part, Stop};
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
    let server = server.run();
    let (token, handle) = (stop.token(Part::Http), server.handle());
    stop.spawn(Part::Http, async move {
        let stopping = async {
            token.cancelled().await;
            handle.stop(true).await;
        };
        let (served, ()) = futures_util::join!(server, stopping);
        if let Err(error) = served {
            tracing::error!(%error, "the metrics cannot be read any more");
        }
    });
    tracing::info!(%address, "metrics");
    Ok(address)
}

async fn answer(registry: Registry) -> HttpResponse {
    match telemetry::render(&registry) {
        Ok(text) => HttpResponse::Ok().content_type(telemetry::CONTENT_TYPE).body(text),
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "writing the metrics");
            HttpResponse::InternalServerError().finish()
        }
    }
}
