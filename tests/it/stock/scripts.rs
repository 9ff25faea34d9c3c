//! Every branch of every script of the stock, on a plain Redis and on a node in cluster mode.
//!
//! On the cluster a key that is not passed in KEYS, or of another slot, is an error.

use crate::support::fixtures::sale;
use crate::support::servers::shared_settings;
use crate::support::shop::{Shop, accepted, refused, repeated};
use redis::AsyncCommands;
use sandbox::{Options, RedisOptions, Sandbox};
use seckill::config;
use seckill::domain::{Outcome, Purchase, Refusal, Sale, SaleState};
use seckill::stock::script::{ReleaseCode, SaleCode, StockCode, WarmCode};
use seckill::stock::{Frozen, OnSale, WarmPart, keys};
use time::{Duration, OffsetDateTime};

#[tokio::test]
async fn every_branch_of_every_script_on_a_plain_redis() {
    every_branch(&shared_settings("stock_scripts").await.redis).await;
}

#[tokio::test]
async fn every_branch_of_every_script_on_a_cluster_node() {
    let options = RedisOptions { cluster: true, ..RedisOptions::default() };
    let sandbox = Sandbox::start(Options::none().redis(options)).await.expect("Redis starts");
    let mut settings = config::Settings::load(None).expect("settings").redis;
    settings.url = sandbox.redis().url().into();
    every_branch(&settings).await;
}

async fn every_branch(settings: &config::Redis) {
    purchase_sells_and_refuses(settings).await;
    purchase_keeps_the_opening_hours(settings).await;
    purchase_answers_a_repeat_before_everything_else(settings).await;
    purchase_is_cold_where_redis_cannot_prove_that_it_may_sell(settings).await;
    freeze_and_warm_obey_the_greatest_token(settings).await;
    warm_restores_claims_and_requests_in_parts(settings).await;
    stock_raises_the_total_and_never_lowers_it(settings).await;
    sale_obeys_the_newest_revision(settings).await;
    an_end_in_the_past_deletes_nothing(settings).await;
    release_goes_by_order(settings).await;
    every_key_has_a_time_to_live(settings).await;
}

fn units(quantity: u32, purchase: Purchase) -> Purchase {
    Purchase { quantity, ..purchase }
}

async fn purchase_sells_and_refuses(settings: &config::Redis) {
    let shop = Shop::open(settings, 4).await;
    let ann = units(2, shop.purchase("ann"));
    let batch = [ann.clone(), units(4, shop.purchase("gus")), shop.purchase("ann"), units(3, shop.purchase("bob"))];
    let expected = [
        accepted(&ann),
        refused(Refusal::TooMany { max_quantity: 3 }),
        refused(Refusal::AlreadyPurchased { order: ann.order }),
        refused(Refusal::NotEnoughLeft { remaining: 2 }),
    ];
    assert_eq!(shop.run(&batch).await, expected);

    let cid = units(2, shop.purchase("cid"));
    let expected = [
        accepted(&cid),
        refused(Refusal::SoldOut),
        refused(Refusal::AlreadyPurchased { order: ann.order }),
        refused(Refusal::AlreadyPurchased { order: cid.order }),
    ];
    let batch = [cid.clone(), shop.purchase("dan"), shop.purchase("ann"), shop.purchase("cid")];
    assert_eq!(shop.run(&batch).await, expected);

    let (hash, claims, requests, outbox) = shop.everything().await;
    assert_eq!((hash["remaining"].as_str(), claims.len(), requests.len(), outbox), ("0", 2, 0, 2));
    assert!(claims["ann"].starts_with(&format!("{}|2|", ann.order)));
}

async fn purchase_keeps_the_opening_hours(settings: &config::Redis) {
    let now = OffsetDateTime::now_utc();
    let at = now.replace_millisecond(0).expect("a time") + Duration::HOUR;
    let cases = [
        (Sale { starts_at: at, ends_at: at + Duration::HOUR, ..sale(1) }, Refusal::NotStarted { starts_at: at }),
        (Sale { ends_at: now - Duration::SECOND, ..sale(1) }, Refusal::Ended),
        (Sale { state: SaleState::Ended, ..sale(1) }, Refusal::Ended),
        (Sale { state: SaleState::Paused, ..sale(1) }, Refusal::Paused),
    ];
    for (sale, refusal) in cases {
        let shop = Shop::open_sale(settings, sale).await;
        let before = shop.everything().await;
        assert_eq!(shop.one(shop.purchase("ann")).await, refused(refusal));
        assert_eq!(shop.everything().await, before, "a refusal leaves nothing behind");
    }
}

