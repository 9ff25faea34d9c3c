//! A reconciler that is run by hand, and the sale that it checks.

use prometheus::Registry;
use seckill::app::Roles;
use seckill::catalogue::NewSale;
use seckill::config::Settings;
use seckill::domain::{OrderId, OrderMessage, OrderStatus, Outcome, Purchase, Rejection, Sale};
use seckill::kafka::Producer;
use seckill::ledger::StockRow;
use seckill::lock::Lock;
use seckill::reconcile::{Parts, Reconciler};

use super::fixtures::{self, new_sale, order_message, purchase};
use super::service::{Running, settings};

/// A service without a reconciler of its own, and one to be run by hand.
pub struct ReconcilerFixture {
    pub running: Running,
    pub reconciler: Reconciler,
    pub lock: Lock,
}

/// No grace: in these tests nothing is on its way that is not waited for.
pub async fn hasty(name: &str) -> Settings {
    let mut settings = settings(name).await;
    settings.reconcile.grace_ms = 0;
    settings
}

impl ReconcilerFixture {
    pub async fn start(settings: &Settings, roles: Roles) -> Self {
        let running = Running::start(settings, roles).await;
        let lock = Lock::new(&settings.redis, running.service.ledger.pool().clone()).expect("a lock");
        let parts = Parts {
            catalogue: running.service.catalogue.clone(),
            ledger: running.service.ledger.clone(),
            stock: running.service.stock.clone(),
            lock: lock.clone(),
            producer: Producer::new(&settings.kafka).expect("a producer"),
        };
        let reconciler = Reconciler::new(settings, parts, &Registry::new()).expect("metrics");
        Self { running, reconciler, lock }
    }

    pub async fn open(&self, total: u32) -> Sale {
        self.open_with(total, 0).await
    }

    /// So many of the units in reserve.
    pub async fn open_with(&self, total: u32, reserve: u32) -> Sale {
        let id = self.running.open_sale_of(NewSale { total, reserve: Some(reserve), ..new_sale() }).await.id;
        (*self.running.service.catalogue.get(id).expect("a known sale")).clone()
    }

    /// Buys straight from the stock.
    pub async fn buy(&self, sale: &Sale, user: &str) -> Purchase {
        let purchase = purchase(sale, user);
        let outcome = self.running.service.stock.purchase(sale.id, purchase.clone()).await.outcome;
        assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome:?}");
        purchase
    }

    /// Writes the row as the consumer would.
    pub async fn record(&self, sale: &Sale, purchase: &Purchase) {
        let Purchase { quantity, generation, .. } = *purchase;
        let message = OrderMessage {
            sale: sale.id,
            quantity,
            generation,
            ..order_message(purchase.order, purchase.user.as_str())
        };
        self.running.service.ledger.record(&[message]).await.expect("a row");
    }

    pub async fn reconcile(&self, sale: &Sale) -> seckill::reconcile::JobStats {
        self.reconciler.run_once(sale, true).await.expect("a run")
    }

    pub async fn redis(&self) -> redis::aio::MultiplexedConnection {
        fixtures::redis(&self.running.settings.redis).await
    }

    pub async fn drain_outbox(&self, sale: &Sale) {
        fixtures::drain_outbox(&mut self.redis().await, sale.id).await;
    }

    pub async fn status(&self, order: OrderId) -> Option<(OrderStatus, Option<Rejection>)> {
        let order = self.running.service.ledger.order(order).await.expect("an answer");
        order.map(|order| (order.status, order.reason))
    }

    pub async fn row(&self, sale: &Sale) -> StockRow {
        self.running.service.ledger.stock(sale.id).await.expect("an answer").expect("a row")
    }

    pub async fn remaining(&self, sale: &Sale) -> u32 {
        self.running.service.stock.probe(sale.id).await.expect("an answer").expect("a warm sale").remaining
    }

    /// Runs a statement that no part of the service would, about this sale as `$1`.
    pub async fn meddle(&self, sale: &Sale, sql: &'static str) {
        let query = sqlx::query(sql).bind(sale.id.get());
        query.execute(self.running.service.ledger.pool()).await.expect("a statement");
    }
}
