//! The catalogue on a real PostgreSQL: what operators may do, and what a node knows while PostgreSQL is silent.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seckill::catalogue::{Catalogue, Error, NewSale, SaleChange};
use seckill::config;
use seckill::domain::{SaleId, SaleState, UserId};
use seckill::ledger::{self, Ledger};
use sqlx::PgPool;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use time::macros::datetime;
use tokio_util::sync::CancellationToken;

use crate::support::fixtures;
use crate::support::servers::shared_settings;

const RETENTION: Duration = Duration::from_secs(3600);

/// Longer than any test: a poller with this period moves only when it is refresh.
const NEVER: Duration = Duration::from_secs(3600);

struct World {
    ledger: Ledger,
    catalogue: Catalogue,
    settings: config::Postgres,
}

impl World {
    async fn new(name: &str) -> Self {
        let settings = shared_settings(&format!("catalogue_{name}")).await.postgres;
        let ledger = Ledger::connect(&settings, Duration::from_secs(900)).await.unwrap();
        ledger::migrate(ledger.pool()).await.unwrap();
        let catalogue = Catalogue::load(ledger.pool().clone(), RETENTION).await.unwrap();
        Self { ledger, catalogue, settings }
    }

    /// The catalogue of another node.
    async fn another(&self) -> Catalogue {
        Catalogue::load(self.ledger.pool().clone(), RETENTION).await.unwrap()
    }
}

fn new_sale() -> NewSale {
    NewSale { price_cents: 250, max_quantity: 3, challenge: true, total: 1000, reserve: None, ..fixtures::new_sale() }
}

fn to(state: SaleState) -> SaleChange {
    SaleChange { state: Some(state), ..SaleChange::default() }
}

fn user(name: &str) -> UserId {
    name.parse().unwrap()
}

#[tokio::test]
async fn a_new_sale_is_a_draft_with_all_its_units_for_redis() {
    let world = World::new("new_sale").await;
    let new = new_sale();
    let sale = world.catalogue.create(new.clone()).await.unwrap();
    assert_eq!((sale.state, sale.revision, sale.generation, sale.total), (SaleState::Draft, 1, 0, 1000));
    assert_eq!((sale.price_cents, sale.max_quantity, sale.challenge), (250, 3, true));
    assert_eq!((sale.starts_at, sale.ends_at), (new.starts_at, new.ends_at));

    let stock = world.ledger.stock(sale.id).await.unwrap().unwrap();
    assert_eq!((stock.total, stock.available, stock.reserve, stock.redis_total), (1000, 1000, 0, 1000));
    assert_eq!(*world.catalogue.get(sale.id).unwrap(), sale, "the node that made it knows it at once");
    assert_eq!(world.catalogue.all().len(), 1);
    assert!(world.catalogue.get(SaleId::new(4711).unwrap()).is_none());
}

#[tokio::test]
async fn what_the_schema_does_not_allow_is_said_in_words_and_leaves_nothing() {
    let world = World::new("not_allowed").await;
    let ends_first = NewSale { ends_at: new_sale().starts_at, ..new_sale() };
    let refused = [
        (NewSale { name: String::new(), ..new_sale() }, "name"),
        (NewSale { price_cents: -1, ..new_sale() }, "price"),
        (NewSale { price_cents: i64::MAX, ..new_sale() }, "price"),
        (NewSale { max_quantity: 0, ..new_sale() }, "max_quantity"),
        (NewSale { max_quantity: u32::MAX, ..new_sale() }, "max_quantity"),
        (NewSale { total: 0, ..new_sale() }, "unit"),
        (NewSale { total: u32::MAX, ..new_sale() }, "unit"),
        (ends_first, "ends after"),
        (NewSale { name: "a\0b".to_owned(), ..new_sale() }, "NUL"),
        (NewSale { starts_at: datetime!(1969-12-31 23:59:59 UTC), ..new_sale() }, "years"),
        // In UTC that is a year that has no room in the type.
        (NewSale { ends_at: datetime!(9999-12-31 23:59:59 -1), ..new_sale() }, "years"),
        (NewSale { ends_at: datetime!(9901-01-01 0:00 UTC), ..new_sale() }, "years"),
    ];
    for (new, about) in refused {
        match world.catalogue.create(new).await {
            Err(Error::Invalid(limit)) => assert!(limit.contains(about), "{limit} is not about {about}"),
            other => panic!("{about}: {other:?}"),
        }
    }
    world.catalogue.refresh().await.unwrap();
    assert!(world.catalogue.all().is_empty());
}