async fn purchase_answers_a_repeat_before_everything_else(settings: &config::Redis) {
    let shop = Shop::open(settings, 2).await;
    let plain = shop.purchase("ann");
    let keyed = shop.keyed("bob", "k", 1);
    assert_eq!(shop.run(&[plain.clone(), keyed.clone()]).await, [accepted(&plain), accepted(&keyed)]);
    shop.set("state", "ended").await;
    let before = shop.everything().await;

    let fresh_id = Purchase { order: shop.purchase("bob").order, ..keyed.clone() };
    let batch = [plain.clone(), keyed.clone(), fresh_id, shop.keyed("bob", "k", 2), shop.keyed("ann", "k", 1)];
    let expected =
        [repeated(&plain), repeated(&keyed), repeated(&keyed), refused(Refusal::KeyReused), refused(Refusal::Ended)];
    assert_eq!(shop.run(&batch).await, expected, "keys belong to their user; repeats outlive the sale");
    assert_eq!(shop.everything().await, before);

    let shop = Shop::open(settings, 5).await;
    let first = shop.keyed("ann", "k", 2);
    let batch = [first.clone(), first.clone(), shop.keyed("ann", "k", 1)];
    let expected = [accepted(&first), repeated(&first), refused(Refusal::KeyReused)];
    assert_eq!(shop.run(&batch).await, expected, "also within one batch");
    assert_eq!(shop.remaining().await, 3);
}

async fn purchase_is_cold_where_redis_cannot_prove_that_it_may_sell(settings: &config::Redis) {
    let missing = Shop::closed(settings, sale(1)).await;
    assert_eq!(missing.one(missing.purchase("ann")).await, Outcome::Cold);
    assert!(missing.everything().await.0.is_empty(), "nothing is made by a purchase");

    for (field, value) in [("frozen", "1"), ("home", "0000")] {
        let shop = Shop::open(settings, 1).await;
        shop.set(field, value).await;
        let before = shop.everything().await;
        assert_eq!(shop.one(shop.purchase("ann")).await, Outcome::Cold, "{field}");
        assert_eq!(shop.probe().await, None);
        assert_eq!(shop.everything().await, before);
    }

    let shop = Shop::open(settings, 1).await;
    let () = shop.redis.clone().hdel(keys::sale(shop.sale.id), "remaining").await.expect("a hash");
    assert_eq!(shop.one(shop.purchase("ann")).await, Outcome::Cold, "the marker of a freeze is not a sale");

    let shop = Shop::open(settings, 2).await;
    let (older, now) = (Purchase { generation: 0, ..shop.purchase("ann") }, shop.purchase("bob"));
    let newer = Purchase { generation: 2, ..shop.purchase("cid") };
    assert_eq!(shop.run(&[older, now.clone(), newer]).await, [Outcome::Cold, accepted(&now), Outcome::Cold]);
}

async fn freeze_and_warm_obey_the_greatest_token(settings: &config::Redis) {
    let shop = Shop::closed(settings, sale(3)).await;
    let run_id = shop.freeze(7).await;
    assert_eq!(shop.one(shop.purchase("ann")).await, Outcome::Cold, "frozen before it was ever warm");
    assert_eq!(shop.stock.freeze(shop.sale.id, 6).await.expect("an answer"), Frozen::Stale);
    assert_eq!(shop.warm(6, &run_id).await, WarmCode::Refused, "an older token");
    assert_eq!(shop.freeze(7).await, run_id, "a repeat is harmless");
    assert_eq!(shop.warm(7, &run_id).await, WarmCode::Warmed);
    assert_eq!(shop.remaining().await, 3);
    assert_eq!(shop.warm(7, &run_id).await, WarmCode::Refused, "not frozen any more: a late warm overwrites nothing");

    let ann = shop.purchase("ann");
    assert_eq!(shop.one(ann.clone()).await, accepted(&ann));
    shop.freeze(8).await;
    assert_eq!(shop.warm(8, &run_id).await, WarmCode::Refused, "an order still stands in the outbox");

    let shop = Shop::closed(settings, sale(1)).await;
    let run_id = shop.freeze(1).await;
    shop.freeze(2).await;
    assert_eq!(shop.warm(1, &run_id).await, WarmCode::Refused, "overtaken after the freeze");
    let shop = Shop::closed(settings, sale(1)).await;
    let other = shop.warm_elsewhere().await;
    assert_eq!(other, WarmCode::Refused, "another process than the one that was frozen");
}

