//! Step 6: carries accepted orders from Redis to Kafka.
//!
//! In comes the outbox stream of every sale, written by the same script that took the units. Out goes one Kafka
//! message per order, keyed by its buyer. What is decided: nothing. What is guaranteed: an entry leaves the stream
//! only after Kafka has confirmed its message, so each order arrives at least once, whatever dies and whenever; an
//! outage of Kafka costs delay and nothing else. Any number of relays may share the streams.

mod entry;
mod flush_status;
pub mod heartbeat;
mod metrics;
mod stream;
mod worker;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};
use uuid::Uuid;

pub use self::flush_status::RelayFlushStatus;
pub use self::metrics::Metrics;
pub use self::stream::{Acknowledged, Receipt};
pub use self::worker::Worker;
use crate::config::Settings;
use crate::domain::SaleId;
use crate::kafka::Producer;

/// How often the list of sales is read. The first order of a sale waits this long at most for its relay.
const SALES_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The sales whose outboxes are relayed: every sale that was ever opened, as long as its keys may live.
pub type Sales = Arc<dyn Fn() -> Vec<SaleId> + Send + Sync>;

/// The relay of all sales: one [`Worker`] each, over one Kafka producer.
pub struct Relay {
    settings: Settings,
    sales: Sales,
    producer: Producer,
    metrics: Metrics,
    flush_status: RelayFlushStatus,
    /// New for every process. The pending entries of a process that died are taken over like those of any other relay.
    consumer: String,
}

struct Running {
    stop: CancellationToken,
    task: tokio::task::AbortHandle,
}

impl Relay {
    /// # Errors
    /// When the Kafka settings are refused or the metrics are registered already.
    pub fn new(settings: &Settings, sales: Sales, registry: &prometheus::Registry) -> anyhow::Result<Self> {
        Ok(Self {
            settings: settings.clone(),
            sales,
            producer: Producer::new(&settings.kafka).context("the Kafka producer cannot be created")?,
            metrics: Metrics::registered(registry)?,
            flush_status: RelayFlushStatus::default(),
            consumer: format!("relay-{}", Uuid::new_v4()),
        })
    }

    /// From which Redis process the workers of this relay have published everything.
    pub fn flush_status(&self) -> RelayFlushStatus {
        self.flush_status.clone()
    }

    /// The name of this relay, new for every process.
    pub fn name(&self) -> &str {
        &self.consumer
    }

    /// Relays until `stop`, then ends as [`Worker::run`] does. Answers how many entries were read and left.
    pub async fn run(self, stop: CancellationToken) -> usize {
        let mut workers = JoinSet::new();
        let mut running: HashMap<SaleId, Running> = HashMap::new();
        let mut left = 0;
        info!(consumer = self.consumer, "the relay runs");
        while !stop.is_cancelled() {
            self.match_workers(&mut workers, &mut running, &stop);
            let _ = tokio::time::timeout(SALES_POLL_INTERVAL, stop.cancelled()).await;
            while let Some(ended) = workers.try_join_next() {
                left += count(ended);
            }
        }
        while let Some(ended) = workers.join_next().await {
            left += count(ended);
        }
        info!(left, "the relay has stopped");
        left
    }

    /// Starts a worker for every sale that has none, and stops the workers of sales that are over once their outboxes
    /// are empty. Not earlier: a worker keeps its outbox from expiring, so it must also empty it.
    fn match_workers(
        &self,
        workers: &mut JoinSet<usize>,
        running: &mut HashMap<SaleId, Running>,
        stop: &CancellationToken,
    ) {
        let sales = (self.sales)();
        running.retain(|sale, worker| {
            let backlog = self.metrics.backlog.with_label_values(&[&sale.to_string()]).get();
            if !sales.contains(sale) && backlog == 0 {
                worker.stop.cancel();
            }
            !worker.task.is_finished()
        });
        for sale in sales {
            if running.contains_key(&sale) {
                continue;
            }
            let worker = Worker::new(
                &self.settings,
                sale,
                &self.consumer,
                self.producer.clone(),
                self.metrics.clone(),
                self.flush_status.clone(),
            );
            match worker {
                Ok(worker) => {
                    let stop = stop.child_token();
                    let until = stop.clone();
                    let task = workers.spawn(async move { worker.run(&until).await });
                    running.insert(sale, Running { stop, task });
                }
                Err(error) => error!(%sale, %error, "no relay for this sale: the URL of Redis is invalid"),
            }
        }
    }
}

fn count(ended: Result<usize, tokio::task::JoinError>) -> usize {
    ended.unwrap_or_else(|error| {
        error!(%error, "the relay of a sale broke down; another one starts, and finds its entries in the stream");
        0
    })
}
