//! Step 7: carries orders from Kafka to the ledger.
//!
//! In comes the topic, in batches. What is decided: whether a message is an order at all; one that can never become a
//! row goes to the dead letters with its reason. What is guaranteed: an offset is committed only after the ledger has
//! written its message or Kafka has confirmed its dead letter, so a consumer may die at any line and the order comes
//! again. A ledger that is away, or behind the generation of a message, makes the consumer wait; it never drops a
//! message.
//!
//! Two halves: a thread that polls and must not wait, and a task that writes and may. Any number of consumers may
//! share the group.
//!
//! ```text
//!             Kafka: the topic of orders, read as one consumer group
//!               │                                    ▲
//!               │ poll(): never stops                │ commit(written)
//! ┌─────────────▼────────────────────────────────────┴─────────────┐
//! │ thread "consumer" (reader.rs, group.rs)                        │
//! │                                                                │
//! │   next: Batch                 what poll() has brought          │
//! │   busy_since: Option<Instant> set with each Batch handed over, │
//! │                               cleared by its Done              │
//! │   written: Offsets            offsets of each Done             │
//! └─────────────┬────────────────────────────────────▲─────────────┘
//!               │ Batch                              │ Done
//!               │ tokio channel, room for one        │ std channel
//! ┌─────────────▼────────────────────────────────────┴─────────────┐
//! │ task (writer.rs): tries a batch again without a limit          │
//! └─────────────┬────────────────────────────────────┬─────────────┘
//!               ▼ orders                             ▼ messages that are not orders
//!             ledger (PostgreSQL)                  dead-letter topic
//! ```
//!
//! - While the writer has a batch, `busy_since` is set, and the thread gathers at most one batch more.
//! - After one second of that, the thread pauses its partitions and polls on, because Kafka revokes the partitions of a
//!   consumer that does not poll. It resumes them when the writer is idle again.
//! - A rebalance calls back inside `poll()`: the thread waits up to two seconds for the writer, commits, and raises
//!   the number of the assignment. A later `Done` of an older assignment is dropped: the next owner of the partitions
//!   reads its messages again, and rows that are written already change nothing.

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

/// The pause before a new client takes over from one that cannot go on.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// How long no message may come from Kafka before a reader checks whether its metadata is stale: at first, and at
/// most. It doubles with each client that has read nothing, because a new client may only need more time.
const IDLE_TIMEOUT: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];

/// Why the orders of a batch are not written.
#[derive(Debug)]
pub enum Fault {
    /// Orders of this sale can never become rows. The rest of the batch may go on.
    UnknownSale(SaleId),
    /// This order can never become a row. The rest of the batch may go on.
    Unrecordable(OrderId),
    /// Not now: the same batch is tried again later.
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
            producer: Producer::new(&settings.kafka)
                .context("the Kafka producer for dead letters cannot be created")?,
            metrics: Metrics::registered(registry)?,
        })
    }

    /// Consumes until `stop`; then finishes the batch that is being written, commits it and leaves the group. A batch
    /// that the ledger cannot take at that time is left to the next consumer.
    ///
    /// # Errors
    /// When librdkafka refuses the settings or the polling thread panics.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut writer = Writer::new(&self.settings, self.recorder, self.producer, self.metrics.clone());
        info!(group = self.settings.kafka.group, "the consumer runs");
        let mut idle_timeout = IDLE_TIMEOUT[0];
        let has_consumed = Arc::new(AtomicBool::new(false));
        loop {
            let (batches, to_write) = tokio::sync::mpsc::channel(1);
            let (done, finished) = std::sync::mpsc::channel();
            let group = Group::new(&self.settings.kafka.topic, self.metrics.clone(), finished);
            let reader = Reader::subscribe(
                &self.settings,
                group,
                batches,
                self.metrics.clone(),
                idle_timeout,
                has_consumed.clone(),
            )
            .context("the Kafka consumer cannot be created")?;
            let until = stop.clone();
            let thread = thread::Builder::new().name("consumer".to_owned()).spawn(move || reader.run(&until))?;
            // Ends when the thread has left its loop and no batch is left.
            writer.run(to_write, done, &stop).await;
            let ended = tokio::task::spawn_blocking(move || thread.join()).await?;
            match ended.map_err(|_| anyhow!("the thread that reads Kafka broke down"))? {
                Ok(()) => break,
                Err(error) => error!(%error, "the Kafka consumer cannot go on; a new one takes over"),
            }
            let consumed = has_consumed.swap(false, Ordering::Relaxed);
            idle_timeout = if consumed { IDLE_TIMEOUT[0] } else { (idle_timeout * 2).min(IDLE_TIMEOUT[1]) };
            let _ = tokio::time::timeout(RESTART_AFTER, stop.cancelled()).await;
        }
        info!("the consumer has stopped");
        Ok(())
    }
}