async fn warm_restores_claims_and_requests_in_parts(settings: &config::Redis) {
    let shop = Shop::open(settings, 5).await;
    let lost = shop.keyed("zoe", "old", 1);
    shop.one(lost.clone()).await;
    shop.drain_outbox().await;
    let run_id = shop.freeze(2).await;
    let on_sale = OnSale { generation: 2, total: 5, remaining: 2 };
    let ann = shop.keyed("ann", "k", 2);
    let bob = shop.purchase("bob");
    let claim = |purchase: &Purchase| {
        (purchase.user.clone(), format!("{}|{}|{}", purchase.order, purchase.quantity, 1_700_000_000_000_i64))
    };
    let request = ("ann:k".to_owned(), format!("{}|{:016x}|2", ann.order, 2));
    let parts = [
        WarmPart { first: true, last: false, claims: &[claim(&ann)], requests: &[] },
        WarmPart { first: false, last: true, claims: &[claim(&bob)], requests: &[request] },
    ];
    for part in parts {
        assert_eq!(shop.probe().await, None, "nothing sells before the last part");
        let warmed = shop.stock.warm(&shop.sale, 2, &run_id, &on_sale, part).await.expect("an answer");
        assert_eq!(warmed, WarmCode::Warmed);
    }
    let shop = Shop { sale: Sale { generation: 2, ..shop.sale.clone() }, ..shop };
    assert_eq!(shop.remaining().await, 2);
    let batch = [shop.keyed("ann", "k", 2), shop.purchase("bob"), shop.purchase("zoe")];
    let outcomes = shop.run(&batch).await;
    assert_eq!(
        outcomes[0],
        Outcome::Accepted(seckill::domain::Accepted { order: ann.order, quantity: 2, replayed: true })
    );
    assert_eq!(outcomes[1], refused(Refusal::AlreadyPurchased { order: bob.order }));
    assert_eq!(outcomes[2], accepted(&batch[2]), "what the ledger does not know of was forgotten");
}

async fn stock_raises_the_total_and_never_lowers_it(settings: &config::Redis) {
    let shop = Shop::open(settings, 1).await;
    let set = async |generation, total| shop.stock.set_total(shop.sale.id, generation, total).await.expect("an answer");
    shop.one(shop.purchase("ann")).await;
    let sold_out = shop.probe().await.expect("a warm sale");
    assert_eq!(set(1, 4).await, StockCode::Raised);
    let raised = shop.probe().await.expect("a warm sale");
    assert_eq!(raised.remaining, 3);
    assert!(raised.version > sold_out.version, "units that come back raise the epoch");
    assert_eq!(set(1, 4).await, StockCode::Unchanged, "a repeat adds nothing");
    assert_eq!(set(1, 2).await, StockCode::Unchanged, "a late one takes nothing away");
    assert_eq!(set(2, 9).await, StockCode::Cold, "of another life");
    assert_eq!(shop.probe().await, Some(raised));
    shop.set("frozen", "1").await;
    assert_eq!(set(1, 9).await, StockCode::Cold);
    let missing = Shop::closed(settings, sale(1)).await;
    assert_eq!(missing.stock.set_total(missing.sale.id, 1, 9).await.expect("an answer"), StockCode::Cold);
    assert!(missing.everything().await.0.is_empty());
}

async fn sale_obeys_the_newest_revision(settings: &config::Redis) {
    let shop = Shop::open(settings, 1).await;
    let paused = Sale { state: SaleState::Paused, revision: 3, ..shop.sale.clone() };
    let reopened = Sale { state: SaleState::Open, revision: 2, ..shop.sale.clone() };
    assert_eq!(shop.stock.set_sale(&paused).await.expect("an answer"), SaleCode::Changed);
    assert_eq!(shop.stock.set_sale(&reopened).await.expect("an answer"), SaleCode::Unchanged, "overtaken");
    assert_eq!(shop.stock.set_sale(&paused).await.expect("an answer"), SaleCode::Unchanged, "a repeat");
    assert_eq!(shop.one(shop.purchase("ann")).await, refused(Refusal::Paused));
    let missing = Shop::closed(settings, sale(1)).await;
    assert_eq!(missing.stock.set_sale(&missing.sale).await.expect("an answer"), SaleCode::Cold);
    assert!(missing.everything().await.0.is_empty());
}

