//! The stock as the nodes use it: batches, lost answers, restarts.

use std::time::Duration;

use crate::support::fixtures::sale;
use crate::support::servers::shared_settings;
use crate::support::shop::{Shop, accepted, is_accepted, refused};
use crate::support::wait_until;
use drive::environment::SandboxSettings;
use futures_util::FutureExt;
use redis::AsyncCommands;
use sandbox::{Options, RedisOptions, Sandbox};
use seckill::config;
use seckill::domain::{Accepted, Outcome, Purchase, Refusal, Sale};
use seckill::stock::{Stock, keys};
use time::OffsetDateTime;
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(60);

async fn shared(name: &str) -> config::Redis {
    shared_settings(&format!("stock_{name}")).await.redis
}

async fn own() -> (Sandbox, config::Redis) {
    let sandbox = Sandbox::start(Options::none().redis(RedisOptions::default())).await.expect("Redis starts");
    let settings = sandbox.settings("own").await.expect("settings").redis;
    (sandbox, settings)
}

/// More units asked for than are left.
#[tokio::test]
async fn two_units_cannot_be_had_from_one() {
    let shop = Shop::open(&shared("two_of_one").await, 1).await;
    let two = Purchase { quantity: 2, ..shop.purchase("ann") };
    assert_eq!(shop.one(two).await, refused(Refusal::NotEnoughLeft { remaining: 1 }));
    assert_eq!(shop.remaining().await, 1);
}

/// A purchase before the start touches nothing. The clock is that of Redis.
#[tokio::test]
async fn a_purchase_before_the_start_touches_no_stock() {
    let soon = OffsetDateTime::now_utc() + Duration::from_secs(600);
    let soon = soon.replace_millisecond(0).expect("a time");
    let shop = Shop::open_sale(&shared("early").await, Sale { starts_at: soon, ..sale(5) }).await;
    let before = shop.everything().await;
    assert_eq!(shop.one(shop.purchase("ann")).await, refused(Refusal::NotStarted { starts_at: soon }));
    assert_eq!(shop.everything().await, before);
    assert_eq!(shop.remaining().await, 5);
}

/// The script cache is emptied in mid-sale.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_flush_in_mid_sale_costs_nobody_an_answer() {
    let (_sandbox, settings) = own().await;
    let shop = Shop::open(&settings, 500).await;
    let mut buyers = JoinSet::new();
    for n in 0..500 {
        let (stock, purchase, id) = (shop.stock.clone(), shop.purchase(&format!("u{n}")), shop.sale.id);
        buyers.spawn(async move { stock.purchase(id, purchase).await.outcome });
        if n % 50 == 0 {
            redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut shop.redis.clone()).await.expect("Redis answers");
        }
    }
    let outcomes = buyers.join_all().await;
    assert!(outcomes.iter().all(is_accepted), "{:?}", outcomes.iter().find(|outcome| !is_accepted(outcome)));
    assert_eq!(shop.remaining().await, 0);
}

/// Without mercy: the script cache is emptied over and over, also between any two commands of ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_script_flushes_costs_nobody_an_answer() {
    let (_sandbox, settings) = own().await;
    let shop = Shop::open(&settings, 500).await;
    let mut redis = shop.redis.clone();
    let storm = tokio::spawn(async move {
        let mut flushes = redis::pipe();
        for _ in 0..20 {
            flushes.cmd("SCRIPT").arg("FLUSH").ignore();
        }
        while flushes.exec_async(&mut redis).await.is_ok() {}
    });
    for n in 0..500 {
        let outcome = shop.stock.purchase(shop.sale.id, shop.purchase(&format!("u{n}"))).await.outcome;
        assert!(is_accepted(&outcome), "{outcome:?}");
    }
    storm.abort();
}

/// An answer must not reach another's request when callers give up in the middle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_give_up_do_not_mix_up_the_answers_of_the_others() {
    let shop = Shop::open(&shared("give_up").await, 2_000).await;
    let mut buyers = JoinSet::new();
    for n in 0..2_000 {
        let (stock, purchase, id) = (shop.stock.clone(), shop.purchase(&format!("u{n}")), shop.sale.id);
        buyers.spawn(async move {
            let asked = stock.purchase(id, purchase.clone());
            if n % 10 == 0 {
                // Polled once and dropped: sent, as like as not, and never listened to.
                let _ = tokio::time::timeout(Duration::ZERO, asked).await;
                return None;
            }
            Some((asked.await.outcome, accepted(&purchase)))
        });
    }
    for (outcome, own) in buyers.join_all().await.into_iter().flatten() {
        assert_eq!(outcome, own, "each caller hears of its own order");
    }
}