#[tokio::test]
async fn a_change_raises_the_revision_and_a_repeat_does_not() {
    let world = World::new("revision").await;
    let sale = world.catalogue.create(new_sale()).await.unwrap();
    let open = world.catalogue.change(sale.id, to(SaleState::Open)).await.unwrap();
    assert_eq!((open.state, open.revision), (SaleState::Open, 2));
    assert_eq!(world.catalogue.change(sale.id, to(SaleState::Open)).await.unwrap(), open);
    assert_eq!(world.catalogue.change(sale.id, SaleChange::default()).await.unwrap(), open);

    // A moment that Redis cannot be told is not another moment.
    let ends_at = Some(sale.ends_at + Duration::from_nanos(7));
    let same = world.catalogue.change(sale.id, SaleChange { ends_at, ..SaleChange::default() }).await.unwrap();
    assert_eq!(same, open);

    let ends_at = Some(sale.ends_at + Duration::from_secs(60));
    let longer = world.catalogue.change(sale.id, SaleChange { ends_at, ..to(SaleState::Paused) }).await.unwrap();
    assert_eq!((longer.state, longer.revision, Some(longer.ends_at)), (SaleState::Paused, 3, ends_at));
    assert_eq!(*world.catalogue.get(sale.id).unwrap(), longer);
}

#[tokio::test]
async fn illegal_moves_are_refused_and_an_ended_sale_keeps_its_times() {
    let world = World::new("illegal_moves").await;
    let sale = world.catalogue.create(new_sale()).await.unwrap();
    let paused = world.catalogue.change(sale.id, to(SaleState::Paused)).await;
    assert!(matches!(paused, Err(Error::IllegalMove { from: SaleState::Draft, to: SaleState::Paused })));
    let backwards = SaleChange { starts_at: Some(sale.ends_at), ..SaleChange::default() };
    assert!(matches!(world.catalogue.change(sale.id, backwards).await, Err(Error::Invalid(_))));

    let beyond = SaleChange { ends_at: Some(datetime!(9999-12-31 23:59:59 -1)), ..SaleChange::default() };
    assert!(matches!(world.catalogue.change(sale.id, beyond).await, Err(Error::Invalid(_))));

    let ended = world.catalogue.change(sale.id, to(SaleState::Ended)).await.unwrap();
    assert_eq!(world.catalogue.change(sale.id, to(SaleState::Ended)).await.unwrap(), ended);
    assert!(matches!(world.catalogue.change(sale.id, to(SaleState::Open)).await, Err(Error::IllegalMove { .. })));
    let longer = SaleChange { ends_at: Some(sale.ends_at + NEVER), ..SaleChange::default() };
    assert!(matches!(world.catalogue.change(sale.id, longer).await, Err(Error::AlreadyEnded)));
    let unknown = world.catalogue.change(SaleId::new(4711).unwrap(), to(SaleState::Open)).await;
    assert!(matches!(unknown, Err(Error::UnknownSale(_))));
}

/// One sale at a time that RFC 3339 cannot print, and nobody could list the sales any more.
#[tokio::test]
async fn times_that_cannot_be_printed_and_texts_that_cannot_be_stored_are_refused() {
    let world = World::new("unprintable").await;
    let at = |text: &str| OffsetDateTime::parse(text, &Rfc3339).unwrap();
    let before = NewSale { starts_at: at("0000-01-01T00:00:00+23:59"), ..new_sale() };
    let beyond = NewSale { ends_at: at("9999-12-31T23:59:59-23:59"), ..new_sale() };
    let nul = NewSale { name: "a\0".to_owned(), ..new_sale() };
    for bad in [before, beyond.clone(), nul] {
        assert!(matches!(world.catalogue.create(bad.clone()).await, Err(Error::Invalid(_))), "{bad:?}");
    }
    let sale = world.catalogue.create(new_sale()).await.unwrap();
    let later = SaleChange { ends_at: Some(beyond.ends_at), ..SaleChange::default() };
    assert!(matches!(world.catalogue.change(sale.id, later).await, Err(Error::Invalid(_))));
    let user = "eve".parse().unwrap();
    assert!(matches!(world.catalogue.block(&user, "a\0").await, Err(Error::Invalid(_))));
}

