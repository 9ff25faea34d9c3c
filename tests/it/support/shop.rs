//! A sale that is open in Redis, without a ledger behind it: what tests of the stock need.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use seckill::config;
use seckill::domain::{Accepted, OrderId, Outcome, Purchase, Refusal, RequestKey, Sale, StockUpdate, UserId};
use seckill::stock::script::WarmCode;
use seckill::stock::{Frozen, OnSale, RunId, Stock, WarmPart, keys};

use super::fixtures::{drain_outbox, purchase, redis, sale};

static NEXT_ORDER: AtomicI32 = AtomicI32::new(1);

pub struct Shop {
    pub stock: Stock,
    pub sale: Sale,
    pub redis: MultiplexedConnection,
}

impl Shop {
    /// Opens a sale of `total` units at generation 1.
    pub async fn open(settings: &config::Redis, total: u32) -> Self {
        Self::open_sale(settings, sale(total)).await
    }

    pub async fn open_sale(settings: &config::Redis, sale: Sale) -> Self {
        let shop = Self::closed(settings, sale).await;
        let run_id = shop.freeze(1).await;
        assert_eq!(shop.warm(1, &run_id).await, WarmCode::Warmed);
        shop
    }

    /// Knows of a sale, but does not put it into Redis.
    pub async fn closed(settings: &config::Redis, sale: Sale) -> Self {
        let redis = redis(settings).await;
        Self { stock: Stock::connect(settings).expect("a Redis URL"), sale, redis }
    }

    pub async fn freeze(&self, token: i64) -> RunId {
        match self.stock.freeze(self.sale.id, token).await.expect("Redis answers") {
            Frozen::Yes { run_id, .. } => run_id,
            Frozen::Stale => panic!("a greater token was here"),
        }
    }

    pub async fn warm(&self, token: i64, run_id: &RunId) -> WarmCode {
        let Sale { generation, total, .. } = self.sale;
        let on_sale = OnSale { generation, total, remaining: total };
        self.stock.warm(&self.sale, token, run_id, &on_sale, WarmPart::FRESH).await.expect("Redis answers")
    }

    /// A purchase of one unit, with an order id of its own.
    pub fn purchase(&self, user: &str) -> Purchase {
        let chance = NEXT_ORDER.fetch_add(1, Ordering::Relaxed).unsigned_abs();
        Purchase { order: OrderId::mint(self.sale.id, 1, chance.into()), ..purchase(&self.sale, user) }
    }

    /// A purchase with an Idempotency-Key; the fingerprint is made of the quantity.
    pub fn keyed(&self, user: &str, key: &str, quantity: u32) -> Purchase {
        let user: UserId = user.parse().expect("a user id");
        Purchase {
            order: OrderId::derived(self.sale.id, &user, key, self.sale.generation),
            user,
            quantity,
            generation: self.sale.generation,
            request: Some(RequestKey { key: key.to_owned(), fingerprint: format!("{quantity:016x}") }),
        }
    }

    pub async fn run(&self, batch: &[Purchase]) -> Vec<Outcome> {
        self.stock.purchase_batch(self.sale.id, batch).await.expect("Redis answers").outcomes
    }

    pub async fn one(&self, purchase: Purchase) -> Outcome {
        self.run(&[purchase]).await.remove(0)
    }

    /// What a probe says; `None` when cold.
    pub async fn probe(&self) -> Option<StockUpdate> {
        self.stock.probe(self.sale.id).await.expect("Redis answers")
    }

    pub async fn remaining(&self) -> u32 {
        self.probe().await.expect("a warm sale").remaining
    }

    /// Everything that Redis holds of the sale, to see that nothing has changed.
    pub async fn everything(&self) -> (HashMap<String, String>, HashMap<String, String>, HashMap<String, String>, u64) {
        let mut redis = self.redis.clone();
        let id = self.sale.id;
        (
            redis.hgetall(keys::sale(id)).await.expect("a hash"),
            redis.hgetall(keys::claims(id)).await.expect("a hash"),
            redis.hgetall(keys::requests(id)).await.expect("a hash"),
            redis::cmd("XLEN").arg(keys::outbox(id)).query_async(&mut redis).await.expect("a stream"),
        )
    }

    pub async fn set(&self, field: &str, value: &str) {
        let () = self.redis.clone().hset(keys::sale(self.sale.id), field, value).await.expect("a hash");
    }
}

pub fn accepted(purchase: &Purchase) -> Outcome {
    Outcome::Accepted(Accepted { order: purchase.order, quantity: purchase.quantity, replayed: false })
}

pub fn repeated(purchase: &Purchase) -> Outcome {
    Outcome::Accepted(Accepted { order: purchase.order, quantity: purchase.quantity, replayed: true })
}

pub fn refused(refusal: Refusal) -> Outcome {
    Outcome::Refused(refusal)
}

pub fn is_accepted(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Accepted(_))
}

impl Shop {
    /// Warms with the run id of some other process.
    pub async fn warm_elsewhere(&self) -> WarmCode {
        self.freeze(1).await;
        self.set("fence", "1").await;
        let elsewhere = RunId::of("0123456789abcdef");
        self.warm(1, &elsewhere).await
    }

    /// Removes what stands in the outbox, as a relay would.
    pub async fn drain_outbox(&self) {
        drain_outbox(&mut self.redis.clone(), self.sale.id).await;
    }
}
