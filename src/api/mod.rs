//! Step 1: the HTTP edge. Routes, identity and JSON; no business rule.
//!
//! In: a request. Decided: is it well-formed, and who asks? Guaranteed: the body is read (at most 1 KiB) before
//! anything is refused, so that a refusal never costs the connection; every error is problem+json with a stable
//! code; a fault is never dressed as a refusal.

mod admin;

mod caller;

mod events;

mod openapi;

mod operations;

mod orders;

pub mod problem;

mod purchases;

mod sales;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix_web::web;
use time::OffsetDateTime;

use crate::admission::Admission;
use crate::admission::identity::Verifier;
use crate::catalogue::Catalogue;
use crate::ledger::Ledger;
use crate::operator::Operator;
use crate::sold_out::{Doubtful, Flags};
use crate::stock::Stock;
use crate::telemetry::metrics::Telemetry;

pub use openapi::document as openapi;

/// Longest body that is read, in bytes.
pub const MAX_BODY: usize = 1024;

/// What the handlers need. One for the whole node: built outside the worker factory and shared.
pub struct Api {
    pub verifier: Verifier,
    pub admission: Admission,
    pub catalogue: Catalogue,
    pub flags: Flags,
    pub doubtful: Doubtful,
    pub stock: Stock,
    pub ledger: Ledger,
    pub operator: Operator,
    pub telemetry: Telemetry,
    pub ready: Arc<AtomicBool>,
    pub clock: fn() -> OffsetDateTime,
    /// 64 random bits for an order id.
    pub chance: fn() -> u64,
}

impl Api {
    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }
}

/// Adds every route to an application whose data holds an [`Api`].
pub fn routes(config: &mut web::ServiceConfig) {
    config
        .app_data(web::PayloadConfig::new(MAX_BODY))
        .service(
            web::scope("/api/v1")
                .route("/sales", web::get().to(sales::list))
                .route("/sales/{sale}", web::get().to(sales::one))
                .route("/sales/{sale}/purchases", web::post().to(purchases::purchase))
                .route("/sales/{sale}/challenge", web::get().to(sales::challenge))
                .route("/sales/{sale}/order", web::get().to(orders::own))
                .route("/orders/{order}", web::get().to(orders::one))
                .route("/orders/{order}/events", web::get().to(events::stream)),
        )
        .service(
            web::scope("/admin/v1")
                .route("/sales", web::post().to(admin::create))
                .route("/sales/{sale}", web::patch().to(admin::change))
                .route("/sales/{sale}/stock", web::post().to(admin::add_stock))
                .route("/sales/{sale}/audit", web::get().to(admin::audit))
                .route("/blacklist/{user}", web::put().to(admin::block))
                .route("/blacklist/{user}", web::delete().to(admin::unblock)),
        )
        .route("/livez", web::get().to(operations::livez))
        .route("/readyz", web::get().to(operations::readyz))
        .route("/metrics", web::get().to(operations::metrics))
        .route("/openapi.json", web::get().to(operations::openapi))
        .route("/docs", web::get().to(operations::docs))
        .default_service(web::to(operations::no_such_route));
}
