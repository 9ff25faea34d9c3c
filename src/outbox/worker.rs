//! The relay of one sale: from its outbox stream to Kafka, and out of the stream once Kafka has confirmed.
//!
//! A turn reads one batch and hands it to the producer while the batch before is being confirmed. What is read
//! first: after a start or an error this relay's own pending entries, then now and then what a silent relay left,
//! else new ones. An entry leaves the stream only after its delivery report, so a relay may die at any line: the
//! price is that an order comes twice, never that it does not come.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::KafkaError;
use redis::RedisError;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::backoff::Backoff;
use super::entry::Entry;
use super::flush_status::RelayFlushStatus;
use super::metrics::Metrics;
use super::stream::{Read, Receipt, Stream};
use crate::config::Settings;
use crate::domain::SaleId;
use crate::kafka::{Condition, Delivery, Producer, Record, message};
use crate::stock::keys;

/// First and longest wait after a failed delivery or a failed Redis command.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Longest wait for a stream that no purchase has made yet, as long as the first one then waits to be seen.
const STREAM_PATIENCE: Duration = Duration::from_millis(200);

type Batch = Vec<Delivery<Receipt>>;

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
    under_way: VecDeque<Batch>,
    /// Confirmed by Kafka, still in the stream.
    confirmed: Vec<Receipt>,
    /// Where to go on reading what was read before; `None` when that is done.
    own: Option<String>,
    claim_at: Instant,
    claim_from: String,
    measure_at: Instant,
    condition: Condition,
    /// The state of the Redis side, for its one log line.
    redis: Backoff,
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
            under_way: VecDeque::new(),
            confirmed: Vec::new(),
            own: Some("0".to_owned()),
            claim_at: now,
            claim_from: "0-0".to_owned(),
            measure_at: now,
            condition: Condition::default(),
            redis: Backoff::new(RETRY.0, RETRY.1),
        })
    }

    /// Relays until `stop`, then waits for the reports of what is under way (at most the delivery timeout) and
    /// removes what they confirm. Answers how many entries it leaves read and unconfirmed: they stay in the
    /// stream, and another relay, or this one's successor, takes them over.
    pub async fn run(mut self, stop: &CancellationToken) -> usize {
        while !stop.is_cancelled() {
            let turn = self.turn(stop).await;
            self.recover(turn, stop).await;
        }
        if let Err(error) = self.settle_all(stop).await {
            warn!(sale = %self.sale, %error, "the outbox cannot be reached at the stop");
        }
        self.flush_status.leave(self.sale);
        let left = self.confirmed.len() + self.under_way.iter().map(Vec::len).sum::<usize>();
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
            self.under_way.push_back(batch);
            self.send(self.under_way.len() - 1).await;
            if self.under_way.len() == 1 {
                // Nothing to confirm yet: read on while Kafka works.
                return Ok(());
            }
        }
        self.settle_oldest(stop).await
    }

    /// The next batch to publish; empty when there is none within the time that a read may wait.
    async fn next_entries(&mut self, stop: &CancellationToken) -> Result<Vec<Entry>, RedisError> {
        if self.own.is_some() || self.claim_at <= Instant::now() {
            // What is under way is pending too: reading it again would publish it twice.
            self.settle_all(stop).await?;
            if stop.is_cancelled() {
                return Ok(Vec::new());
            }
            if self.own.as_deref() == Some("0") {
                // All that was read before this connection is in Kafka now; from here on only its process is read.
                self.flush_status.report(self.sale, self.stream.run_id().await?);
            }
            let entries = self.read_again().await?;
            if !entries.is_empty() {
                return Ok(entries);
            }
        }
        let block = self.under_way.is_empty().then_some(self.block);
        match self.stream.read_new(self.count, block).await? {
            Read::Entries(entries) => Ok(entries),
            Read::NoStream => {
                let _ = timeout(self.block.min(STREAM_PATIENCE), stop.cancelled()).await;
                Ok(Vec::new())
            }
        }
    }

    /// Entries that were read before, by this relay or by a silent one.
    async fn read_again(&mut self) -> Result<Vec<Entry>, RedisError> {
        while let Some(cursor) = self.own.take() {
            let entries = self.stream.read_own(self.count, &cursor).await?;
            let Some(last) = entries.last() else { break };
            self.own = Some(last.id.clone());
            let (gone, here): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.fields.is_none());
            // Pending without a body: somebody removed the entry. `ack.lua` finds it absent and ends the matter.
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
                error!(sale = %self.sale, entry = entry.id, %reason, "an outbox entry is no order: to the dead letters");
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

    /// Hands what is here of a batch to the producer.
    async fn send(&mut self, at: usize) {
        if let Err(error) = self.producer.send(&mut self.under_way[at]).await {
            self.failed(&error).await;
        }
    }

    async fn failed(&mut self, error: &KafkaError) {
        debug!(sale = %self.sale, %error, "a delivery failed");
        self.condition.failed(error);
        self.producer.replace_if_broken(&self.topic, error).await;
    }

    async fn settle_all(&mut self, stop: &CancellationToken) -> Result<(), RedisError> {
        while !self.under_way.is_empty() {
            self.settle_oldest(stop).await?;
            if stop.is_cancelled() && self.under_way.iter().any(|batch| !batch.is_empty()) {
                // Unconfirmed after their time: the stream keeps them.
                return self.settle_rest_once().await;
            }
        }
        self.remove_confirmed().await
    }

    /// Waits until Kafka has confirmed the oldest batch, for ever: a record that failed is sent again from memory.
    /// Only `stop` ends that, and leaves the unconfirmed ones in the batch.
    async fn settle_oldest(&mut self, stop: &CancellationToken) -> Result<(), RedisError> {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        while let Some(batch) = self.under_way.front_mut() {
            let waiting = self.producer.await_acks(batch);
            let Ok(reports) = timeout(self.claim_after / 2, waiting).await else {
                self.keep_hold().await;
                continue;
            };
            self.collect(0);
            self.remove_confirmed().await?;
            let unconfirmed = self.under_way[0].len();
            if unconfirmed == 0 {
                self.condition.succeeded();
                self.under_way.pop_front();
                break;
            }
            if let Err(error) = reports {
                self.failed(&error).await;
            }
            if timeout(backoff.next(), stop.cancelled()).await.is_ok() {
                break;
            }
            self.metrics.retried.inc_by(unconfirmed as u64);
            self.send(0).await;
        }
        Ok(())
    }

    /// After a stop: one last look at every batch, no new tries.
    async fn settle_rest_once(&mut self) -> Result<(), RedisError> {
        for at in 0..self.under_way.len() {
            let _ = self.producer.await_acks(&mut self.under_way[at]).await;
            self.collect(at);
        }
        self.remove_confirmed().await
    }

    /// Takes the confirmed records out of a batch.
    fn collect(&mut self, at: usize) {
        let (delivered, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.under_way[at]).into_iter().partition(Delivery::is_delivered);
        self.under_way[at] = rest;
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
            warn!(sale = %self.sale, entries = done.foreign, "stream ids came back for other orders; those are left alone");
        }
        self.confirmed.clear();
        self.show_backlog(done.backlog);
        Ok(())
    }

    /// While Kafka takes its time: shows the backlog, and that this relay is alive, so that no other one takes
    /// its entries and publishes them a second time. Failing at that is harmless.
    async fn keep_hold(&mut self) {
        for batch in &self.under_way {
            let ids = batch.iter().map(|delivery| delivery.context.id.as_str());
            if let Err(error) = self.stream.keep(ids).await {
                debug!(sale = %self.sale, %error, "cannot show that this relay is alive");
                // The next connection may be to another process.
                self.start_over();
                return;
            }
        }
        if self.measure().await.is_err() {
            self.start_over();
        }
    }

    /// Looks at the length of the outbox, once a second at most.
    async fn measure(&mut self) -> Result<(), RedisError> {
        if self.measure_at <= Instant::now() {
            let backlog = self.stream.length().await?;
            if backlog > 0 {
                // Orders outlive the sale's other keys: a long outage must not let them expire unsent.
                self.stream.outlive(self.retention).await?;
            }
            self.show_backlog(backlog);
        }
        Ok(())
    }

    fn show_backlog(&mut self, backlog: u64) {
        self.metrics.backlog.with_label_values(&[&self.sale.to_string()]).set(backlog as i64);
        self.measure_at = Instant::now() + Duration::from_secs(1);
    }

    /// Says once what is wrong, waits a little, and arranges for a fresh start.
    async fn recover(&mut self, turn: Result<(), RedisError>, stop: &CancellationToken) {
        let Err(error) = turn else {
            if self.redis.is_failing() {
                info!(sale = %self.sale, "the outbox can be read again");
                self.redis.reset();
            }
            return;
        };
        self.metrics.redis_errors.inc();
        self.start_over();
        if !self.redis.is_failing() {
            warn!(sale = %self.sale, %error, "the outbox cannot be read; orders wait in it: check Redis");
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = sleep(self.redis.next()) => {}
        }
    }

    /// After an error: a new connection, and first of all what was read and perhaps never arrived here.
    fn start_over(&mut self) {
        self.stream.reset();
        self.own = Some("0".to_owned());
    }
}
