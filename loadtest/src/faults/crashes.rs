//! A role that crashes at an exact point: between two effects, where a crash is most dangerous.
//!
//! From outside, only the requests of a process to the stores are visible. So a crash is defined by a request: either
//! the server never got it, or it executed it and the response was lost. The proxy pauses the connection at that
//! request, the process gets `kill -9`, and is started again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use drive::client::Caller;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use hyper::{Method, Uri};
use sandbox::{BreakAt, PausedConnection, Proxy, Sandbox, Timing};
use seckill::domain::OrderStatus;
use tokio::task::JoinHandle;

use Timing::{After, Before};

use super::fault::{Fault, Figures};
use super::round::{Round, SaleSpec, TIMEOUT, ms};
use super::testbed::TestBed;

const PURCHASE: BreakAt = BreakAt::Script(include_str!("../../../lua/purchase.lua"));
const RELEASE: BreakAt = BreakAt::Script(include_str!("../../../lua/release.lua"));
const STOCK: BreakAt = BreakAt::Script(include_str!("../../../lua/stock.lua"));
const FREEZE: BreakAt = BreakAt::Script(include_str!("../../../lua/freeze.lua"));
pub const WARM: BreakAt = BreakAt::Script(include_str!("../../../lua/warm.lua"));
const ACK: BreakAt = BreakAt::Script(include_str!("../../../lua/ack.lua"));
const READ: BreakAt = BreakAt::Command("XREADGROUP");
/// The statement by which a batch becomes rows.
const WRITE: BreakAt = BreakAt::Statement("CROSS JOIN unnest($6::uuid[]");
/// The transaction that raises the generation.
const RAISE: BreakAt = BreakAt::CommitOf("SET generation = GREATEST");
/// The transaction that closes overdue orders.
const EXPIRE: BreakAt = BreakAt::CommitOf("SET status = 'expired'");

/// Long enough for the reconciler to come back, and for what it frees to be bought.
const LONG: SaleSpec = SaleSpec { buyers: 1_800, window: Duration::from_secs(12), ..SaleSpec::WITH_RESERVE };

macro_rules! points {
    ($($name:literal, $about:literal, $part:literal, $route:ident, $spot:expr, $moment:ident, $provoke:ident, $sale:expr, $quick:literal;)*) => {
        pub const FAULTS: &[Fault] = &[$(
            Fault {
                quick: $quick,
                sale: $sale,
                ..Fault::new($name, $about, |testbed, round| {
                    let point = Point { part: $part, route: Route::$route, spot: $spot, moment: $moment };
                    Box::pin(crash(testbed, round, point, |g, r| Box::pin($provoke(g, r))))
                })
            },
        )*];
    };
}

points! {
    "serve-crash-before-the-script", "a node dies with purchases that Redis never got",
        "node-1", Redis, PURCHASE, Before, nothing, SaleSpec::USUAL, false;
    "serve-crash-after-the-script", "a node dies with purchases that Redis accepted and nobody got an answer for",
        "node-1", Redis, PURCHASE, After, nothing, SaleSpec::USUAL, true;
    "serve-crash-between-closing-and-release", "a node dies when an order is cancelled in the ledger and not in Redis",
        "node-1", Redis, RELEASE, Before, cancel, SaleSpec::PLENTY, false;
    "serve-crash-between-stock-and-total", "a node dies when stock is added in the ledger and not in Redis",
        "node-1", Redis, STOCK, Before, add_stock, SaleSpec::USUAL, false;
    "relay-crash-with-orders-read", "the relay dies with orders that it has read and not published",
        "relay", Redis, READ, After, nothing, SaleSpec::USUAL, false;
    "relay-crash-with-orders-published", "the relay dies with orders that are published and still in the outbox",
        "relay", Redis, ACK, Before, nothing, SaleSpec::USUAL, false;
    "relay-crash-after-the-removal", "the relay dies after the outbox has removed what it published",
        "relay", Redis, ACK, After, nothing, SaleSpec::USUAL, false;
    "consumer-crash-before-the-rows", "the consumer dies with orders that it has read and not written",
        "consume", Postgres, WRITE, Before, nothing, SaleSpec::USUAL, false;
    "consumer-crash-before-the-offsets", "the consumer dies with rows written and offsets not committed",
        "consume", Postgres, WRITE, After, nothing, SaleSpec::USUAL, true;
    "reconciler-crash-after-the-freeze", "the reconciler dies after it has frozen the sale",
        "reconcile", SecondRedis, FREEZE, After, restart_redis, SaleSpec::USUAL, false;
    "reconciler-crash-before-the-generation", "the reconciler dies when it is about to raise the generation",
        "reconcile", Postgres, RAISE, Before, restart_redis, SaleSpec::USUAL, false;
    "reconciler-crash-between-generation-and-warm", "the reconciler dies with a generation that Redis does not know",
        "reconcile", SecondRedis, WARM, Before, restart_redis, SaleSpec::USUAL, true;
    "reconciler-crash-after-the-warm", "the reconciler dies when the sale sells again, while it still holds the lock",
        "reconcile", SecondRedis, WARM, After, restart_redis, SaleSpec::USUAL, false;
    "reconciler-crash-before-the-expiry", "the reconciler dies when it is about to close overdue orders",
        "reconcile", Postgres, EXPIRE, Before, make_overdue, SaleSpec::PLENTY, false;
    "reconciler-crash-between-expiry-and-release", "the reconciler dies when orders are closed in the ledger and not in Redis",
        "reconcile", SecondRedis, RELEASE, Before, make_overdue, SaleSpec::PLENTY, false;
    "reconciler-crash-between-move-and-total", "the reconciler dies when the reserve is released in the ledger and not in Redis",
        "reconcile", SecondRedis, STOCK, Before, nothing, LONG, false;
}

