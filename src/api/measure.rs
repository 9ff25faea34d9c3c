//! Counts and times every answer, by route.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{HttpServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::guard::{GuardContext, fn_guard};
use actix_web::http::StatusCode;
use actix_web::http::header::ALLOW;
use actix_web::middleware::{Next, from_fn};
use actix_web::{Error, Resource, web};
use prometheus::IntCounter;

use super::problem::{self, Code, Problem};
use crate::telemetry::http::{Http, Route};

/// The metrics of all routes.
#[derive(Clone)]
pub struct Measured(Http);

impl Measured {
    pub fn register(registry: &prometheus::Registry) -> Result<Self, prometheus::Error> {
        Http::registered(registry).map(Self)
    }

    /// A resource under `path` whose answers count as those of `name`. Other methods than its own are refused.
    pub(super) fn resource(
        &self,
        name: &'static str,
        path: &str,
        routes: fn(Resource) -> Resource,
    ) -> impl HttpServiceFactory + use<> {
        let meter = self.meter(name);
        routes(web::resource(path)).wrap(from_fn(move |request, next| {
            let meter = Arc::clone(&meter);
            async move { answer(&meter, request, next).await }
        }))
    }

    /// A route below `prefix` for requests that are told by `guard` alone. They count as those of `name`.
    pub(super) fn shortcut(
        &self,
        name: &'static str,
        prefix: &str,
        guard: fn(&GuardContext<'_>) -> bool,
        route: actix_web::Route,
    ) -> impl HttpServiceFactory + use<> {
        let meter = self.meter(name);
        web::scope(prefix).guard(fn_guard(guard)).default_service(route).wrap(from_fn(move |request, next| {
            let meter = Arc::clone(&meter);
            async move { answer(&meter, request, next).await }
        }))
    }

    fn meter(&self, name: &'static str) -> Arc<Meter> {
        Arc::new(Meter { route: self.0.route(name), problems: Default::default() })
    }
}

/// The metrics of one route. A counter appears with its first answer: most routes never give most codes.
struct Meter {
    route: Route,
    problems: [OnceLock<IntCounter>; Code::ALL.len()],
}

impl Meter {
    fn problem(&self, code: Code) -> &IntCounter {
        self.problems[code as usize].get_or_init(|| self.route.counter(code.status().as_u16(), code.name()))
    }
}

async fn answer<B: MessageBody>(
    meter: &Meter,
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, Error> {
    let _in_flight = meter.route.enter();
    let start = Instant::now();
    let response = next.call(request).await?;
    let code = problem::code_of(response.response());
    let (code, response) = match (code, response.status()) {
        (None, StatusCode::METHOD_NOT_ALLOWED) => (Some(Code::MethodNotAllowed), other_method(response)),
        _ => (code, response.map_into_left_body()),
    };
    meter.route.answered(response.status().as_u16(), code.map(|code| meter.problem(code)), start.elapsed());
    Ok(response)
}

/// actix knows which methods a route takes and says so in an answer without a body; here it gets its problem.
fn other_method<B>(response: ServiceResponse<B>) -> ServiceResponse<EitherBody<B>> {
    let problem = Problem::new(Code::MethodNotAllowed)
        .detail(format!("{} does not work here", response.request().method()))
        .allow(response.headers().get(ALLOW).cloned());
    response.into_response(problem.response()).map_into_right_body()
}
