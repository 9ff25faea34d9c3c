//! A database of its own for each test, sales in it, and messages for them.

use std::collections::HashSet;
use std::str::FromStr;
use std::time::Duration;

use sandbox::{Proxy, Sandbox};
use seckill::catalogue::{Catalogue, NewSale};
use seckill::config;
use seckill::domain::{OrderId, OrderMessage, OrderStatus, Pool, RequestKey, SaleId, UserId};
use seckill::ledger::{self, Ledger};
use seckill::promises::LedgerView;
use secrecy::ExposeSecret;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgPool};

use crate::support::fixtures::{new_sale, order_message};
use crate::support::servers::shared_settings;

pub const PAY_WITHIN: Duration = Duration::from_secs(900);

/// Price of one unit in every sale here, in cents.
pub const PRICE: i64 = 250;

pub struct World {
    pub ledger: Ledger,
    pub catalogue: Catalogue,
    /// Connections apart from the ledger's, for looking on and for getting in the way.
    pub outside: PgPool,
    settings: config::Postgres,
    sandbox: &'static Sandbox,
}

impl World {
    /// An empty, migrated database for the test of this name.
    pub async fn new(name: &str) -> Self {
        let sandbox = sandbox::shared().await.unwrap();
        let mut settings = shared_settings(&format!("ledger_{name}")).await.postgres;
        // More than the recorders of any test, so that they meet in the database and not at the pool.
        settings.max_connections = 20;
        // Twenty new connections at once take a loaded machine longer than a buyer would be left waiting.
        settings.acquire_timeout_ms = 10_000;
        let ledger = Ledger::connect(&settings, PAY_WITHIN).await.unwrap();
        ledger::migrate(ledger.pool()).await.unwrap();
        let catalogue = Catalogue::load(ledger.pool().clone(), Duration::from_secs(3600)).await.unwrap();
        let url = settings.url.expose_secret().to_owned();
        let outside = PgPool::connect(&url).await.unwrap();
        Self { ledger, catalogue, outside, settings, sandbox }
    }

    /// A ledger in another process, as far as PostgreSQL can tell.
    pub async fn another_ledger(&self) -> Ledger {
        Ledger::connect(&self.settings, PAY_WITHIN).await.unwrap()
    }

    /// One whose statements are ended by the server after this time, and their waits for a lock after half of it.
    pub async fn another_ledger_with_limit(&self, statement_timeout_ms: u64) -> Ledger {
        let settings = config::Postgres { statement_timeout_ms, ..self.settings.clone() };
        Ledger::connect(&settings, PAY_WITHIN).await.unwrap()
    }

    /// The same through the proxy of the server, of one connection; and the proxy.
    pub async fn another_ledger_with_limit_behind_proxy(&self, statement_timeout_ms: u64) -> (Ledger, &Proxy) {
        let proxy = self.sandbox.postgres().proxy().unwrap();
        let direct = PgConnectOptions::from_str(self.settings.url.expose_secret()).unwrap();
        let url = direct.port(proxy.port()).to_url_lossy().to_string().into();
        let settings = config::Postgres { url, statement_timeout_ms, max_connections: 1, ..self.settings.clone() };
        (Ledger::connect(&settings, PAY_WITHIN).await.unwrap(), proxy)
    }

    /// A sale of `units` at generation 1.
    pub async fn sale(&self, units: u32) -> SaleId {
        self.sale_with(units, 0).await
    }

    /// A sale of `units`, so many of them in reserve, at generation 1.
    pub async fn sale_with(&self, units: u32, reserve: u32) -> SaleId {
        let new = NewSale { price_cents: PRICE, max_quantity: 10, total: units, reserve: Some(reserve), ..new_sale() };
        let sale = self.catalogue.create(new).await.unwrap();
        assert_eq!(self.ledger.open_generation(sale.id, 0, None).await.unwrap().generation, 1);
        sale.id
    }

    /// The sale now, after checking that its books balance.
    pub async fn view(&self, sale: SaleId) -> LedgerView {
        let view = self.ledger.view(sale).await.unwrap().unwrap();
        assert_balanced(&view);
        view
    }

    pub async fn available(&self, sale: SaleId) -> u32 {
        self.ledger.stock(sale).await.unwrap().unwrap().available
    }

    pub async fn status(&self, id: OrderId) -> OrderStatus {
        self.ledger.order(id).await.unwrap().unwrap().status
    }

    /// Runs statements that no part of the service would.
    pub async fn meddle(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&self.outside).await.unwrap();
    }

    /// Returns when `sessions` of them wait for a lock in this database.
    pub async fn until_waiting(&self, sessions: i64) {
        let waiting = "SELECT count(*) >= $1 FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        self.until(waiting, sessions).await;
    }

    /// Ends a ledger's sessions. Only then has PostgreSQL counted all that they did.
    pub async fn until_left(&self, ledger: &Ledger) {
        ledger.pool().close().await;
        let left = "SELECT count(*) <= $1 FROM pg_stat_activity
                    WHERE datname = current_database() AND application_name = 'seckill'";
        self.until(left, 0).await;
    }

    async fn until(&self, condition: &'static str, figure: i64) {
        let patience = tokio::time::Instant::now() + Duration::from_secs(10);
        while !sqlx::query_scalar::<_, bool>(condition).bind(figure).fetch_one(&self.outside).await.unwrap() {
            assert!(tokio::time::Instant::now() < patience, "in vain: {condition}, {figure}");
        }
    }
}

/// `ledger_conserved` and `one_per_user`.
pub fn assert_balanced(view: &LedgerView) {
    let live: Vec<_> = view.orders.iter().filter(|order| order.status.is_live()).collect();
    let units = |pool: Option<Pool>| -> i64 {
        let counted = live.iter().filter(|order| pool.is_none_or(|pool| order.pool == pool));
        counted.map(|order| i64::from(order.quantity)).sum()
    };
    assert_eq!(view.total, view.available + view.reserve + units(None), "total");
    assert_eq!(view.redis_total, view.available + units(Some(Pool::Redis)), "redis_total");
    let buyers: HashSet<_> = live.iter().map(|order| &order.user).collect();
    assert_eq!(buyers.len(), live.len(), "one live order per user");
}

/// How many orders of the sale have this status.
pub fn count(view: &LedgerView, status: OrderStatus) -> usize {
    view.orders.iter().filter(|order| order.status == status).count()
}

pub fn user(number: usize) -> UserId {
    format!("user-{number}").parse().unwrap()
}

/// One unit for one user, accepted in generation 1. The order id follows from the user.
pub fn message(sale: SaleId, number: usize) -> OrderMessage {
    order_message(OrderId::mint(sale, 1_800_000_000, number as u64), user(number).as_str())
}

pub fn messages(sale: SaleId, numbers: std::ops::Range<usize>) -> Vec<OrderMessage> {
    numbers.map(|number| message(sale, number)).collect()
}

/// Another purchase of the same user.
pub fn again(first: &OrderMessage) -> OrderMessage {
    let id = OrderId::mint(first.sale, 1_900_000_000, first.id.uuid().as_u128() as u64);
    OrderMessage { id, ..first.clone() }
}

pub fn with_key(message: OrderMessage, key: &str) -> OrderMessage {
    let request = Some(RequestKey { key: key.to_owned(), fingerprint: "0123456789abcdef".to_owned() });
    OrderMessage { request, ..message }
}
