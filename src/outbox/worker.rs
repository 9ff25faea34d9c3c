//! The relay of one sale: from its outbox stream to Kafka, and out of the stream once Kafka has confirmed.
//!
//! A turn reads one batch and hands it to the producer while Kafka confirms the batch before. After a start or an
//! error the worker first reads its own pending entries again. Every `outbox.claim_after_ms` it takes over entries of
//! a relay that has gone silent. Otherwise it reads new entries. An entry leaves the stream only after its delivery
//! report. So a relay that dies at any line may publish an order twice, but loses none.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::KafkaError;
use redis::RedisError;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::entry::Entry;
use super::flush_status::RelayFlushStatus;
use super::metrics::Metrics;
use super::stream::{Read, Receipt, Stream};
use crate::backoff::Backoff;
use crate::config::Settings;
use crate::domain::SaleId;
use crate::kafka::{Delivery, Producer, Record, message};
use crate::stock::keys;
use crate::telemetry::Outage;

/// First and longest wait after a failed delivery or a failed Redis command.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Longest pause between two checks for a stream that no purchase has made yet. The first order waits that long.
const STREAM_POLL_INTERVAL: Duration = Duration::from_millis(200);

type Batch = Vec<Delivery<Receipt>>;

/// Where to read this relay's own pending entries.
enum Resume {
    /// From the first one. Until then it is not known of which Redis process everything is published.
    FromStart,
    /// After the entry with this id.
    After(String),
    /// All of them are read.
    Done,
}

/// The relay of one sale.
pub struct Worker {
    sale: SaleId,
    topic: Arc<str>,
    dead_letters: Arc<str>,
    count: usize,
    block: Duration,
    claim_after: Duration,
    /// How long an outbox with entries in it is kept at least, from now on.
    retention: Duration,
    stream: Stream,
    producer: Producer,
    metrics: Metrics,
    flush_status: RelayFlushStatus,
    /// Handed to Kafka, oldest first. At most two batches.
    in_flight: VecDeque<Batch>,
    /// Confirmed by Kafka, still in the stream.
    confirmed: Vec<Receipt>,
    resume: Resume,
    claim_at: Instant,
    claim_from: String,
    measure_at: Instant,
    kafka_outage: Outage,
    redis_outage: Outage,
    redis_backoff: Backoff,
}

impl Worker {
    /// `consumer` must be a name that no other relay has or ever had.
    ///
    /// # Errors
    /// When the URL of Redis is none.
    pub fn new(
        settings: &Settings,
        sale: SaleId,
        consumer: &str,
        producer: Producer,
        metrics: Metrics,
        flush_status: RelayFlushStatus,
    ) -> Result<Self, RedisError> {
        flush_status.enter(sale);
        let block = Duration::from_millis(settings.outbox.block_ms);
        let claim_after = Duration::from_millis(settings.outbox.claim_after_ms);
        let now = Instant::now();
        Ok(Self {
            sale,
            topic: settings.kafka.topic.as_str().into(),
            dead_letters: settings.kafka.dead_letter_topic.as_str().into(),
            count: settings.outbox.batch,
            block,
            claim_after,
            retention: settings.redis.retention(),
            stream: Stream::new(&settings.redis, block, keys::outbox(sale), consumer.to_owned())?,
            producer,
            metrics,
            flush_status,
            in_flight: VecDeque::new(),
            confirmed: Vec::new(),
            resume: Resume::FromStart,
            claim_at: now,
            claim_from: "0-0".to_owned(),
            measure_at: now,
            kafka_outage: Outage::default(),
            redis_outage: Outage::default(),
            redis_backoff: Backoff::new(RETRY.0, RETRY.1),
        })
    }

    /// Relays until `stop`, then waits for the reports of what is in flight (at most the delivery timeout) and
    /// removes what they confirm. Answers how many entries are read and unconfirmed: they stay in the stream until
    /// another relay takes them over.
    pub async fn run(mut self, stop: &CancellationToken) -> usize {
        while !stop.is_cancelled() {
            let turn = self.turn(stop).await;
            self.recover(turn, stop).await;
        }
        if let Err(error) = self.settle_all(stop).await {
            warn!(sale = %self.sale, %error, "the outbox cannot be reached while the relay stops");
        }
        self.flush_status.leave(self.sale);
        let left = self.confirmed.len() + self.in_flight.iter().map(Vec::len).sum::<usize>();
        if left > 0 {
            warn!(sale = %self.sale, left, "entries left in the outbox for another relay");
            self.metrics.left.inc_by(left as u64);
        } else if let Err(error) = self.stream.leave().await {
            debug!(sale = %self.sale, %error, "the name of this relay stays in the group");
        }
        left
    }

    /// One turn to its end: whatever it read is published, confirmed and removed. Waits up to `block_ms` for
    /// something to read and for ever for Kafka.
    ///
    /// # Errors
    /// When Redis fails; what was confirmed by then is removed by the next call.
    pub async fn run_once(&mut self) -> Result<(), RedisError> {
        let never = CancellationToken::new();
        let mut outcome = self.turn(&never).await;
        if outcome.is_ok() {
            outcome = self.settle_all(&never).await;
        }
        if outcome.is_err() {
            self.start_over();
        }
        outcome
    }

