//! The real scripts and a plain model are driven with the same random operations, and must agree on every answer and
//! on everything that Redis holds afterwards.

use std::collections::BTreeMap;

use crate::support::servers::shared_settings;
use crate::support::shop::Shop;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use seckill::config;
use seckill::domain::{Accepted, OrderId, Outcome, Purchase, Refusal, Sale, SaleState, UserId};
use seckill::stock::script::{ReleaseCode, SaleCode, StockCode, WarmCode};
use seckill::stock::{OnSale, WarmPart};

const USERS: [&str; 4] = ["ann", "bob", "cid", "dan"];
const KEYS: [&str; 2] = ["k", "l"];

#[derive(Clone, Debug)]
struct Ask {
    user: usize,
    quantity: u32,
    key: Option<usize>,
    /// Takes the id of the earlier order with this number (modulo their count) instead of a new one.
    retry_of: Option<usize>,
    old_generation: bool,
}

#[derive(Clone, Debug)]
enum Operation {
    Purchase(Vec<Ask>),
    /// Releases the n-th order that was ever accepted, live or not.
    Release(usize),
    /// Sets the total to this many above what it is; a late one lies below.
    Total(i32),
    State(SaleState, bool),
    Freeze,
    Rebuild,
}

fn asks() -> impl Strategy<Value = Ask> {
    let maybe = |n: usize| prop_oneof![3 => Just(None), 1 => (0..n).prop_map(Some)];
    (0..USERS.len(), 1..=4_u32, maybe(KEYS.len()), maybe(40), prop::bool::weighted(0.05)).prop_map(
        |(user, quantity, key, retry_of, old_generation)| Ask { user, quantity, key, retry_of, old_generation },
    )
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let state = prop_oneof![4 => Just(SaleState::Open), 1 => Just(SaleState::Paused)];
    let operation = prop_oneof![
        12 => prop::collection::vec(asks(), 1..6).prop_map(Operation::Purchase),
        4 => (0..40_usize).prop_map(Operation::Release),
        2 => (-2..4_i32).prop_map(Operation::Total),
        2 => (state, prop::bool::weighted(0.2)).prop_map(|(state, late)| Operation::State(state, late)),
        1 => Just(Operation::Freeze),
        2 => Just(Operation::Rebuild),
    ];
    prop::collection::vec(operation, 1..30)
}

/// What the scripts should do, in the plainest words.
struct Model {
    total: u32,
    remaining: u32,
    max_quantity: u32,
    generation: i64,
    frozen: bool,
    state: SaleState,
    revision: i64,
    claims: BTreeMap<String, (OrderId, u32)>,
    requests: BTreeMap<String, (OrderId, u32, String)>,
    outbox: u64,
}

impl Model {
    fn purchase(&mut self, purchase: &Purchase) -> Outcome {
        let user = purchase.user.to_string();
        let accepted = |order, quantity, replayed| Outcome::Accepted(Accepted { order, quantity, replayed });
        if self.frozen || purchase.generation != self.generation {
            return Outcome::Cold;
        }
        let request = purchase.request.as_ref().map(|request| (format!("{user}:{}", request.key), request));
        if let Some((name, request)) = &request
            && let Some((order, quantity, fingerprint)) = self.requests.get(name)
        {
            let same = *fingerprint == request.fingerprint;
            return if same { accepted(*order, *quantity, true) } else { Outcome::Refused(Refusal::KeyReused) };
        }
        let held = self.claims.get(&user).copied();
        if let Some((order, quantity)) = held
            && order == purchase.order
        {
            return accepted(order, quantity, true);
        }
        let refusal = match (self.state, held) {
            (SaleState::Paused, _) => Some(Refusal::Paused),
            (_, Some((order, _))) => Some(Refusal::AlreadyPurchased { order }),
            _ if purchase.quantity > self.max_quantity => Some(Refusal::TooMany { max_quantity: self.max_quantity }),
            _ if self.remaining == 0 => Some(Refusal::SoldOut),
            _ if purchase.quantity > self.remaining => Some(Refusal::NotEnoughLeft { remaining: self.remaining }),
            _ => None,
        };
        if let Some(refusal) = refusal {
            return Outcome::Refused(refusal);
        }
        self.remaining -= purchase.quantity;
        self.outbox += 1;
        self.claims.insert(user, (purchase.order, purchase.quantity));
        if let Some((name, request)) = request {
            self.requests.insert(name, (purchase.order, purchase.quantity, request.fingerprint.clone()));
        }
        accepted(purchase.order, purchase.quantity, false)
    }

    fn release(&mut self, user: &UserId, order: OrderId) -> ReleaseCode {
        match self.claims.get(user.as_str()) {
            Some((held, quantity)) if *held == order => {
                self.remaining += quantity;
                self.claims.remove(user.as_str());
                ReleaseCode::Released
            }
            _ => ReleaseCode::NotHeld,
        }
    }

    fn set_total(&mut self, total: u32) -> StockCode {
        if self.frozen {
            return StockCode::Cold;
        }
        if total <= self.total {
            return StockCode::Unchanged;
        }
        self.remaining += total - self.total;
        self.total = total;
        StockCode::Raised
    }
}

