//! The breaker where it stands: between a node and Redis.

use crate::support::fixtures::purchase;
use crate::support::reconciler::ReconcilerFixture;
use crate::support::servers::{own_redis, with_own};
use crate::support::service::{PATIENCE, prepared};
use crate::support::wait_until;
use drive::environment::SandboxSettings;
use prometheus::Registry;
use seckill::app::Roles;
use seckill::domain::{OrderId, Outcome};
use seckill::purchasing::Purchasing;
use seckill::stock::Stock;

/// A node that found Redis unreachable does not try it again before the open time ends, even if it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_breaker_is_open_sends_no_purchase_to_redis() {
    let (sandbox, settings) = with_own("breaker", own_redis()).await;
    let settings = prepared(settings).await;
    let fixture = ReconcilerFixture::start(&settings, Roles::OBSERVE).await;
    let sale = fixture.open_with(10, 5).await;
    let mut cut = sandbox.proxied(&settings);
    cut.redis.response_timeout_ms = 300;
    (cut.fallback.failures, cut.fallback.open_ms) = (1, 3_600_000);
    let stock = Stock::connect(&cut.redis).expect("a Redis URL");
    let ledger = fixture.running.service.ledger.clone();
    let node = Purchasing::new(&cut.fallback, stock.clone(), ledger, &Registry::new()).expect("metrics");
    let ask = async |user, spare| {
        let answer = node.purchase(&sale, purchase(&sale, user), || OrderId::mint(sale.id, 2, spare)).await;
        assert!(matches!(answer.outcome, Outcome::Accepted(_)), "{:?}", answer.outcome);
    };

    let proxy = sandbox.redis().proxy().expect("a proxy");
    proxy.cut().await;
    ask("ann", 1).await;
    proxy.heal().await;
    wait_until("the way is open", PATIENCE, async || {
        matches!(stock.purchase(sale.id, purchase(&sale, "eve")).await.outcome, Outcome::Accepted(_))
    })
    .await;
    let left = fixture.remaining(&sale).await;
    ask("bob", 2).await;
    assert_eq!(fixture.remaining(&sale).await, left);
    assert_eq!(fixture.row(&sale).await.reserve, 3);
}
