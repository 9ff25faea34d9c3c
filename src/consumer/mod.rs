//! Step 7: carries orders from Kafka to the ledger.
//!
//! In comes the topic, in batches. What is decided: whether a message is an order at all; one that can never become
//! a row goes to the dead letters with its reason. What is guaranteed: an offset is committed only after the ledger
//! said yes to its message or Kafka to its dead record, so a consumer may die at any line and the order comes again.
//! A ledger that is away, or behind the message's generation, makes the consumer wait; it never drops, never rejects.
//!
//! Two halves: a thread that polls and must not wait, and a task that writes and may. Any number of consumers may
//! share the group.

mod batch;
mod group;
mod metrics;
mod reader;
mod writer;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use self::group::Group;
pub use self::metrics::Metrics;
use self::reader::Reader;
use self::writer::Writer;
use crate::config::Settings;
use crate::domain::{OrderId, OrderMessage, SaleId};
use crate::kafka::Producer;
use crate::ledger::{self, Ledger};

/// The wait before a client that broke for good is made anew.
const RESTART: Duration = Duration::from_secs(1);

/// How long nothing may come from Kafka before a reader doubts that nothing is there: at first, and at most. It doubles
/// with each client that has read nothing, because a new one may only need more time.
const QUIET: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];

/// Why the orders of a batch are not written.
#[derive(Debug)]
pub enum Fault {
    /// Orders of this sale can never become rows. The rest of the batch may go on.
    UnknownSale(SaleId),
    /// This order can never become a row. The rest of the batch may go on.
    Unrecordable(OrderId),
    /// Not now: the same batch again later.
    Later(anyhow::Error),
}

/// Where orders become rows.
pub trait Recorder: Send + 'static {
    /// Writes all orders or fails. Writing an order that is written already changes nothing.
    fn record(&self, orders: &[OrderMessage]) -> impl Future<Output = Result<(), Fault>> + Send;
}

impl Recorder for Ledger {
    async fn record(&self, orders: &[OrderMessage]) -> Result<(), Fault> {
        match Self::record(self, orders).await {
            Ok(_) => Ok(()),
            Err(ledger::Error::UnknownSale(sale)) => Err(Fault::UnknownSale(sale)),
            Err(ledger::Error::Unrecordable(order)) => Err(Fault::Unrecordable(order)),
            Err(error) => Err(Fault::Later(error.into())),
        }
    }
}

/// A member of the consumer group.
pub struct Consumer<R> {
    settings: Settings,
    recorder: R,
    producer: Producer,
    metrics: Metrics,
}

impl<R: Recorder> Consumer<R> {
    /// # Errors
    /// When the Kafka settings are refused or the metrics are registered already.
    pub fn new(settings: &Settings, recorder: R, registry: &prometheus::Registry) -> anyhow::Result<Self> {
        Ok(Self {
            settings: settings.clone(),
            recorder,
            producer: Producer::new(&settings.kafka).context("the Kafka producer for dead letters cannot be made")?,
            metrics: Metrics::registered(registry)?,
        })
    }

    /// Consumes until `stop`; then finishes the batch in hand, commits it and leaves the group. A batch that the
    /// ledger cannot take at that time is left to the next consumer.
    ///
    /// # Errors
    /// When librdkafka refuses the settings or the reading thread breaks down.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut writer = Writer::new(&self.settings, self.recorder, self.producer, self.metrics.clone());
        info!(group = self.settings.kafka.group, "the consumer runs");
        let mut quiet = QUIET[0];
        let sighted = Arc::new(AtomicBool::new(false));
        loop {
            let (batches, taken) = tokio::sync::mpsc::channel(1);
            let (done, finished) = std::sync::mpsc::channel();
            let group = Group::new(&self.settings.kafka.topic, self.metrics.clone(), finished);
            let reader =
                Reader::subscribe(&self.settings, group, batches, self.metrics.clone(), quiet, sighted.clone())
                    .context("the Kafka consumer cannot be made")?;
            let until = stop.clone();
            let thread = thread::Builder::new().name("consumer".to_owned()).spawn(move || reader.run(&until))?;
            // Ends when the thread has left its loop and nothing is in hand.
            writer.run(taken, done, &stop).await;
            let ended = tokio::task::spawn_blocking(move || thread.join()).await?;
            match ended.map_err(|_| anyhow!("the thread that reads Kafka broke down"))? {
                Ok(()) => break,
                Err(error) => error!(%error, "the Kafka consumer is beyond repair; a new one takes over"),
            }
            quiet = if sighted.swap(false, Ordering::Relaxed) { QUIET[0] } else { (quiet * 2).min(QUIET[1]) };
            let _ = tokio::time::timeout(RESTART, stop.cancelled()).await;
        }
        info!("the consumer has stopped");
        Ok(())
    }
}
