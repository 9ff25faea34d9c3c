//! Server-sent events of one order: its state now and at every change, until the state is final.

use std::time::Duration;

use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, web};
use futures_util::stream;
use tokio::sync::Semaphore;

use super::Api;
use super::caller;
use super::orders::{self, OrderView};
use super::problem::{Code, Problem};
use crate::domain::{OrderId, UserId};

/// Looks of all streams at a time. Each takes a connection to the ledger, and the rest of the pool is for others: with
/// more streams than this can serve, news comes later, and nobody else waits.
static LOOKS: Semaphore = Semaphore::const_new(2);
/// How often the order is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// After how many looks without a change a comment keeps the connection open.
const COMMENT_AFTER: u32 = 30;

struct Watching {
    api: web::Data<Api>,
    user: UserId,
    id: OrderId,
    last: Option<OrderView>,
}

pub async fn stream(
    api: web::Data<Api>,
    path: web::Path<String>,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let user = caller::identity(&api, &request)?.user;
    let id = path.parse::<OrderId>().map_err(|_| Problem::new(Code::OrderNotFound))?;
    // A stranger learns here, before the stream begins, that there is nothing to see.
    orders::find(&api, &user, id).await?;
    let watching = Watching { api, user, id, last: None };
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
    async fn look(&self) -> Result<OrderView, Problem> {
        // Never closed; without a permit it would only be less polite.
        let _turn = LOOKS.acquire().await;
        orders::find(&self.api, &self.user, self.id).await
    }

    /// The next event, and the watch unless that was the last one.
    async fn next(mut self) -> (Bytes, Option<Self>) {
        for look in 0..COMMENT_AFTER {
            // The first look is at once; a fault is not an event, the next look may succeed.
            if look > 0 || self.last.is_some() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            let Ok(order) = self.look().await else {
                continue;
            };
            if self.last.as_ref() != Some(&order) {
                let ended = order.status.is_final() || !self.api.stop.is_ready();
                let data = serde_json::to_string(&order).unwrap_or_default();
                let event = Bytes::from(format!("event: order\ndata: {data}\n\n"));
                self.last = Some(order);
                return (event, (!ended).then_some(self));
            }
            if !self.api.stop.is_ready() {
                return (Bytes::from_static(b": the node is stopping\n\n"), None);
            }
        }
        (Bytes::from_static(b": nothing new\n\n"), Some(self))
    }
}
