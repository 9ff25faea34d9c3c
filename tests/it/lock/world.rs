//! Two instances with a lock each, the stores behind them, and a look past both.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use prometheus::Registry;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use sandbox::{self, Fsync, RedisOptions, Sandbox};
use seckill::config::Settings;
use seckill::ledger::{self, Ledger};
use seckill::lock::script::{AbortCode, Acquisition, RenewCode};
use seckill::lock::{Guard, Lock, Lost, Name, Options, Released, keys};
use sqlx::PgPool;

use crate::support::servers::shared_settings;

/// A bound for broken code. It costs nothing when things work.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// So long that nothing in a test ends because it expired.
pub const LONG: Duration = Duration::from_secs(60);

/// A Redis that does not wait for the disk: how long a lease lasts must not depend on how fast that is. It takes 50 ms to
/// start, so each test has its own and may do to it what it likes.
async fn fast_redis() -> Sandbox {
    let redis = RedisOptions { fsync: Fsync::Off, ..RedisOptions::default() };
    Sandbox::start(sandbox::Options::none().redis(redis)).await.unwrap()
}

pub struct World {
    /// One instance, and another one.
    pub lock: Lock,
    pub other: Lock,
    pub ledger: Ledger,
    /// Straight to Redis, past every proxy.
    pub redis: MultiplexedConnection,
    pub settings: Settings,
    pub name: Name,
    registry: Registry,
    /// With a Redis that is this test's alone.
    pub own: Sandbox,
}

impl World {
    /// An empty database and an empty Redis for the test of this name.
    pub async fn new(test: &str) -> Self {
        let own = fast_redis().await;
        let url = own.redis().url().to_owned();
        Self::build(test, url, own).await
    }

    /// `lock` reaches Redis through its proxy, and `other` directly. The connection is there and Redis knows the scripts,
    /// so that what fails later fails for no other reason.
    pub async fn behind_proxy(test: &str) -> Self {
        let own = fast_redis().await;
        let url = own.redis().proxied_url().unwrap();
        let world = Self::build(test, url, own).await;
        world.warm_up().await;
        world
    }

    async fn build(test: &str, redis_url: String, own: Sandbox) -> Self {
        let mut settings = shared_settings(&format!("lock_{test}")).await;
        settings.redis.url = redis_url.into();
        // No test of the lock is about the wait for a connection to PostgreSQL.
        settings.postgres.acquire_timeout_ms = 10_000;
        let direct = own.redis().url();
        let ledger = Ledger::connect(&settings.postgres, Duration::from_secs(900)).await.unwrap();
        ledger::migrate(ledger.pool()).await.unwrap();
        let lock = Lock::new(&settings.redis, ledger.pool().clone()).unwrap();
        let mut direct_settings = settings.redis.clone();
        direct_settings.url = direct.into();
        let other = Lock::new(&direct_settings, ledger.pool().clone()).unwrap();
        let registry = Registry::new();
        lock.metrics().register(&registry).unwrap();
        let client = redis::Client::open(direct).unwrap();
        let redis = client.get_multiplexed_async_connection().await.unwrap();
        let name = Name::new("sale:1").unwrap();
        Self { lock, other, ledger, redis, settings, name, registry, own }
    }

    pub fn pool(&self) -> &PgPool {
        self.ledger.pool()
    }

    pub fn own(&self) -> &sandbox::Redis {
        self.own.redis()
    }

    pub fn proxy(&self) -> &sandbox::Proxy {
        self.own().proxy().unwrap()
    }

    pub async fn acquire(&self, options: Options) -> Guard {
        self.lock.acquire(&self.name, options).await.unwrap()
    }

    async fn warm_up(&self) {
        let name = Name::new("warm-up").unwrap();
        let guard = self.lock.acquire(&name, waiting(LONG)).await.unwrap();
        assert_eq!(guard.release().await, Released::Released);
        let (acquisition, mut redis) = (Acquisition::new(name, LONG), self.redis.clone());
        assert_eq!(acquisition.renew(&mut redis).await.unwrap(), RenewCode::Missing);
        assert_eq!(acquisition.abort(&mut redis).await.unwrap(), AbortCode::Nothing);
    }

    /// Who holds the lock, as Redis knows it.
    pub async fn owner(&self) -> Option<String> {
        self.redis.clone().hget(keys::lock(&self.name), "owner").await.unwrap()
    }

    pub async fn pttl(&self) -> i64 {
        self.redis.clone().pttl(keys::lock(&self.name)).await.unwrap()
    }

    /// A holder that believes in its lock until `deadline` stops before Redis lets another in.
    pub async fn assert_ends_by(&self, deadline: Instant) {
        let left = Duration::from_millis(self.pttl().await.try_into().unwrap());
        // Redis counted `left` at some moment before its answer came.
        let answered = Instant::now();
        assert!(deadline <= answered + left, "{deadline:?} {answered:?} {left:?}");
    }

    /// Whether an acquisition was ended with this word.
    pub async fn gone(&self, word: &str) -> bool {
        let mut redis = self.redis.clone();
        for key in redis.keys::<_, Vec<String>>(format!("seckill:v1:lock:{{{}}}:gone:*", self.name)).await.unwrap() {
            if redis.get::<_, Option<String>>(key).await.unwrap().as_deref() == Some(word) {
                return true;
            }
        }
        false
    }

    pub async fn until_free(&self) {
        until("the lock is free", async || self.owner().await.is_none()).await;
    }

    pub async fn until_held(&self) {
        until("the lock is held", async || self.owner().await.is_some()).await;
    }

    /// Makes the lock somebody else's, as after a failover that forgot ours.
    pub async fn steal(&self, ttl: Duration) {
        let key = keys::lock(&self.name);
        let script = "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], 'owner', 'thief', 'token', '99')
                      redis.call('PEXPIRE', KEYS[1], ARGV[1])";
        let ttl = u64::try_from(ttl.as_millis()).unwrap();
        redis::cmd("EVAL").arg(script).arg(1).arg(key).arg(ttl).exec_async(&mut self.redis.clone()).await.unwrap();
    }

    pub async fn remove(&self) {
        let _: i64 = self.redis.clone().del(keys::lock(&self.name)).await.unwrap();
    }

    pub async fn flush(&self) {
        redis::cmd("FLUSHDB").exec_async(&mut self.redis.clone()).await.unwrap();
    }

    pub async fn forget_scripts(&self) {
        redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut self.redis.clone()).await.unwrap();
    }

    /// A counter of `lock`, with the value of its one label if it has one.
    pub fn counted(&self, counter: &str, label: &str) -> u64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == format!("seckill_lock_{counter}_total"));
        let metrics = family.map(|family| family.get_metric()).unwrap_or_default();
        let of_label = metrics.iter().filter(|metric| metric.get_label().iter().all(|pair| pair.value() == label));
        of_label.map(|metric| metric.get_counter().get_value() as u64).sum()
    }
}

/// Whether the holder was told of a loss by now.
pub fn loss(guard: &Guard) -> Option<Lost> {
    guard.lost().now_or_never()
}

pub fn waiting(wait_at_most: Duration) -> Options {
    Options { wait_at_most, ttl: LONG, ..Options::default() }
}

pub fn lasting(ttl_ms: u64) -> Options {
    Options { ttl: Duration::from_millis(ttl_ms), ..Options::default() }
}

/// Looks again and again until it is so.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Fails when it does not end.
pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("in vain: {what}"))
}
