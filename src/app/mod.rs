//! Puts the parts together: which roles a process plays, and in which order it starts and stops.

mod health;

mod http;

mod metrics_server;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use prometheus::Registry;
use tokio_util::sync::CancellationToken;

use crate::catalogue::Catalogue;
use crate::config::Settings;
use crate::consumer::Consumer;
use crate::domain::{SaleId, SaleState};
use crate::kafka::Producer;
use crate::ledger::Ledger;
use crate::lock::Lock;
use crate::operator::Operator;
use crate::outbox::{Relay, heartbeat};
use crate::reconcile::{Parts, Reconciler};
use crate::shutdown::{self, Part, Stop, Stopped};
use crate::stock::Stock;
use crate::telemetry;

pub use health::RedisHealth;
pub use http::{BACKLOG, HEAD_TIMEOUT, KEEP_ALIVE, MAX_CONNECTIONS_PER_WORKER};

/// How often a node refreshes its copy of the catalogue.
const CATALOGUE_EVERY: Duration = Duration::from_secs(1);

/// What a process does. Any number of processes may play each role.
#[derive(Clone, Copy, Debug)]
pub struct Roles {
    name: &'static str,
    serve: bool,
    relay: bool,
    consume: bool,
    reconcile: bool,
}

impl Roles {
    pub const SERVE: Self = Self { name: "serve", serve: true, relay: false, consume: false, reconcile: false };
    pub const RELAY: Self = Self { name: "relay", serve: false, relay: true, consume: false, reconcile: false };
    pub const CONSUME: Self = Self { name: "consume", serve: false, relay: false, consume: true, reconcile: false };
    pub const RECONCILE: Self = Self { name: "reconcile", serve: false, relay: false, consume: false, reconcile: true };
    /// No role: only what an operator needs.
    pub const OBSERVE: Self = Self { name: "observe", serve: false, relay: false, consume: false, reconcile: false };
    pub const ALL: Self = Self { name: "all", serve: true, relay: true, consume: true, reconcile: true };
}

/// Plays the roles until a signal, then stops in order.
pub async fn run(settings: Settings, roles: Roles) -> anyhow::Result<()> {
    telemetry::init(&settings.telemetry)?;
    telemetry::announce(roles.name, &settings);
    // From here on a signal asks for an orderly stop, also during the start.
    let signals = shutdown::signals()?;
    let stop = Stop::new();
    let service = Service::start(&settings, roles, &stop).await?;
    stop.set_ready();
    let drain = Duration::from_millis(settings.http.drain_ms);
    let part_timeout = Duration::from_secs(settings.http.shutdown_timeout_s)
        + Duration::from_millis(settings.kafka.delivery_timeout_ms);
    let stopped = stop.run(signals, drain, part_timeout).await;
    service.ledger.pool().close().await;
    tracing::info!(?stopped, "stopped");
    anyhow::ensure!(stopped != Stopped::Late, "a part did not stop in time");
    Ok(())
}

/// The running parts of one process. They belong to the [`Stop`] that they were started with.
pub struct Service {
    /// Where the process listens, if it does.
    pub http: Option<SocketAddr>,
    pub ledger: Ledger,
    pub stock: Stock,
    pub catalogue: Catalogue,
    pub operator: Operator,
}

impl Service {
    /// Connects to everything and starts the parts of `roles`.
    ///
    /// # Errors
    /// When a server does not answer now, or Redis is set up so that it would forget units.
    pub async fn start(settings: &Settings, roles: Roles, stop: &Stop) -> anyhow::Result<Self> {
        let registry = telemetry::registry()?;
        let ledger = ledger(settings).await?;
        ledger.metrics().register(&registry)?;
        let catalogue = catalogue(settings, &ledger).await?;
        let stock = Stock::connect(&settings.redis)?;
        let health = RedisHealth::read(&stock).await.context("redis does not answer")?;
        health.refuse_if_forgetful()?;

        let polling = catalogue.clone();
        let token = stop.token(Part::Jobs);
        stop.spawn(Part::Jobs, async move { polling.run(CATALOGUE_EVERY, token).await });

        let operator = Operator::new(catalogue.clone(), ledger.clone(), stock.clone(), settings);
        let mut service = Self { http: None, ledger, stock, catalogue, operator };
        if roles.relay {
            service.start_relay(settings, &registry, stop)?;
        }
        if roles.consume {
            service.start_consumer(settings, &registry, stop)?;
        }
        if roles.reconcile {
            service.start_reconciler(settings, &registry, stop)?;
        }
        if roles.serve {
            service.http = Some(http::start(settings, &service, registry, stop)?);
        } else if let Some(bind) = settings.telemetry.bind {
            service.http = Some(metrics_server::start(bind, registry, stop)?);
        }
        Ok(service)
    }