/// Who hung up before the purchase was sent has bought nothing: that much is certain, so it need not be found out.
#[tokio::test]
async fn a_purchase_whose_caller_is_gone_before_it_is_sent_is_not_sent() {
    let shop = Shop::open(&shared("gone").await, 10).await;
    for n in 0..5 {
        let asked = shop.stock.purchase(shop.sale.id, shop.purchase(&format!("gone{n}")));
        // Polled once: it is in the queue, and on this one thread nothing has read the queue yet.
        assert!(asked.now_or_never().is_none());
    }
    assert!(is_accepted(&shop.stock.purchase(shop.sale.id, shop.purchase("ann")).await.outcome));
    assert_eq!(shop.remaining().await, 9);
}

/// The connection comes back by itself.
#[tokio::test]
async fn a_restarted_redis_is_used_again_without_a_restart_of_the_node() {
    let (sandbox, settings) = own().await;
    let shop = Shop::open(&settings, 3).await;
    let first = shop.purchase("ann");
    assert_eq!(shop.stock.purchase(shop.sale.id, first.clone()).await.outcome, accepted(&first));
    sandbox.redis().kill().expect("a kill");
    let during = shop.stock.purchase(shop.sale.id, shop.purchase("bob")).await.outcome;
    assert!(matches!(during, Outcome::NotTried | Outcome::Unknown(_)), "a fault is no refusal: {during:?}");
    sandbox.redis().restart().await.expect("a restart");
    // It is reached again by the same handle, and has another run id: it sells nothing until it is rebuilt.
    wait_until("Redis is asked again", PATIENCE, async || shop.stock.probe(shop.sale.id).await.is_ok()).await;
    assert_eq!(shop.stock.purchase(shop.sale.id, first).await.outcome, Outcome::Cold);
    assert_eq!(shop.stock.holdings(shop.sale.id).await.expect("an answer").expect("a sale").claims.len(), 1);
}

/// A Redis that cannot be reached says nothing of the sale: that is not the answer of one that may not sell.
#[tokio::test]
async fn a_purchase_that_found_no_way_to_redis_was_not_tried() {
    let (sandbox, settings) = own().await;
    let shop = Shop::open(&settings, 3).await;
    sandbox.redis().kill().expect("a kill");
    wait_until("the broken connection is noticed", PATIENCE, async || {
        shop.stock.purchase(shop.sale.id, shop.purchase("ann")).await.outcome == Outcome::NotTried
    })
    .await;
}

/// A timeout is unknown, never no: the order may stand, and the same order sent once more finds out.
#[tokio::test]
async fn a_purchase_without_an_answer_is_unknown_and_its_retry_learns_the_truth() {
    let (sandbox, mut settings) = own().await;
    settings.url = sandbox.redis().proxied_url().expect("a proxy").into();
    settings.response_timeout_ms = 300;
    let shop = Shop::open(&settings, 3).await;
    // From here on Redis knows the script, so that the lost answer is not that it does not.
    assert!(is_accepted(&shop.one(shop.purchase("zoe")).await));
    sandbox.redis().proxy().expect("a proxy").drop_responses().await;
    let purchase = shop.purchase("ann");
    let lost = shop.stock.purchase(shop.sale.id, purchase.clone()).await;
    assert_eq!(lost.outcome, Outcome::Unknown(purchase.order));
    assert!(lost.update.is_none(), "no answer is no update: the flag stays as it is");
    sandbox.redis().proxy().expect("a proxy").heal().await;
    let direct = config::Redis { url: sandbox.redis().url().into(), ..settings };
    let stock = Stock::connect(&direct).expect("a URL");
    let retried = Outcome::Accepted(Accepted { order: purchase.order, quantity: 1, replayed: true });
    assert_eq!(stock.purchase(shop.sale.id, purchase).await.outcome, retried, "the script had run");
    assert_eq!(stock.probe(shop.sale.id).await.expect("an answer").map(|update| update.remaining), Some(1));
}

