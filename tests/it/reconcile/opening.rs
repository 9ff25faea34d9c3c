//! Sales get into Redis once: openings twice, at once, overtaken, after a crash at any line, and restarts of everything.

use crate::support::fixtures::{new_sale, purchase};
use crate::support::http::Connection;
use crate::support::servers::with_own;
use crate::support::service::{PATIENCE, Running, prepared, settings};
use crate::support::wait_until;
use sandbox::Options;
use seckill::app::Roles;
use seckill::catalogue::{NewSale, SaleChange};
use seckill::domain::{Sale, SaleId, SaleState};
use seckill::lock::fence;
use seckill::operator::{Error, opening};
use seckill::promises::RedisView;
use seckill::stock::script::WarmCode;
use seckill::stock::{Frozen, OnSale, WarmPart};
use sqlx::{Connection as _, PgPool};

fn to(state: SaleState) -> SaleChange {
    SaleChange { state: Some(state), ..SaleChange::default() }
}

async fn redis_view(running: &Running, sale: SaleId) -> RedisView {
    running.service.stock.view(sale).await.expect("a view").expect("a sale in Redis")
}

async fn generation(running: &Running, sale: SaleId) -> i64 {
    running.service.ledger.stock(sale).await.expect("a stock row").expect("a sale").generation
}

/// Openings happen one after the other: the first one opens, the others find nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn six_openings_at_once_are_one() {
    let settings = settings("at_once").await;
    let operators = [Running::observe(&settings).await, Running::observe(&settings).await];
    for _ in 0..5 {
        let sale = operators[0].service.operator.create(NewSale { total: 7, ..new_sale() }).await.expect("a draft").id;
        let openings = (0..6).map(|n| operators[n % 2].service.operator.change(sale, to(SaleState::Open)));
        for opened in futures_util::future::join_all(openings).await {
            assert_eq!(opened.expect("each is told that it is open").state, SaleState::Open);
        }
        assert_eq!(generation(&operators[0], sale).await, 1, "opened once");
        let view = redis_view(&operators[0], sale).await;
        assert_eq!((view.selling, view.generation, view.total, view.remaining), (true, 1, 7, 7));
    }
}

/// Freezes as an opening does, and answers with what it goes on with.
async fn freeze(running: &Running, sale: SaleId) -> (i64, seckill::stock::RunId) {
    let token =
        fence::mint(running.service.ledger.pool(), &format!("sale:{sale}"), "crashed", 0).await.expect("a token");
    match running.service.stock.freeze(sale, token).await.expect("an answer") {
        Frozen::Yes { run_id, .. } => (token, run_id),
        Frozen::Stale => panic!("nobody else was here"),
    }
}

#[tokio::test]
async fn an_opening_that_crashed_at_any_line_is_completed_by_the_next() {
    let settings = settings("crashed").await;
    let node = Running::start(&settings, Roles::ALL).await;
    let operator = &node.service.operator;
    let draft = async || operator.create(NewSale { total: 3, ..new_sale() }).await.expect("a draft");

    // Frozen, and nothing more.
    let frozen = draft().await;
    freeze(&node, frozen.id).await;
    // A generation without a warm Redis.
    let raised = draft().await;
    freeze(&node, raised.id).await;
    node.service.ledger.open_generation(raised.id, 0, None).await.expect("a generation");
    // A warm Redis, and the sale is still a draft.
    let warm = draft().await;
    let (token, run_id) = freeze(&node, warm.id).await;
    let generation = node.service.ledger.open_generation(warm.id, 0, None).await.expect("a generation").generation;
    let on_sale = OnSale { generation, total: 3, remaining: 3 };
    let open = Sale { state: SaleState::Open, ..warm.clone() };
    let warmed = node.service.stock.warm(&open, token, &run_id, &on_sale, WarmPart::FRESH).await.expect("an answer");
    assert_eq!(warmed, WarmCode::Warmed);

    let mut http = Connection::open(node.address()).await;
    for sale in [frozen.id, raised.id, warm.id] {
        let early = http.buy(sale, &node.token("early"), &[]).await;
        assert_eq!((early.status, early.code().as_str()), (404, "sale_not_found"), "a draft sells to nobody");
        operator.change(sale, to(SaleState::Open)).await.expect("it opens");
        for n in 0..3 {
            assert_eq!(http.buy(sale, &node.token(&format!("u{n}")), &[]).await.status, 202);
        }
        assert_eq!(http.buy(sale, &node.token("late"), &[]).await.code(), "sold_out");
        node.settle(sale).await;
    }
    node.stop().await;
}

/// Makes the first update of any stock row wait for the advisory lock 1, before it has locked anything.
async fn stop_the_first_raise(pool: &PgPool) {
    let stop = "CREATE SEQUENCE updates;
                CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    IF nextval('updates') = 1 THEN PERFORM pg_advisory_xact_lock_shared(1); END IF;
                    RETURN NULL;
                END $$;
                CREATE TRIGGER stop BEFORE UPDATE ON stock FOR EACH STATEMENT EXECUTE FUNCTION stop();";
    sqlx::raw_sql(stop).execute(pool).await.expect("a trigger");
}