    async fn turn(&mut self, stop: &CancellationToken) -> Result<(), RedisError> {
        self.remove_confirmed().await?;
        self.measure().await?;
        let entries = self.next_entries(stop).await?;
        if !entries.is_empty() {
            let batch = entries.into_iter().map(|entry| self.delivery(entry)).collect::<Vec<_>>();
            self.in_flight.push_back(batch);
            self.send(self.in_flight.len() - 1).await;
            if self.in_flight.len() == 1 {
                // Nothing to confirm yet: read on while Kafka works.
                return Ok(());
            }
        }
        self.settle_oldest(stop).await
    }

    /// The next batch to publish; empty when there is none within the time that a read may wait.
    async fn next_entries(&mut self, stop: &CancellationToken) -> Result<Vec<Entry>, RedisError> {
        if !matches!(self.resume, Resume::Done) || self.claim_at <= Instant::now() {
            // Entries in flight are pending too: reading them again would publish them twice.
            self.settle_all(stop).await?;
            if stop.is_cancelled() {
                return Ok(Vec::new());
            }
            if matches!(self.resume, Resume::FromStart) {
                // Everything that was read before this connection is in Kafka now. From here on the worker reads only
                // from the Redis process of this connection.
                self.flush_status.report(self.sale, self.stream.run_id().await?);
            }
            let entries = self.read_again().await?;
            if !entries.is_empty() {
                return Ok(entries);
            }
        }
        let block = self.in_flight.is_empty().then_some(self.block);
        match self.stream.read_new(self.count, block).await? {
            Read::Entries(entries) => Ok(entries),
            Read::NoStream => {
                let _ = timeout(self.block.min(STREAM_POLL_INTERVAL), stop.cancelled()).await;
                Ok(Vec::new())
            }
        }
    }

