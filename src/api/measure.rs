//! Counts and times every answer, by route.

use std::sync::Arc;
use std::time::Instant;

use actix_web::body::MessageBody;
use actix_web::dev::{HttpServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::middleware::{Next, from_fn};
use actix_web::{Error, Resource, web};

use super::operations;
use super::problem::Problematic;
use crate::telemetry::http::{Http, Route};

/// The metrics of all routes.
#[derive(Clone)]
pub struct Measured(Http);

impl Measured {
    pub fn register(registry: &prometheus::Registry) -> Result<Self, prometheus::Error> {
        Http::register(registry).map(Self)
    }

    /// A resource under `path` whose answers count as those of `name`. Other methods than its own are refused.
    pub(super) fn resource(
        &self,
        name: &'static str,
        path: &str,
        routes: fn(Resource) -> Resource,
    ) -> impl HttpServiceFactory + use<> {
        let route = Arc::new(self.0.route(name));
        let other = web::to(operations::no_such_method);
        routes(web::resource(path)).default_service(other).wrap(from_fn(move |request, next| {
            let route = Arc::clone(&route);
            async move { answer(&route, request, next).await }
        }))
    }
}

async fn answer<B: MessageBody>(
    route: &Route,
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<B>, Error> {
    let _in_flight = route.enter();
    let start = Instant::now();
    let response = next.call(request).await?;
    let code = response.response().extensions().get::<Problematic>().map(|problem| problem.0.name());
    route.answered(response.status().as_u16(), code, start.elapsed());
    Ok(response)
}