/// A sale that falls past retention is forgotten, and the orders that were on their way would be forgotten with it.
#[tokio::test]
async fn an_end_is_not_moved_into_the_past() {
    let world = World::new("past_end").await;
    let now = OffsetDateTime::now_utc();
    let old = NewSale { starts_at: now - RETENTION * 9, ends_at: now + NEVER, ..new_sale() };
    let sale = world.catalogue.create(old).await.unwrap();
    world.catalogue.change(sale.id, to(SaleState::Open)).await.unwrap();
    let past = SaleChange { ends_at: Some(now - RETENTION * 2), ..SaleChange::default() };
    assert!(matches!(world.catalogue.change(sale.id, past).await, Err(Error::Invalid(_))));
    assert!(world.catalogue.get(sale.id).is_some());
    let at_once = SaleChange { ends_at: Some(now), ..SaleChange::default() };
    world.catalogue.change(sale.id, at_once).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn changes_from_two_nodes_at_once_are_all_kept_and_numbered() {
    let world = World::new("two_nodes").await;
    let sale = world.catalogue.create(new_sale()).await.unwrap();
    let other = world.another().await;
    let longer = async {
        for second in 1..=20 {
            let ends_at = Some(sale.ends_at + Duration::from_secs(second));
            world.catalogue.change(sale.id, SaleChange { ends_at, ..SaleChange::default() }).await.unwrap();
        }
    };
    let earlier = async {
        for second in 1..=20 {
            let starts_at = Some(sale.starts_at - Duration::from_secs(second));
            other.change(sale.id, SaleChange { starts_at, ..SaleChange::default() }).await.unwrap();
        }
    };
    tokio::join!(longer, earlier);
    world.catalogue.refresh().await.unwrap();
    let last = world.catalogue.get(sale.id).unwrap();
    assert_eq!(last.revision, 41);
    assert_eq!(last.ends_at - sale.ends_at, Duration::from_secs(20));
    assert_eq!(sale.starts_at - last.starts_at, Duration::from_secs(20));
}

#[tokio::test]
async fn a_blocked_user_is_blocked_on_every_node_and_can_be_unblocked() {
    let world = World::new("blacklist").await;
    let other = world.another().await;
    let (ada, bob) = (user("ada"), user("bob"));
    for reason in ["a bot", "still a bot"] {
        world.catalogue.block(&ada, reason).await.unwrap();
    }
    assert!(world.catalogue.is_blocked(&ada) && !world.catalogue.is_blocked(&bob));
    other.refresh().await.unwrap();
    assert!(other.is_blocked(&ada));
    for reason in ["x".repeat(201), String::new(), "a\0b".to_owned()] {
        assert!(matches!(world.catalogue.block(&bob, &reason).await, Err(Error::Invalid(_))), "{reason:?}");
    }

    for _ in 0..2 {
        other.unblock(&ada).await.unwrap();
    }
    world.catalogue.refresh().await.unwrap();
    assert!(!world.catalogue.is_blocked(&ada));
}

#[tokio::test]
async fn a_sale_past_retention_is_forgotten_by_the_node_and_not_by_the_ledger() {
    let world = World::new("past_retention").await;
    let now = OffsetDateTime::now_utc();
    let ended = |ago: Duration| NewSale { starts_at: now - ago * 2, ends_at: now - ago, ..new_sale() };
    let kept = world.catalogue.create(ended(RETENTION / 2)).await.unwrap();
    let forgotten = world.catalogue.create(ended(RETENTION * 2)).await.unwrap();
    assert!(world.catalogue.get(kept.id).is_some());
    assert!(world.catalogue.get(forgotten.id).is_none());
    assert!(world.ledger.stock(forgotten.id).await.unwrap().is_some());
}

#[tokio::test]
async fn a_nudge_wakes_the_poller_and_a_stop_ends_it() {
    let world = World::new("nudge").await;
    let other = world.another().await;
    let stop = CancellationToken::new();
    let poller = tokio::spawn({
        let (other, stop) = (other.clone(), stop.clone());
        async move { other.run(NEVER, stop).await }
    });
    let sale = world.catalogue.create(new_sale()).await.unwrap();
    assert!(other.get(sale.id).is_none());
    other.request_refresh();
    let seen = async {
        while other.get(sale.id).is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), seen).await.unwrap();
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(10), poller).await.unwrap().unwrap();
}

/// What was logged, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn count(&self, words: &str) -> usize {
        String::from_utf8_lossy(&self.0.lock().unwrap()).matches(words).count()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn while_postgres_does_not_answer_the_old_copy_stays_and_the_log_says_so_once() {
    let world = World::new("old_copy").await;
    let sale = world.catalogue.create(new_sale()).await.unwrap();
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer({
        let log = log.clone();
        move || log.clone()
    });
    let _guard = tracing::subscriber::set_default(subscriber.finish());

    // The database lets nobody in any more.
    let url = secrecy::ExposeSecret::expose_secret(&world.settings.url);
    let (server, database) = url.rsplit_once('/').unwrap();
    let admin = PgPool::connect(&format!("{server}/postgres")).await.unwrap();
    let doors = async |open: bool| {
        let sql = format!(
            "ALTER DATABASE \"{database}\" ALLOW_CONNECTIONS {open};
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}' AND NOT {open};"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&admin).await.unwrap();
    };
    doors(false).await;
    for _ in 0..5 {
        world.catalogue.run_once().await;
        assert_eq!(*world.catalogue.get(sale.id).unwrap(), sale);
    }
    assert!(matches!(world.catalogue.refresh().await, Err(Error::Unavailable(_))));
    assert_eq!((log.count("going on with the old copy"), log.count("fresh again")), (1, 0));

    doors(true).await;
    for _ in 0..5 {
        world.catalogue.run_once().await;
    }
    assert_eq!((log.count("going on with the old copy"), log.count("fresh again")), (1, 1));
}
