//! Server-sent events of one order: its state now and at every change, until the state is final.
//!
//! A stream costs a connection and a poll each second, so a node has few of them and none for ever: beyond
//! `http.max_event_streams` it answers 503, and after `http.event_stream_s`, or when the node stops, the stream ends
//! and the browser connects again by itself, here or elsewhere.

use std::sync::Arc;
use std::time::Duration;

use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, web};
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use super::Api;
use super::caller;
use super::orders::{self, OrderView};
use super::problem::{Code, Problem};
use super::problems;
use crate::config;
use crate::domain::{OrderId, UserId};

/// Polls of all streams at a time. Each takes a connection to the ledger, and the rest of the pool is for others: with
/// more streams than this can serve, events come later, and no other request waits.
static POLLS: Semaphore = Semaphore::const_new(2);
/// How often the order is read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// After how many polls without a change a comment keeps the connection open.
const COMMENT_AFTER: u32 = 15;

/// The streams that a node may have.
pub struct Streams {
    free: Arc<Semaphore>,
    lifetime: Duration,
}

impl Streams {
    pub fn new(settings: &config::Http) -> Self {
        let free = Arc::new(Semaphore::new(settings.max_event_streams.min(Semaphore::MAX_PERMITS)));
        Self { free, lifetime: Duration::from_secs(settings.event_stream_s) }
    }
}

struct Watching {
    api: web::Data<Api>,
    user: UserId,
    id: OrderId,
    /// What was seen before the stream began, until it is told.
    first: Option<OrderView>,
    last: Option<OrderView>,
    until: Instant,
    _place: OwnedSemaphorePermit,
}

/// My order, now and at every change, until its state is final.
#[utoipa::path(
    get,
    path = "/api/v1/orders/{order}/events",
    operation_id = "watchOrder",
    tag = "buyers",
    params(("order" = String, Path, description = "Order id", format = Uuid)),
    responses((status = 200, body = String, content_type = "text/event-stream", description = "Events named order; the data is an Order"), problems::Order),
    security(("bearer" = [])),
)]
pub async fn stream(
    api: web::Data<Api>,
    path: web::Path<String>,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let user = caller::identity(&api, &request)?.user;
    let id = path.parse::<OrderId>().map_err(|_| Problem::new(Code::OrderNotFound))?;
    let place = Arc::clone(&api.streams.free).try_acquire_owned();
    let place = place.map_err(|_| Problem::unavailable().detail("too many streams on this node"))?;
    // A stranger learns here, before the stream begins, that there is nothing to see.
    let first = Some(orders::find(&api, &user, id).await?);
    let until = Instant::now() + api.streams.lifetime;
    let watching = Watching { api, user, id, first, last: None, until, _place: place };
    let events = stream::unfold(Some(watching), |watching| async move {
        let (event, next) = watching?.next().await;
        Some((Ok::<_, actix_web::Error>(event), next))
    });
    Ok(HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header(("cache-control", "no-store"))
        .streaming(events))
}

impl Watching {
    async fn poll(&self) -> Result<OrderView, Problem> {
        // Never closed; without a permit it would only be less polite.
        let _turn = POLLS.acquire().await;
        orders::find(&self.api, &self.user, self.id).await
    }

    /// The next event, and the watch unless that was the last one.
    async fn next(mut self) -> (Bytes, Option<Self>) {
        if let Some(order) = self.first.take() {
            return self.tell(order);
        }
        for _ in 0..COMMENT_AFTER {
            sleep(POLL_INTERVAL).await;
            if !self.api.stop.is_ready() || Instant::now() >= self.until {
                return (Bytes::from_static(b": connect again\n\n"), None);
            }
            // A fault is not an event: the next poll may succeed.
            let Ok(order) = self.poll().await else {
                continue;
            };
            if self.last.as_ref() != Some(&order) {
                return self.tell(order);
            }
        }
        (Bytes::from_static(b": nothing new\n\n"), Some(self))
    }

    fn tell(mut self, order: OrderView) -> (Bytes, Option<Self>) {
        let ended = order.status.is_final();
        let data = serde_json::to_string(&order).unwrap_or_default();
        let event = Bytes::from(format!("event: order\ndata: {data}\n\n"));
        self.last = Some(order);
        (event, (!ended).then_some(self))
    }
}