/// Where a role crashes.
struct Point {
    part: &'static str,
    route: Route,
    spot: BreakAt,
    moment: Timing,
}

/// The connection on which the request comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Route {
    Redis,
    /// The reconciler's own proxy to Redis.
    SecondRedis,
    Postgres,
}

impl Route {
    fn proxy(self, sandbox: &Sandbox) -> anyhow::Result<&Proxy> {
        match self {
            Self::Redis => sandbox.redis().proxy(),
            Self::SecondRedis => sandbox.redis().second_proxy(),
            Self::Postgres => sandbox.postgres().proxy(),
        }
    }
}

/// Makes a role reach its point, or does nothing where it gets there by itself. Returns a task that has to be awaited.
type Provoke =
    for<'a> fn(&'a TestBed, &'a Round) -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<Pending>> + 'a>>;
type Pending = Option<JoinHandle<()>>;

/// Pauses the next connection that reaches the point.
pub async fn hold(
    testbed: &TestBed,
    round: &Round,
    (route, spot, moment): (Route, BreakAt, Timing),
    provoke: Provoke,
) -> anyhow::Result<(PausedConnection, Pending)> {
    let proxy = route.proxy(testbed.sandbox())?;
    let set = proxy.breakpoint(spot, moment);
    if route == Route::Postgres {
        // A statement's text is only sent when it is prepared, once for each connection.
        proxy.cut().await;
        proxy.heal().await;
    }
    let pending = provoke(testbed, round).await?;
    Ok((set.hit(TIMEOUT).await.context("the point was not reached")?, pending))
}

async fn crash(testbed: &mut TestBed, round: &Round, point: Point, provoke: Provoke) -> anyhow::Result<Figures> {
    let (held, pending) = hold(testbed, round, (point.route, point.spot, point.moment), provoke).await?;
    testbed.cluster.part(point.part)?.kill()?;
    drop(held);
    let begun = Instant::now();
    if let Some(pending) = pending {
        pending.await?;
    }
    testbed.cluster.restart(point.part)?;
    testbed.cluster.wait_until_ready().await?;
    round.until_sold(5).await?;
    Ok(Figures::from_iter([("selling_again_ms".to_owned(), ms(begun.elapsed()))]))
}

#[allow(clippy::unused_async, reason = "same type as the other functions that provoke a crash")]
async fn nothing(_: &TestBed, _: &Round) -> anyhow::Result<Pending> {
    Ok(None)
}

pub async fn restart_redis(testbed: &TestBed, _: &Round) -> anyhow::Result<Pending> {
    testbed.sandbox().redis().kill()?;
    testbed.sandbox().redis().restart().await?;
    Ok(None)
}

async fn make_overdue(testbed: &TestBed, round: &Round) -> anyhow::Result<Pending> {
    let overdue = "UPDATE orders SET pay_before = clock_timestamp() WHERE sale_id = $1 AND status = 'created'";
    sqlx::query(overdue).bind(round.sale.get()).execute(testbed.ledger.pool()).await?;
    Ok(None)
}

/// A buyer asks the node that is going to crash to cancel, and gets no answer.
async fn cancel(testbed: &TestBed, round: &Round) -> anyhow::Result<Pending> {
    let ledger = testbed.ledger.view(round.sale).await?.context("the ledger has no such sale")?;
    let order = ledger.orders.iter().find(|order| order.status == OrderStatus::Created).context("no order yet")?;
    let caller = Caller { authorization: Some(testbed.tokens.header(&order.user, false)?), ..Caller::default() };
    let path: Uri = format!("/api/v1/orders/{}/cancel", order.id).parse()?;
    Ok(Some(ask_the_node(testbed, path, caller, Bytes::new())))
}

/// The operator asks the node that is going to crash for more stock, and gets no answer.
async fn add_stock(testbed: &TestBed, round: &Round) -> anyhow::Result<Pending> {
    let path: Uri = format!("/admin/v1/sales/{}/stock", round.sale).parse()?;
    let operator = Caller {
        authorization: Some(testbed.tokens.header(&"operator".parse()?, true)?),
        idempotency_key: Some(HeaderValue::from_static("more")),
        ..Caller::default()
    };
    Ok(Some(ask_the_node(testbed, path, operator, Bytes::from_static(br#"{"add":40}"#))))
}

fn ask_the_node(testbed: &TestBed, path: Uri, caller: Caller, body: Bytes) -> JoinHandle<()> {
    let client = Arc::clone(&testbed.client);
    tokio::spawn(async move {
        // The node crashes before it answers.
        let _ = client.send(1, Method::POST, &path, &caller, body).await;
    })
}