async fn run(settings: &config::Redis, operations: Vec<Operation>) {
    let mut shop = Shop::open(settings, 6).await;
    let mut model = Model {
        total: 6,
        remaining: 6,
        max_quantity: shop.sale.max_quantity,
        generation: 1,
        frozen: false,
        state: SaleState::Open,
        revision: shop.sale.revision,
        claims: BTreeMap::new(),
        requests: BTreeMap::new(),
        outbox: 0,
    };
    let mut orders: Vec<(UserId, OrderId)> = Vec::new();
    let mut token = 1;
    for operation in operations {
        match operation {
            Operation::Purchase(asks) => {
                let batch: Vec<_> = asks.iter().map(|ask| purchase(&shop, ask, &orders)).collect();
                let expected: Vec<_> = batch.iter().map(|purchase| model.purchase(purchase)).collect();
                assert_eq!(shop.run(&batch).await, expected, "{batch:#?}");
                orders.extend(batch.into_iter().map(|purchase| (purchase.user, purchase.order)));
            }
            Operation::Release(n) if !orders.is_empty() => {
                let (user, order) = &orders[n % orders.len()];
                let expected = model.release(user, *order);
                assert_eq!(shop.stock.release(shop.sale.id, user, *order).await.expect("an answer"), expected);
            }
            Operation::Release(_) => {}
            Operation::Total(more) => {
                let total = model.total.saturating_add_signed(more);
                let told = shop.stock.set_total(shop.sale.id, model.generation, total).await.expect("an answer");
                assert_eq!(told, model.set_total(total));
            }
            Operation::State(state, late) => {
                let revision = model.revision + i64::from(!late);
                let told = Sale { state, revision, ..shop.sale.clone() };
                let code = shop.stock.set_sale(&told).await.expect("an answer");
                assert_eq!(code, if late { SaleCode::Unchanged } else { SaleCode::Changed });
                if !late {
                    (model.state, model.revision) = (state, revision);
                }
            }
            Operation::Freeze => {
                token += 1;
                shop.freeze(token).await;
                model.frozen = true;
            }
            Operation::Rebuild => {
                token += 1;
                rebuild(&mut shop, &mut model, token).await;
            }
        }
        compare(&shop, &model).await;
    }
}

fn purchase(shop: &Shop, ask: &Ask, orders: &[(UserId, OrderId)]) -> Purchase {
    let user = USERS[ask.user];
    let mut purchase = match ask.key {
        Some(key) => shop.keyed(user, KEYS[key], ask.quantity),
        None => Purchase { quantity: ask.quantity, ..shop.purchase(user) },
    };
    if let Some(n) = ask.retry_of
        && !orders.is_empty()
    {
        purchase.order = orders[n % orders.len()].1;
    }
    if ask.old_generation {
        purchase.generation -= 1;
    }
    purchase
}

/// As the reconciler would: freeze, let the outbox drain, raise the generation, warm in two parts.
async fn rebuild(shop: &mut Shop, model: &mut Model, token: i64) {
    let run_id = shop.freeze(token).await;
    shop.drain_outbox().await;
    let claims: Vec<_> = model
        .claims
        .iter()
        .map(|(user, (order, quantity))| (user.parse().expect("a user id"), format!("{order}|{quantity}|1")))
        .collect();
    let requests: Vec<_> = model
        .requests
        .iter()
        .map(|(name, (order, quantity, fingerprint))| (name.clone(), format!("{order}|{fingerprint}|{quantity}")))
        .collect();
    model.generation += 1;
    model.frozen = false;
    model.outbox = 0;
    shop.sale = Sale {
        generation: model.generation,
        state: model.state,
        revision: model.revision,
        total: model.total,
        ..shop.sale.clone()
    };
    let on_sale = OnSale { generation: model.generation, total: model.total, remaining: model.remaining };
    let parts = [
        WarmPart { first: true, last: false, claims: &claims, requests: &[] },
        WarmPart { first: false, last: true, claims: &[], requests: &requests },
    ];
    for part in parts {
        let code = shop.stock.warm(&shop.sale, token, &run_id, &on_sale, part).await.expect("an answer");
        assert_eq!(code, WarmCode::Warmed);
    }
}

async fn compare(shop: &Shop, model: &Model) {
    let (hash, claims, requests, outbox) = shop.everything().await;
    assert_eq!(hash["remaining"], model.remaining.to_string());
    assert_eq!(hash["total"], model.total.to_string());
    let claims: BTreeMap<_, _> = claims.into_iter().map(|(user, claim)| (user, first_two(&claim))).collect();
    let expected: BTreeMap<_, _> =
        model.claims.iter().map(|(user, (o, q))| (user.clone(), format!("{o}|{q}"))).collect();
    assert_eq!(claims, expected);
    let requests: BTreeMap<_, _> = requests.into_iter().collect();
    let expected: BTreeMap<_, _> =
        model.requests.iter().map(|(name, (o, q, f))| (name.clone(), format!("{o}|{f}|{q}"))).collect();
    assert_eq!(requests, expected);
    assert_eq!(outbox, model.outbox);
    let claimed: u32 = model.claims.values().map(|claim| claim.1).sum();
    assert_eq!(model.total, model.remaining + claimed, "the model itself conserves units");
}

fn first_two(claim: &str) -> String {
    claim.rsplit_once('|').expect("three parts").0.to_owned()
}

#[test]
fn the_scripts_do_what_a_plain_model_does() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let settings = runtime.block_on(shared_settings("stock_model")).redis;
    let mut runner = TestRunner::new(Config { cases: 150, failure_persistence: None, ..Config::default() });
    let result = runner.run(&operations(), |operations| {
        runtime.block_on(run(&settings, operations));
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
