//! The test bed of the drill: a cluster behind proxies, and how it is repaired after a fault.

use std::sync::Arc;
use std::time::Duration;

use crate::demo::{Cluster, ClusterSpec, Program};
use anyhow::Context;
use drive::client::{Client, Limits};
use drive::environment::SandboxSettings;
use drive::stores::Stores;
use drive::tokens::Tokens;
use redis::aio::MultiplexedConnection;
use sandbox::Sandbox;
use seckill::config::Settings;
use seckill::domain::SaleId;
use seckill::ledger::Ledger;
use secrecy::ExposeSecret;

use super::repair::remove_triggers;

/// The parts that every fault finds running.
pub const PARTS: [&str; 5] = ["node-0", "node-1", "relay", "consume", "reconcile"];

const SPEC: ClusterSpec = ClusterSpec { nodes: 2, roles: &["relay", "consume", "reconcile"], tune };

/// Two nodes and one of each other role, and direct connections to the stores for the checks.
pub struct TestBed {
    pub cluster: Cluster,
    pub tokens: Tokens,
    pub client: Arc<Client>,
    pub stores: Stores,
    pub ledger: Ledger,
}

/// Makes every timeout as short as the others allow, so that a fault is over in seconds, and sends connections through
/// the proxies that a fault can cut.
fn tune(sandbox: &Sandbox, part: &str, mut settings: Settings) -> Settings {
    settings.kafka.delivery_timeout_ms = 3_000;
    settings.kafka.session_timeout_ms = 2_000;
    settings.outbox.block_ms = 500;
    settings.outbox.claim_after_ms = 3_500;
    settings.reconcile.every_ms = 200;
    settings.reconcile.deep_every_ms = 500;
    settings.reconcile.grace_ms = 4_000;
    settings.reconcile.relay_stale_ms = 4_000;
    settings.reconcile.lock_ttl_ms = 2_000;
    if !part.starts_with("node") {
        // Few lines, and what they say is what one wants to know when a fault fails.
        settings.telemetry.filter = "info".to_owned();
    }
    let proxied = sandbox.proxied(&settings);
    // The checks reach Redis whatever is cut, and so does the first node. The reconciler has a proxy of its own.
    if part != "cluster" {
        settings.postgres.url = proxied.postgres.url;
        settings.kafka.brokers = proxied.kafka.brokers;
    }
    if matches!(part, "node-1" | "relay") {
        settings.redis.url = proxied.redis.url;
    } else if part.starts_with("reconcile") {
        settings = sandbox.via_second_redis_proxy(&settings);
    }
    settings
}

impl TestBed {
    pub async fn prepare() -> anyhow::Result<Self> {
        let program = Program::this()?;
        let cluster = Box::pin(Cluster::with(&program, SPEC)).await?;
        let tokens = Tokens::new(&cluster.settings.auth.jwt_secret)?;
        let limits = Limits { response: Duration::from_secs(3), ..Limits::default() };
        let client = Arc::new(Client::new(&cluster.urls, limits)?);
        let stores = Stores::connect(&cluster.settings).await?;
        let pay_within = Duration::from_secs(cluster.settings.orders.pay_within_s);
        let ledger = Ledger::connect(&cluster.settings.postgres, pay_within).await?;
        Ok(Self { cluster, tokens, client, stores, ledger })
    }

    pub const fn sandbox(&self) -> &Sandbox {
        &self.cluster.sandbox
    }

    /// The generation of a sale, as the ledger has it.
    pub async fn generation(&self, sale: SaleId) -> anyhow::Result<i64> {
        Ok(self.ledger.stock(sale).await?.context("the ledger has no such sale")?.generation)
    }

    /// A connection to Redis that nothing cuts.
    pub async fn redis(&self) -> anyhow::Result<MultiplexedConnection> {
        let client = redis::Client::open(self.cluster.settings.redis.url.expose_secret())?;
        client.get_multiplexed_async_connection().await.context("Redis does not answer")
    }

    /// `kill -9`, and the part runs again afterwards.
    pub fn kill_and_restart(&mut self, part: &str) -> anyhow::Result<()> {
        self.cluster.part(part)?.kill()?;
        self.cluster.restart(part)
    }

    /// Undoes whatever a fault left behind: afterwards everything runs and is reachable.
    pub async fn repair(&mut self) -> anyhow::Result<()> {
        let sandbox = &self.cluster.sandbox;
        let (redis, postgres, kafka) = (sandbox.redis(), sandbox.postgres(), sandbox.kafka());
        for proxy in [redis.proxy()?, postgres.proxy()?, kafka.proxy()?] {
            proxy.heal().await;
        }
        // What has ended cannot be resumed, and is started again.
        if redis.resume().is_err() {
            redis.restart().await?;
        }
        if postgres.resume().is_err() {
            postgres.restart().await?;
        }
        if kafka.resume().is_err() {
            kafka.restart().await?;
        }
        remove_triggers(&self.ledger).await?;
        for part in self.cluster.names() {
            if !PARTS.contains(&part.as_str()) {
                self.cluster.remove(&part)?;
            } else if self.cluster.part(&part)?.resume().is_err() {
                self.cluster.restart(&part)?;
            }
        }
        self.cluster.wait_until_ready().await
    }

    /// As [`TestBed::repair`], with new processes for all parts: one of them may be stuck.
    pub async fn reset(&mut self) -> anyhow::Result<()> {
        self.repair().await?;
        for part in PARTS {
            self.cluster.restart(part)?;
        }
        self.cluster.wait_until_ready().await
    }

    /// Ends a sale in the distant past, so that no later rebuild waits for it.
    pub async fn close_sale(&self, sale: SaleId) -> anyhow::Result<()> {
        let long_ago = "UPDATE sales SET state = 'ended', revision = revision + 1,
            starts_at = clock_timestamp() - interval '1 year', ends_at = clock_timestamp() - interval '11 months'
            WHERE id = $1";
        sqlx::query(long_ago).bind(sale.get()).execute(self.ledger.pool()).await?;
        Ok(())
    }
}