    /// Entries that were read before, by this relay or by one that has gone silent.
    async fn read_again(&mut self) -> Result<Vec<Entry>, RedisError> {
        loop {
            let cursor = match &self.resume {
                Resume::FromStart => "0",
                Resume::After(id) => id.as_str(),
                Resume::Done => break,
            };
            let entries = self.stream.read_own(self.count, cursor).await?;
            self.resume = entries.last().map_or(Resume::Done, |last| Resume::After(last.id.clone()));
            let (gone, here): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.fields.is_none());
            // Pending without fields: somebody removed the entry. `ack.lua` takes it off the list of pending entries.
            self.confirmed.extend(gone.into_iter().map(|entry| Receipt { id: entry.id, order: Vec::new() }));
            self.remove_confirmed().await?;
            if !here.is_empty() {
                return Ok(here);
            }
        }
        if self.claim_at > Instant::now() {
            return Ok(Vec::new());
        }
        let (cursor, mut entries) = self.stream.claim(self.claim_after, &self.claim_from, self.count).await?;
        let at_the_end = cursor == "0-0";
        self.claim_from = cursor;
        if at_the_end && entries.is_empty() {
            entries = self.stream.claim_orphans(self.claim_after, self.count).await?;
        }
        if at_the_end && entries.is_empty() {
            self.claim_at = Instant::now() + self.claim_after;
        }
        if !entries.is_empty() {
            info!(sale = %self.sale, entries = entries.len(), "took over entries that no relay was working on");
            self.metrics.claimed.inc_by(entries.len() as u64);
        }
        Ok(entries)
    }

    fn delivery(&self, entry: Entry) -> Delivery<Receipt> {
        let order = entry.field("order").unwrap_or_default().to_vec();
        let record = match entry.order(self.sale) {
            Ok(order) => Record {
                topic: Arc::clone(&self.topic),
                // The buyer, not the sale: one hot sale is to keep every partition busy.
                key: order.user.as_str().as_bytes().to_vec(),
                payload: message::encode(&order),
                headers: Vec::new(),
            },
            Err(reason) => {
                error!(
                    sale = %self.sale,
                    entry = entry.id,
                    %reason,
                    "an outbox entry is not an order; it goes to the dead letters"
                );
                Record {
                    topic: Arc::clone(&self.dead_letters),
                    key: entry.id.clone().into_bytes(),
                    payload: entry.to_json(),
                    headers: vec![("reason", reason.to_string()), ("source", keys::outbox(self.sale))],
                }
            }
        };
        Delivery::new(record, Receipt { id: entry.id, order })
    }

    /// Hands the pending records of a batch to the producer.
    async fn send(&mut self, at: usize) {
        if let Err(error) = self.producer.send(&mut self.in_flight[at]).await {
            self.failed(&error).await;
        }
    }

    async fn failed(&mut self, error: &KafkaError) {
        debug!(sale = %self.sale, %error, "a delivery failed");
        self.kafka_outage.failed(error, |error| {
            warn!(%error, "Kafka does not confirm orders; they wait and are sent again: check the brokers and topics");
        });
        self.producer.replace_if_broken(&self.topic, error).await;
    }

    async fn settle_all(&mut self, stop: &CancellationToken) -> Result<(), RedisError> {
        while !self.in_flight.is_empty() {
            self.settle_oldest(stop).await?;
            if stop.is_cancelled() && self.in_flight.iter().any(|batch| !batch.is_empty()) {
                // Kafka has not confirmed them within the delivery timeout: they stay in the stream.
                return self.settle_rest_once().await;
            }
        }
        self.remove_confirmed().await
    }

    /// Waits without a limit until Kafka has confirmed the oldest batch. A record that failed is sent again from
    /// memory. Only `stop` ends the wait; unconfirmed records stay in the batch then.
    async fn settle_oldest(&mut self, stop: &CancellationToken) -> Result<(), RedisError> {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        while let Some(batch) = self.in_flight.front_mut() {
            let acks = self.producer.await_acks(batch);
            let Ok(acks) = timeout(self.claim_after / 2, acks).await else {
                self.renew_claims().await;
                continue;
            };
            self.collect(0);
            self.remove_confirmed().await?;
            let unconfirmed = self.in_flight[0].len();
            if unconfirmed == 0 {
                self.kafka_outage.recovered(|| info!("Kafka confirms orders again"));
                self.in_flight.pop_front();
                break;
            }
            if let Err(error) = acks {
                self.failed(&error).await;
            }
            if timeout(backoff.next_pause(), stop.cancelled()).await.is_ok() {
                break;
            }
            self.metrics.retried.inc_by(unconfirmed as u64);
            self.send(0).await;
        }
        Ok(())
    }

    /// After a stop: waits once more for every batch, and sends nothing again.
    async fn settle_rest_once(&mut self) -> Result<(), RedisError> {
        for at in 0..self.in_flight.len() {
            let _ = self.producer.await_acks(&mut self.in_flight[at]).await;
            self.collect(at);
        }
        self.remove_confirmed().await
    }

    /// Takes the confirmed records out of a batch.
    fn collect(&mut self, at: usize) {
        let (delivered, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.in_flight[at]).into_iter().partition(Delivery::is_delivered);
        self.in_flight[at] = rest;
        let dead = delivered.iter().filter(|delivery| *delivery.topic() == self.dead_letters).count();
        self.metrics.dead_lettered.inc_by(dead as u64);
        self.metrics.published.inc_by((delivered.len() - dead) as u64);
        self.confirmed.extend(delivered.into_iter().map(|delivery| delivery.context));
    }

    async fn remove_confirmed(&mut self) -> Result<(), RedisError> {
        if self.confirmed.is_empty() {
            return Ok(());
        }
        let timer = self.metrics.ack_seconds.start_timer();
        let done = self.stream.acknowledge(&self.confirmed).await?;
        timer.observe_duration();
        if done.foreign > 0 {
            let (sale, entries) = (self.sale, done.foreign);
            warn!(%sale, entries, "confirmed stream ids belong to other orders now; those are left alone");
        }
        self.confirmed.clear();
        self.show_backlog(done.backlog);
        Ok(())
    }

    /// While Kafka is slow: measures the backlog and renews the claims on the entries, so that no other relay takes
    /// them over and publishes them a second time. A failure is harmless.
    async fn renew_claims(&mut self) {
        for batch in &self.in_flight {
            let ids = batch.iter().map(|delivery| delivery.context.id.as_str());
            if let Err(error) = self.stream.renew_claims(ids).await {
                debug!(sale = %self.sale, %error, "the claims on pending entries cannot be renewed");
                // The next connection may be to another process.
                self.start_over();
                return;
            }
        }
        if self.measure().await.is_err() {
            self.start_over();
        }
    }

    /// Reads the length of the outbox, once a second at most.
    async fn measure(&mut self) -> Result<(), RedisError> {
        if self.measure_at <= Instant::now() {
            let backlog = self.stream.length().await?;
            if backlog > 0 {
                // The other keys of the sale may expire, but not orders that wait through a long outage.
                self.stream.extend_ttl(self.retention).await?;
            }
            self.show_backlog(backlog);
        }
        Ok(())
    }

    fn show_backlog(&mut self, backlog: u64) {
        self.metrics.backlog.with_label_values(&[&self.sale.to_string()]).set(backlog as i64);
        self.measure_at = Instant::now() + Duration::from_secs(1);
    }

    /// After a failed turn: waits, and starts over.
    async fn recover(&mut self, turn: Result<(), RedisError>, stop: &CancellationToken) {
        let Err(error) = turn else {
            self.redis_outage.recovered(|| info!(sale = %self.sale, "the outbox can be read again"));
            self.redis_backoff.reset();
            return;
        };
        self.metrics.redis_errors.inc();
        self.start_over();
        self.redis_outage.failed(&error, |error| {
            warn!(sale = %self.sale, %error, "the outbox cannot be read; orders wait in it: check Redis");
        });
        tokio::select! {
            () = stop.cancelled() => {}
            () = sleep(self.redis_backoff.next_pause()) => {}
        }
    }

    /// After an error: the next command connects again, and pending entries are read again from the first one. Their
    /// answer may have been lost with the connection.
    fn start_over(&mut self) {
        self.stream.reset();
        self.resume = Resume::FromStart;
    }
}
