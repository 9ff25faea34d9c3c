//! The HTTP server of a node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::Server;
use actix_web::{App, HttpServer, web};
use anyhow::Context;
use prometheus::Registry;
use time::OffsetDateTime;

use super::Service;
use crate::admission::Admission;
use crate::admission::identity::Verifier;
use crate::api::{self, Api, Measured, Streams};
use crate::closing::Closing;
use crate::config::Settings;
use crate::payment::Signature;
use crate::purchasing::Purchasing;
use crate::shutdown::{Part, Stop};
use crate::sold_out::{Flags, UnconfirmedBuyers, Watch};

/// Connections that may wait to be accepted: a flash sale begins with everybody connecting at once.
pub const BACKLOG: u32 = 8192;
/// Connections that one worker keeps at once.
pub const MAX_CONNECTIONS_PER_WORKER: usize = 50_000;
/// How long an idle connection is kept.
pub const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// How long a request's head may take to arrive.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Binds, starts the workers and what keeps their local state fresh. Answers with the address.
pub fn start(settings: &Settings, service: &Service, registry: Registry, stop: &Stop) -> anyhow::Result<SocketAddr> {
    let verifier = Verifier::new(&settings.auth.jwt_secret).context("auth.jwt_secret")?;
    let admission = Admission::new(&settings.admission, &settings.http, &settings.auth.jwt_secret, &registry)?;
    let measured = Measured::register(&registry)?;
    let callbacks = Signature::new(&settings.payment.callback_secret)?;
    let flags = Flags::default();
    let Service { stock, catalogue, ledger, operator, .. } = service;
    let purchasing = Purchasing::new(&settings.fallback, stock.clone(), ledger.clone(), &registry)?;
    let watch = Watch::new(&settings.redis, flags.clone(), stock.clone(), catalogue.clone())?;

    let (token, sweeping) = (stop.token(Part::Jobs), Arc::clone(&admission));
    stop.spawn(Part::Jobs, async move { sweeping.run(token).await });
    let token = stop.token(Part::Jobs);
    stop.spawn(Part::Jobs, async move { watch.run(token).await });

    // Outside the factory: every worker must share the limits, the flags and the connections.
    let api = web::Data::new(Api {
        verifier,
        admission,
        catalogue: catalogue.clone(),
        flags,
        unconfirmed: UnconfirmedBuyers::default(),
        purchasing,
        streams: Streams::new(&settings.http),
        stock: stock.clone(),
        ledger: ledger.clone(),
        operator: operator.clone(),
        closing: Closing::new(ledger.clone(), stock.clone()),
        callbacks,
        registry,
        stop: stop.clone(),
        clock: OffsetDateTime::now_utc,
        random: rand::random,
    });
    let application = move || {
        let measured = measured.clone();
        App::new().app_data(api.clone()).configure(|config| api::routes(config, &measured))
    };
    let mut server = HttpServer::new(application)
        .backlog(BACKLOG)
        .max_connections(MAX_CONNECTIONS_PER_WORKER)
        .keep_alive(KEEP_ALIVE)
        .client_request_timeout(HEAD_TIMEOUT)
        .shutdown_timeout(settings.http.shutdown_timeout_s)
        .disable_signals();
    if settings.http.workers > 0 {
        server = server.workers(settings.http.workers);
    }
    let server = server.bind(settings.http.bind).with_context(|| format!("cannot listen on {}", settings.http.bind))?;
    let address = server.addrs().first().copied().context("no address was bound")?;
    answer_until(stop, server.run());
    tracing::info!(%address, "listening");
    Ok(address)
}

/// Lets a server answer until the stop, and then finish what it has begun.
pub(super) fn answer_until(stop: &Stop, server: Server) {
    let (token, handle) = (stop.token(Part::Http), server.handle());
    stop.spawn(Part::Http, async move {
        let stopping = async {
            token.cancelled().await;
            handle.stop(true).await;
        };
        let (served, ()) = futures_util::join!(server, stopping);
        if let Err(error) = served {
            tracing::error!(%error, "the HTTP server broke down");
        }
    });
}
