//! What each test has for itself on the servers that all tests share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

use drive::environment::SandboxSettings;
use sandbox::{Options, RedisOptions, Sandbox};
use seckill::config::Settings;
use sqlx::PgPool;

/// More sales than any test makes.
const SALES_PER_TEST: i32 = 1_000_000;

static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
static NEXT_SALES: AtomicI32 = AtomicI32::new(SALES_PER_TEST);

/// Settings for the test `name` on the shared servers: an empty database, an empty Redis database, topics and a consumer
/// group that no other test has.
///
/// # Panics
/// When another test has asked with the same name: the two would share a database.
pub async fn shared_settings(name: &str) -> Settings {
    let is_new = NAMES.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    assert!(is_new, "another test is already called {name}: choose another name for its settings");
    let sandbox = sandbox::shared().await.expect("the servers start");
    sandbox.settings(name).await.expect("settings")
}

/// Servers that are the test's own, to kill, pause or cut them, and settings that lead to them, and to the shared servers
/// for those that it has not asked for. A Kafka takes both cores for seconds until it is up: ask for one only to kill it.
pub async fn with_own(name: &str, options: Options) -> (Sandbox, Settings) {
    let mut settings = shared_settings(name).await;
    let sandbox = Sandbox::start(options).await.expect("the servers start");
    let own = sandbox.settings(name).await.expect("settings");
    if options.redis.is_some() {
        settings.redis = own.redis;
    }
    if options.postgres {
        settings.postgres = own.postgres;
    }
    if options.kafka {
        settings.kafka = own.kafka;
    }
    (sandbox, settings)
}

pub fn own_redis() -> Options {
    Options::none().redis(RedisOptions::default())
}

/// Lets the ids of sales in this database begin where those of no other test do. A Redis server has one space of
/// channels for all of its databases, so each node receives the stock updates of every test; it must not take another
/// test's sale for its own.
pub async fn number_sales_apart(pool: &PgPool) {
    let first = NEXT_SALES.fetch_add(SALES_PER_TEST, Ordering::Relaxed);
    let restart = sqlx::query("SELECT setval(pg_get_serial_sequence('sales', 'id'), $1, false)");
    restart.bind(i64::from(first)).execute(pool).await.expect("a sequence");
}