/// A firewall that forgot a connection, or a balancer whose server died, sends neither bytes nor an end.
#[tokio::test]
async fn a_connection_that_fell_silent_is_replaced_and_the_node_sells_on() {
    let (sandbox, mut settings) = own().await;
    settings.url = sandbox.redis().proxied_url().expect("a proxy").into();
    settings.response_timeout_ms = 300;
    let shop = Shop::open(&settings, 3).await;
    sandbox.redis().proxy().expect("a proxy").black_hole();
    let lost = shop.purchase("ann");
    assert_eq!(shop.stock.purchase(shop.sale.id, lost.clone()).await.outcome, Outcome::Unknown(lost.order));
    assert!(is_accepted(&shop.stock.purchase(shop.sale.id, shop.purchase("bob")).await.outcome));
    assert!(is_accepted(&shop.stock.purchase(shop.sale.id, lost).await.outcome), "the retry is told the truth");
}

/// A buyer's claim is kept for as long as the sale accepts requests.
#[tokio::test]
async fn a_claim_outlives_the_sale() {
    let settings = shared("claims_live").await;
    let shop = Shop::open(&settings, 2).await;
    assert!(is_accepted(&shop.one(shop.purchase("ann")).await));
    let time = redis::cmd("PEXPIRETIME").arg(keys::claims(shop.sale.id)).to_owned();
    let forgotten_ms: i128 = time.query_async::<i64>(&mut shop.redis.clone()).await.expect("a hash").into();
    let over_ms = shop.sale.ends_at.unix_timestamp_nanos() / 1_000_000;
    let kept_ms = i128::try_from(settings.retention().as_millis()).expect("a time");
    assert!(forgotten_ms >= over_ms + kept_ms, "{forgotten_ms} {over_ms} {kept_ms}");
}

/// No id is ever part of a script's text.
#[tokio::test]
async fn the_number_of_cached_scripts_does_not_grow_with_the_number_of_sales() {
    let (_sandbox, settings) = own().await;
    let mut counts = Vec::new();
    for n in 0..40 {
        let shop = Shop::open(&settings, 1).await;
        shop.one(shop.purchase("ann")).await;
        if n % 20 == 0 {
            counts.push(shop.stock.info("memory").await.expect("INFO")["number_of_cached_scripts"].clone());
        }
    }
    assert_eq!(counts[0], counts[1]);
}

/// Losers leave nothing behind: memory grows with units sold, not with traffic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_refused_users_leave_nothing_in_redis() {
    let (_sandbox, settings) = own().await;
    let shop = Shop::open(&settings, 1).await;
    shop.one(shop.purchase("winner")).await;
    let before = shop.everything().await;
    let bytes = async || {
        let mut sum = 0_u64;
        for key in keys::all(shop.sale.id) {
            let usage = redis::cmd("MEMORY").arg("USAGE").arg(&key).to_owned();
            let usage: Option<u64> = usage.query_async(&mut shop.redis.clone()).await.expect("Redis answers");
            sum += usage.unwrap_or_default();
        }
        sum
    };
    let bytes_before = bytes().await;
    let template = shop.purchase("loser");
    for batch in 0..3_907_u32 {
        let batch: Vec<_> = (0..256)
            .map(|n| Purchase { user: format!("u{batch}-{n}").parse().expect("a user id"), ..template.clone() })
            .collect();
        let outcomes = shop.run(&batch).await;
        assert!(outcomes.iter().all(|outcome| *outcome == refused(Refusal::SoldOut)));
    }
    assert_eq!(shop.everything().await, before);
    assert_eq!(bytes().await, bytes_before);
    let keys: u64 = redis::cmd("DBSIZE").query_async(&mut shop.redis.clone()).await.expect("Redis answers");
    assert_eq!(keys, 3, "sale, claims and outbox");
}

/// The generation of the first send goes with every retry: a newer generation never accepts an older order.
#[tokio::test]
async fn a_retry_never_crosses_into_a_newer_generation() {
    let shop = Shop::open(&shared("generations").await, 2).await;
    let old = shop.purchase("ann");
    let () = shop.redis.clone().hset(keys::sale(shop.sale.id), "generation", 2).await.expect("a hash");
    assert_eq!(shop.one(old).await, Outcome::Cold);
    assert_eq!(shop.remaining().await, 2);
}
