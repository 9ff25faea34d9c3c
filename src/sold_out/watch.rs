//! Keeps the flags of a node fresh: subscribes to stock updates, and probes every second in case a message was lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use secrecy::ExposeSecret;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::Flags;
use crate::catalogue::Catalogue;
use crate::config;
use crate::domain::{Sale, SaleId, SaleState, StockVersion};
use crate::stock::{Stock, keys};

const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const RECONNECT_AFTER: Duration = Duration::from_millis(500);

/// The watcher of one node.
pub struct Watch {
    flags: Flags,
    stock: Stock,
    catalogue: Catalogue,
    client: redis::Client,
}

impl Watch {
    pub fn new(
        settings: &config::Redis,
        flags: Flags,
        stock: Stock,
        catalogue: Catalogue,
    ) -> Result<Self, redis::RedisError> {
        let client = redis::Client::open(settings.url.expose_secret())?;
        Ok(Self { flags, stock, catalogue, client })
    }

    /// Probes and listens until cancelled.
    pub async fn run(self, cancel: CancellationToken) {
        let probing = async {
            let mut rounds = tokio::time::interval(PROBE_INTERVAL);
            // A round that was late is no reason to hurry the next one.
            rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                rounds.tick().await;
                self.probe_once().await;
            }
        };
        let listening = async {
            loop {
                // The reason does not matter: the probes carry on alone, and a new connection is tried.
                if let Err(error) = self.listen().await {
                    tracing::debug!(%error, "the channel of stock updates is down");
                }
                tokio::time::sleep(RECONNECT_AFTER).await;
            }
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = probing => {}
            () = listening => {}
        }
    }

    /// Probes every sale that may be selling, all at once: many sales, or a Redis that does not answer, must not make a
    /// round longer than the second that is promised.
    pub async fn probe_once(&self) {
        let may_sell = |sale: &Arc<Sale>| matches!(sale.state, SaleState::Open | SaleState::Paused);
        let sales = self.catalogue.all().into_iter().filter(may_sell);
        futures_util::future::join_all(sales.map(|sale| self.probe(sale))).await;
    }

    async fn probe(&self, sale: Arc<Sale>) {
        let update = match self.stock.probe(sale.id).await {
            // An update of a generation that the ledger has left behind says nothing.
            Ok(update) => update.filter(|update| update.version.generation == sale.generation),
            Err(error) => {
                tracing::debug!(sale = %sale.id, %error, "a probe got no answer");
                None
            }
        };
        self.flags.of(sale.id).on_probe(update);
    }

    async fn listen(&self) -> Result<(), redis::RedisError> {
        let mut channel = self.client.get_async_pubsub().await?;
        channel.subscribe(keys::STOCK_UPDATES_CHANNEL).await?;
        let mut messages = channel.into_on_message();
        while let Some(message) = messages.next().await {
            let text: String = message.get_payload()?;
            if let Some((sale, version)) = parse(&text) {
                self.flags.of(sale).on_restock(version);
            }
        }
        Ok(())
    }
}

/// `SALE GENERATION EPOCH`
fn parse(text: &str) -> Option<(SaleId, StockVersion)> {
    let mut words = text.split(' ');
    let sale = words.next()?.parse().ok()?;
    Some((sale, StockVersion::new(words.next()?.parse().ok()?, words.next()?.parse().ok()?)))
}