/// The end of a sale is moved, by mistake or on purpose, to where every key would have been deleted long ago.
async fn an_end_in_the_past_deletes_nothing(settings: &config::Redis) {
    let shop = Shop::open(settings, 2).await;
    let keyed = shop.keyed("ann", "k", 1);
    assert_eq!(shop.one(keyed.clone()).await, accepted(&keyed));
    let times = async || {
        let mut times = Vec::new();
        for key in keys::all(shop.sale.id) {
            let at: i64 =
                redis::cmd("PEXPIRETIME").arg(&key).query_async(&mut shop.redis.clone()).await.expect("a time");
            times.push(at);
        }
        times
    };
    let (sold, before) = (shop.everything().await, times().await);
    let long_ago = OffsetDateTime::from_unix_timestamp(1_000_000_000).expect("a time");
    let moved = Sale { ends_at: long_ago, revision: 2, ..shop.sale.clone() };
    assert_eq!(shop.stock.set_sale(&moved).await.expect("an answer"), SaleCode::Changed);
    let (kept, after) = (shop.everything().await, times().await);
    assert_eq!((&kept.1, &kept.2, kept.3), (&sold.1, &sold.2, 1), "claims, requests and outbox stand as they did");
    assert_eq!(after[3], before[3], "an outbox never lives shorter");
    let now_ms = i64::try_from(OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000).expect("a time");
    let retention = i64::try_from(settings.retention().as_millis()).expect("a time");
    assert!(after[..3].iter().all(|at| (now_ms - at + retention).abs() < 60_000), "{after:?}");
    assert_eq!(shop.one(shop.purchase("bob")).await, refused(Refusal::Ended));

    let longer = Sale { ends_at: shop.sale.ends_at + Duration::DAY, revision: 3, ..shop.sale.clone() };
    assert_eq!(shop.stock.set_sale(&longer).await.expect("an answer"), SaleCode::Changed);
    assert_eq!(times().await[3], before[3] + 86_400_000, "and longer when the sale does");

    let shop = Shop::open_sale(settings, Sale { ends_at: long_ago, ..sale(2) }).await;
    assert_eq!(shop.remaining().await, 2, "a sale that is over is warmed, and stays");
}

async fn release_goes_by_order(settings: &config::Redis) {
    let shop = Shop::open(settings, 2).await;
    let id = shop.sale.id;
    let first = shop.purchase("ann");
    shop.one(first.clone()).await;
    let release =
        async |purchase: &Purchase| shop.stock.release(id, &purchase.user, purchase.order).await.expect("an answer");
    let before = shop.probe().await.expect("a warm sale");
    assert_eq!(release(&first).await, ReleaseCode::Released);
    let after = shop.probe().await.expect("a warm sale");
    assert_eq!(after.remaining, 2);
    assert!(after.version > before.version);
    assert_eq!(release(&first).await, ReleaseCode::NotHeld, "a repeat frees nothing");

    let second = shop.purchase("ann");
    assert_eq!(shop.one(second.clone()).await, accepted(&second), "the buyer may buy again");
    assert_eq!(release(&first).await, ReleaseCode::NotHeld, "a late release does not free the new order");
    assert_eq!(shop.remaining().await, 1);

    shop.set("remaining", "2").await;
    let before = shop.everything().await;
    assert_eq!(release(&second).await, ReleaseCode::Overfull, "never above the total");
    assert_eq!(shop.everything().await, before);

    let missing = Shop::closed(settings, sale(1)).await;
    let nobody = missing.purchase("ann");
    let code = missing.stock.release(missing.sale.id, &nobody.user, nobody.order).await.expect("an answer");
    assert_eq!(code, ReleaseCode::Cold);
    assert!(missing.everything().await.0.is_empty(), "a release makes no sale");
}

async fn every_key_has_a_time_to_live(settings: &config::Redis) {
    let shop = Shop::open(settings, 1).await;
    let buyer = shop.keyed("ann", "k", 1);
    shop.one(buyer.clone()).await;
    let end = shop.sale.ends_at + settings.retention();
    let end_ms = i64::try_from(end.unix_timestamp_nanos() / 1_000_000).expect("a time");
    for key in keys::all(shop.sale.id) {
        let at: i64 = redis::cmd("PEXPIRETIME").arg(&key).query_async(&mut shop.redis.clone()).await.expect("a time");
        assert_eq!(at, end_ms, "{key}");
    }
    // A key that is gone, as a hash is that was emptied, has lost its time to live; the next write creates it again.
    shop.stock.release(shop.sale.id, &buyer.user, buyer.order).await.expect("an answer");
    let () = shop.redis.clone().del(keys::outbox(shop.sale.id)).await.expect("a key");
    shop.one(shop.purchase("bob")).await;
    for key in [keys::claims(shop.sale.id), keys::outbox(shop.sale.id)] {
        let ttl: i64 = shop.redis.clone().ttl(&key).await.expect("a time to live");
        assert!(ttl > 0, "{key}");
    }
    let missing = Shop::closed(settings, sale(1)).await;
    missing.freeze(1).await;
    let ttl: i64 = missing.redis.clone().ttl(keys::sale(missing.sale.id)).await.expect("a time to live");
    assert!(ttl > 0, "also the marker of a freeze");
    // An end in the past does not delete the orders that wait in the outbox.
    let early =
        Sale { ends_at: OffsetDateTime::now_utc() - 2 * settings.retention(), revision: 2, ..shop.sale.clone() };
    assert_eq!(shop.stock.set_sale(&early).await.expect("an answer"), SaleCode::Changed);
    assert_eq!(shop.everything().await.3, 1, "the order is still there");
}