    fn start_relay(&self, settings: &Settings, registry: &Registry, stop: &Stop) -> anyhow::Result<()> {
        let catalogue = self.catalogue.clone();
        let opened = move || -> Vec<SaleId> {
            catalogue.all().iter().filter(|sale| sale.state != SaleState::Draft).map(|sale| sale.id).collect()
        };
        let relay = Relay::new(settings, Arc::new(opened), registry)?;
        let token = stop.token(Part::Relay);
        let (pool, name, status) = (self.ledger.pool().clone(), relay.name().to_owned(), relay.flush_status());
        stop.spawn(Part::Relay, async move {
            // The heart beats until the relay has ended: until then it may hold orders.
            let heart = CancellationToken::new();
            let beating = heartbeat::run(pool, name, status, heart.clone());
            let relaying = async {
                relay.run(token).await;
                heart.cancel();
            };
            futures_util::join!(beating, relaying);
        });
        Ok(())
    }

    fn start_reconciler(&self, settings: &Settings, registry: &Registry, stop: &Stop) -> anyhow::Result<()> {
        let (catalogue, ledger, stock) = (self.catalogue.clone(), self.ledger.clone(), self.stock.clone());
        let reconciler = reconciler_of(settings, catalogue, ledger, stock, registry)?;
        let token = stop.token(Part::Jobs);
        stop.spawn(Part::Jobs, async move { reconciler.run(token).await });
        Ok(())
    }

    fn start_consumer(&self, settings: &Settings, registry: &Registry, stop: &Stop) -> anyhow::Result<()> {
        let consumer = Consumer::new(settings, self.ledger.clone(), registry)?;
        let token: CancellationToken = stop.token(Part::Consumer);
        stop.spawn(Part::Consumer, async move {
            if let Err(error) = consumer.run(token).await {
                tracing::error!(error = format!("{error:#}"), "the consumer broke down");
            }
        });
        Ok(())
    }
}

/// The ledger of these settings.
pub async fn ledger(settings: &Settings) -> anyhow::Result<Ledger> {
    let pay_within = Duration::from_secs(settings.orders.pay_within_s);
    Ledger::connect(&settings.postgres, pay_within).await.context("postgres does not answer")
}

/// The operator's commands, for a process that plays no role.
pub async fn operator(settings: &Settings) -> anyhow::Result<Operator> {
    let ledger = ledger(settings).await?;
    let catalogue = catalogue(settings, &ledger).await?;
    let stock = Stock::connect(&settings.redis)?;
    Ok(Operator::new(catalogue, ledger, stock, settings))
}

/// A reconciler, and the sales that there are, for a process that plays no role.
pub async fn reconciler(settings: &Settings) -> anyhow::Result<(Catalogue, Reconciler)> {
    let ledger = ledger(settings).await?;
    let catalogue = catalogue(settings, &ledger).await?;
    let stock = Stock::connect(&settings.redis)?;
    let reconciler = reconciler_of(settings, catalogue.clone(), ledger, stock, &telemetry::registry()?)?;
    Ok((catalogue, reconciler))
}

fn reconciler_of(
    settings: &Settings,
    catalogue: Catalogue,
    ledger: Ledger,
    stock: Stock,
    registry: &Registry,
) -> anyhow::Result<Reconciler> {
    let lock = Lock::new(&settings.redis, ledger.pool().clone())?;
    lock.metrics().register(registry)?;
    let parts = Parts { catalogue, ledger, stock, lock, producer: Producer::new(&settings.kafka)? };
    Ok(Reconciler::new(settings, parts, registry)?)
}

async fn catalogue(settings: &Settings, ledger: &Ledger) -> anyhow::Result<Catalogue> {
    let loaded = Catalogue::load(ledger.pool().clone(), settings.redis.retention()).await;
    loaded.context("the catalogue cannot be read: has `seckill migrate` been run?")
}
