//! Step 1: the HTTP edge. Routes, identity and JSON; no business rule.
//!
//! In: a request. Decided: is it well-formed, and who asks? Guaranteed: a call that takes a body reads it (at most
//! 1 KiB) before it refuses anything, so that a refusal never costs the connection; every error is problem+json with a
//! stable code; a fault is never dressed as a refusal.

mod admin;

mod caller;

mod events;

mod measure;

mod moves;

mod openapi;

mod health;

mod orders;

mod payments;

pub mod problem;

mod problems;

mod purchases;

mod sales;

use std::sync::Arc;

use actix_web::guard::GuardContext;
use actix_web::http::Method;
use actix_web::{Resource, web};
use prometheus::Registry;
use time::OffsetDateTime;

use crate::admission::Admission;
use crate::admission::identity::Verifier;
use crate::catalogue::Catalogue;
use crate::closing::Closing;
use crate::ledger::Ledger;
use crate::operator::Operator;
use crate::payment::Signature;
use crate::purchasing::Purchasing;
use crate::shutdown::Stop;
use crate::sold_out::{Flags, UnconfirmedBuyers};
use crate::stock::Stock;
use crate::telemetry::http::UNMATCHED;

pub use events::Streams;
pub use measure::Measured;
pub use openapi::document as openapi;

/// Longest body that is read, in bytes.
pub const MAX_BODY: usize = 1024;

/// What the handlers need. One for the whole node: built outside the worker factory and shared.
pub struct Api {
    pub verifier: Verifier,
    pub admission: Arc<Admission>,
    pub catalogue: Catalogue,
    pub flags: Flags,
    pub unconfirmed: UnconfirmedBuyers,
    pub purchasing: Purchasing,
    pub streams: Streams,
    pub stock: Stock,
    pub ledger: Ledger,
    pub operator: Operator,
    pub closing: Closing,
    /// `None`: no provider calls back here.
    pub callbacks: Option<Signature>,
    pub registry: Registry,
    pub stop: Stop,
    pub clock: fn() -> OffsetDateTime,
    /// 64 random bits for an order id.
    pub random: fn() -> u64,
}

/// Adds every route to an application whose data holds an [`Api`].
pub fn routes(config: &mut web::ServiceConfig, measured: &Measured) {
    let resource = |name, path, handlers: fn(Resource) -> Resource| measured.resource(name, path, handlers);
    let buyers = web::scope("/api/v1")
        .default_service(web::to(health::no_such_route))
        .service(resource("purchase", "/sales/{sale}/purchases", |r| r.post(purchases::purchase)))
        .service(resource("sales", "/sales", |r| r.get(sales::list)))
        .service(resource("sale", "/sales/{sale}", |r| r.get(sales::one)))
        .service(resource("challenge", "/sales/{sale}/challenge", |r| r.get(sales::challenge)))
        .service(resource("own_order", "/sales/{sale}/order", |r| r.get(orders::own)))
        .service(resource("order", "/orders/{order}", |r| r.get(orders::one)))
        .service(resource("order_events", "/orders/{order}/events", |r| r.get(events::stream)))
        .service(resource("pay", "/orders/{order}/pay", |r| r.post(moves::pay)))
        .service(resource("cancel", "/orders/{order}/cancel", |r| r.post(moves::cancel)));
    let operators = web::scope("/admin/v1")
        .default_service(web::to(health::no_such_route))
        .service(resource("admin_sales", "/sales", |r| r.post(admin::create)))
        .service(resource("admin_sale", "/sales/{sale}", |r| r.patch(admin::change)))
        .service(resource("admin_stock", "/sales/{sale}/stock", |r| r.post(admin::add_stock)))
        .service(resource("admin_audit", "/sales/{sale}/audit", |r| r.get(admin::audit)))
        .service(resource("admin_blacklist", "/blacklist/{user}", |r| r.put(admin::block).delete(admin::unblock)));
    config
        .app_data(web::PayloadConfig::new(MAX_BODY))
        // The same handler as the resource `purchase`. The router tries its regular expressions in turn, and for a buyer
        // who gets "sold out" that would cost more than any other step. Decision 19 has the figures.
        .service(measured.shortcut("purchase", purchases::SALES, is_purchase, web::post().to(purchases::purchase)))
        .service(buyers)
        .service(operators)
        .service(resource("payment_callback", "/callbacks/v1/payments", |r| r.post(payments::callback)))
        .service(resource("livez", "/livez", |r| r.get(health::livez)))
        .service(resource("readyz", "/readyz", |r| r.get(health::readyz)))
        .service(resource("metrics", "/metrics", |r| r.get(health::metrics)))
        .service(resource("openapi", "/openapi.json", |r| r.get(openapi::json)))
        .service(resource("docs", "/docs", |r| r.get(openapi::page)))
        .service(resource(UNMATCHED, "/{any:.*}", |r| r.route(web::to(health::no_such_route))));
}

fn is_purchase(request: &GuardContext<'_>) -> bool {
    request.head().method == Method::POST && purchases::sale_in(request.head().uri.path()).is_some()
}