async fn until_it_raises(pool: &PgPool) {
    let waiting = "SELECT count(*) = 1 FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event = 'advisory'";
    wait_until("the opening raises the generation", PATIENCE, async || {
        sqlx::query_scalar(waiting).fetch_one(pool).await.expect("an answer")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_opening_that_redis_refuses_leaves_a_draft_and_the_next_one_opens_it() {
    let settings = settings("refused").await;
    let running = Running::observe(&settings).await;
    let sale = running.service.operator.create(NewSale { total: 3, ..new_sale() }).await.expect("a draft").id;
    let pool = running.service.ledger.pool();
    stop_the_first_raise(pool).await;
    let mut holder = pool.acquire().await.expect("a connection");
    let mut hold = holder.begin().await.expect("a transaction");
    sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *hold).await.expect("a lock");
    let operator = running.service.operator.clone();
    let opening = tokio::spawn(async move { operator.change(sale, to(SaleState::Open)).await });
    until_it_raises(pool).await;
    // Between its freeze and its warm somebody else freezes the sale.
    freeze(&running, sale).await;
    hold.rollback().await.expect("the opening goes on");
    let refused = opening.await.expect("it ends");
    assert!(matches!(refused, Err(Error::NotOpened(_))), "{refused:?}");
    assert_eq!(generation(&running, sale).await, 0, "nothing was raised");

    let opened = running.service.operator.change(sale, to(SaleState::Open)).await.expect("it opens");
    assert_eq!(opened.state, SaleState::Open);
    let view = redis_view(&running, sale).await;
    assert_eq!((view.selling, view.remaining), (true, 3));
}

/// An opening whose session is gone has lost its lock. Whatever it does afterwards must not touch the sale that the
/// next one has opened: a generation raised behind its back would turn every order of the sale into a rejection.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_opening_that_was_overtaken_changes_nothing_of_the_sale_that_sells() {
    let settings = settings("opening_overtaken").await;
    let (slow, quick) = (Running::observe(&settings).await, Running::observe(&settings).await);
    let sale = quick.service.operator.create(NewSale { total: 3, ..new_sale() }).await.expect("a draft").id;
    let pool = quick.service.ledger.pool();
    stop_the_first_raise(pool).await;
    let mut holder = pool.acquire().await.expect("a connection");
    let mut hold = holder.begin().await.expect("a transaction");
    sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *hold).await.expect("a lock");

    let operator = slow.service.operator.clone();
    let opening = tokio::spawn(async move { operator.change(sale, to(SaleState::Open)).await });
    until_it_raises(pool).await;
    // What a server does to a session that was idle in a transaction for too long.
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks
               WHERE relation = 'sales'::regclass AND mode = 'RowShareLock'
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let ended: i64 = sqlx::query_scalar(end).fetch_one(pool).await.expect("an answer");
    assert_eq!(ended, 1, "the slow one held the lock");

    quick.service.operator.change(sale, to(SaleState::Open)).await.expect("the next one opens");
    let selling = redis_view(&quick, sale).await;
    hold.rollback().await.expect("the slow one goes on");
    // How it ends is its own affair.
    let _ = opening.await.expect("it ends");
    assert_eq!(generation(&quick, sale).await, selling.generation, "the ledger is where Redis sells");
    let after = redis_view(&quick, sale).await;
    assert_eq!(format!("{after:?}"), format!("{selling:?}"));
}

#[tokio::test]
async fn opening_a_live_sale_again_overwrites_nothing() {
    let settings = settings("again").await;
    let running = Running::observe(&settings).await;
    let sale = running.open_sale_of(NewSale { total: 3, ..new_sale() }).await;
    running.service.stock.purchase_batch(sale.id, &[purchase(&sale, "ann")]).await.expect("an answer");
    let before = redis_view(&running, sale.id).await;
    assert_eq!((before.remaining, before.claims.len()), (2, 1));
    for _ in 0..2 {
        running.service.operator.change(sale.id, to(SaleState::Open)).await.expect("it is open");
        opening::open(&running.service.ledger, &running.service.stock, sale.id).await.expect("nothing to do");
    }
    assert_eq!(format!("{:?}", redis_view(&running, sale.id).await), format!("{before:?}"));
    assert_eq!(generation(&running, sale.id).await, 1);
}

/// No start of any part warms a sale from its total.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_every_part_never_overwrites_a_live_sale() {
    let (sandbox, settings) = with_own("restarts", Options::default()).await;
    let settings = prepared(settings).await;
    let node = Running::start(&settings, Roles::ALL).await;
    let sale = node.open_sale_of(NewSale { total: 5, ..new_sale() }).await.id;
    let mut http = Connection::open(node.address()).await;
    for name in ["ann", "bob"] {
        assert_eq!(http.buy(sale, &node.token(name), &[]).await.status, 202);
    }
    drop(http);
    node.stop().await;
    let before = redis_view(&Running::observe(&settings).await, sale).await;
    sandbox.redis().restart().await.expect("a restart");
    sandbox.postgres().restart().await.expect("a restart");
    sandbox.kafka().restart().await.expect("a restart");

    let node = Running::start(&settings, Roles::ALL).await;
    // Another process of Redis sells nothing before the reconciler has rebuilt the sale, from what is left of it.
    let next = before.generation + 1;
    wait_until("the sale sells again", PATIENCE, async || {
        node.service.catalogue.get(sale).is_some_and(|known| known.generation == next)
            && node
                .service
                .stock
                .probe(sale)
                .await
                .ok()
                .flatten()
                .is_some_and(|update| update.version.generation == next)
    })
    .await;
    let after = redis_view(&node, sale).await;
    assert_eq!((after.generation, after.total, after.remaining), (next, 5, 3));
    assert_eq!(after.claims.len(), 2);
    let mut http = Connection::open(node.address()).await;
    let again = http.buy(sale, &node.token("ann"), &[]).await;
    assert_eq!((again.status, again.code().as_str()), (409, "already_purchased"));
    for n in 0..3 {
        assert_eq!(http.buy(sale, &node.token(&format!("u{n}")), &[]).await.status, 202);
    }
    assert_eq!(http.buy(sale, &node.token("late"), &[]).await.code(), "sold_out");
    node.settle(sale).await;
    node.stop().await;
}
