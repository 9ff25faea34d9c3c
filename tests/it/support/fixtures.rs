//! Plain values and small steps that tests of all stages build on: a sale, a purchase, an order, a connection.

use std::sync::atomic::{AtomicI32, Ordering};

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use seckill::catalogue::NewSale;
use seckill::config;
use seckill::domain::{OrderId, OrderMessage, Purchase, Sale, SaleId, SaleState};
use seckill::stock::keys;
use secrecy::ExposeSecret;
use time::{Duration, OffsetDateTime};

use super::service::PATIENCE;

/// Tests share a Redis; each takes a sale of its own.
static NEXT_SALE: AtomicI32 = AtomicI32::new(1);

/// A sale of one unit for the catalogue, open from a minute ago until in an hour, in times that PostgreSQL and Redis both
/// can tell.
pub fn new_sale() -> NewSale {
    let now = OffsetDateTime::now_utc().replace_millisecond(0).expect("a time");
    NewSale {
        name: "a sale".to_owned(),
        price_cents: 9_900,
        max_quantity: 2,
        starts_at: now - Duration::MINUTE,
        ends_at: now + Duration::HOUR,
        challenge: false,
        total: 1,
        reserve: Some(0),
    }
}

/// A sale of `total` units that no catalogue knows, open from an hour ago until in an hour, at most three per order.
pub fn sale(total: u32) -> Sale {
    let id = SaleId::new(NEXT_SALE.fetch_add(1, Ordering::Relaxed)).expect("a sale id");
    let now = OffsetDateTime::now_utc();
    Sale {
        id,
        name: "a sale".to_owned(),
        price_cents: 100,
        max_quantity: 3,
        starts_at: now - Duration::HOUR,
        ends_at: now + Duration::HOUR,
        state: SaleState::Open,
        challenge: false,
        revision: 1,
        generation: 1,
        total,
        reserve: 0,
    }
}

/// One unit, as a node asks for it at the generation that it knows.
pub fn purchase(sale: &Sale, user: &str) -> Purchase {
    Purchase {
        order: OrderId::mint(sale.id, 1, rand::random()),
        user: user.parse().expect("a user id"),
        quantity: 1,
        generation: sale.generation,
        request: None,
    }
}

/// An order of one unit, accepted in generation 1, as the relay sends it to Kafka.
pub fn order_message(id: OrderId, user: &str) -> OrderMessage {
    OrderMessage {
        id,
        sale: id.sale().expect("an order of a sale"),
        user: user.parse().expect("a user id"),
        quantity: 1,
        generation: 1,
        accepted_ms: 1_700_000_000_000,
        request: None,
    }
}

/// A connection of the test's own. It waits: with every write on disk a loaded machine takes its time.
pub async fn redis(settings: &config::Redis) -> MultiplexedConnection {
    let client = redis::Client::open(settings.url.expose_secret()).expect("a Redis URL");
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    client.get_multiplexed_async_connection_with_config(&config).await.expect("Redis answers")
}

/// Removes what stands in the outbox, as a relay would.
pub async fn drain_outbox(redis: &mut MultiplexedConnection, sale: SaleId) {
    let trim = redis::cmd("XTRIM").arg(keys::outbox(sale)).arg("MAXLEN").arg(0).to_owned();
    trim.exec_async(redis).await.expect("a stream");
}
