//! The half that may wait: writes the orders of a batch as rows, for as long as it takes.
//!
//! It retries without a limit after a fault of the database, and for a message of a generation that the ledger has
//! not reached. Neither is a reason to drop a message or to send it to the dead letters. Only a message that can
//! never become a row goes there, and its offset counts as done only after Kafka has confirmed the dead letter.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::batch::{Batch, Offsets, Raw};
use super::{Fault, Metrics, Recorder};
use crate::backoff::Backoff;
use crate::config::Settings;
use crate::kafka::{Delivery, Producer, Record};
use crate::telemetry::Outage;

/// What the writer reports of one batch.
pub(super) struct Done {
    pub(super) assignment: u64,
    /// What may be committed; `None` when a stop came before the batch was written.
    pub(super) offsets: Option<Offsets>,
}

pub(super) struct Writer<R> {
    recorder: R,
    producer: Producer,
    topic: Arc<str>,
    dead_letters: Arc<str>,
    backoff: Backoff,
    outage: Outage,
    dead_letter_outage: Outage,
    metrics: Metrics,
}

impl<R: Recorder> Writer<R> {
    pub(super) fn new(settings: &Settings, recorder: R, producer: Producer, metrics: Metrics) -> Self {
        let (first, most) = (settings.consumer.retry_ms, settings.consumer.max_retry_ms);
        Self {
            recorder,
            producer,
            topic: settings.kafka.topic.as_str().into(),
            dead_letters: settings.kafka.dead_letter_topic.as_str().into(),
            backoff: Backoff::new(Duration::from_millis(first), Duration::from_millis(most)),
            outage: Outage::default(),
            dead_letter_outage: Outage::default(),
            metrics,
        }
    }

    /// Writes batches until the thread that reads them is gone.
    pub(super) async fn run(&mut self, mut batches: Receiver<Batch>, done: Sender<Done>, stop: &CancellationToken) {
        while let Some(batch) = batches.recv().await {
            let assignment = batch.assignment;
            let offsets = self.write(batch, stop).await;
            if done.send(Done { assignment, offsets }).is_err() {
                break;
            }
        }
    }

    /// The offsets that are done, or `None` if `stop` came first.
    async fn write(&mut self, mut batch: Batch, stop: &CancellationToken) -> Option<Offsets> {
        let messages = batch.len() as u64;
        loop {
            if !batch.poison.is_empty() {
                self.send_to_dlq(std::mem::take(&mut batch.poison), stop).await?;
            }
            if batch.orders.is_empty() {
                break;
            }
            // Never cut short: a stop waits for the answer, whatever it is.
            match self.recorder.record(&batch.orders).await {
                Ok(()) => break,
                Err(Fault::UnknownSale(sale)) => {
                    batch.reject_where(|order| order.sale == sale, &format!("sale {sale} is not known"));
                }
                Err(Fault::Unrecordable(id)) => {
                    batch.reject_where(|order| order.id == id, "the ledger cannot store this order");
                }
                Err(Fault::Later(reason)) => self.wait(&reason, stop).await?,
            }
        }
        self.outage.recovered(|| info!("orders are written again"));
        self.backoff.reset();
        self.metrics.messages.inc_by(messages);
        self.metrics.batches.inc();
        Some(batch.offsets)
    }

    async fn wait(&mut self, reason: &anyhow::Error, stop: &CancellationToken) -> Option<()> {
        self.metrics.retries.inc();
        self.outage.failed(format!("{reason:#}").as_str(), |reason| {
            warn!(reason, "orders cannot be written now; they wait in Kafka and are tried again: check PostgreSQL");
        });
        let pause = tokio::time::timeout(self.backoff.next_pause(), stop.cancelled()).await;
        // A timeout means that no stop came.
        pause.is_err().then_some(())
    }

    /// Sends messages to the dead-letter topic. Returns when Kafka has confirmed all of them, or `None` if `stop` came.
    async fn send_to_dlq(&self, poison: Vec<(Raw, String)>, stop: &CancellationToken) -> Option<()> {
        let mut deliveries: Vec<_> = poison.into_iter().map(|(raw, reason)| self.dead_letter(raw, reason)).collect();
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        loop {
            let sent = self.producer.send(&mut deliveries).await;
            let acked = self.producer.await_acks(&mut deliveries).await;
            let before = deliveries.len();
            deliveries.retain(|delivery| !delivery.is_delivered());
            self.metrics.dead_lettered.inc_by((before - deliveries.len()) as u64);
            if deliveries.is_empty() {
                self.dead_letter_outage.recovered(|| info!("dead letters can be sent again"));
                return Some(());
            }
            if let Err(error) = sent.and(acked) {
                self.dead_letter_outage.failed(&error, |error| {
                    warn!(
                        %error,
                        messages = deliveries.len(),
                        "dead letters cannot be sent, and orders wait behind them: check their topic"
                    );
                });
                self.producer.replace_if_broken(&self.dead_letters, &error).await;
            }
            if tokio::time::timeout(backoff.next_pause(), stop.cancelled()).await.is_ok() {
                return None;
            }
        }
    }

    fn dead_letter(&self, raw: Raw, reason: String) -> Delivery<()> {
        error!(
            partition = raw.partition,
            offset = raw.offset,
            reason,
            "a message is not an order; it goes to the dead letters"
        );
        let headers = vec![
            ("reason", reason),
            ("source_topic", self.topic.to_string()),
            ("source_partition", raw.partition.to_string()),
            ("source_offset", raw.offset.to_string()),
        ];
        let topic = Arc::clone(&self.dead_letters);
        Delivery::new(Record { topic, key: raw.key, payload: raw.payload, headers }, ())
    }
}
