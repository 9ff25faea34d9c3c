//! The half that must not wait: polls Kafka on a thread of its own and gathers the next batch while the writer has
//! one. At most one batch is ahead.
//!
//! Kafka revokes the partitions of a consumer that does not poll. So while the writer is slow, or the database is away
//! for minutes, the partitions are paused and polling goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::Metrics;
use super::batch::Batch;
use super::group::Group;
use crate::config::{self, Settings};
use crate::kafka::lag;
use crate::telemetry::Outage;

/// How long a poll waits for a first message, and so how late a stop is noticed.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);

/// How long the writer may have a batch before the partitions are paused.
const PAUSE_AFTER: Duration = Duration::from_secs(1);

/// Messages that wait at the first check may be on their way; those that still wait after this time are not coming.
const RECHECK_AFTER: Duration = Duration::from_secs(2);

pub(super) struct Reader {
    consumer: BaseConsumer<Group>,
    kafka: config::Kafka,
    batches: Sender<Batch>,
    limit: usize,
    /// Gathered and not handed over.
    next: Batch,
    paused: bool,
    metrics: Metrics,
    outage: Outage,
    /// How long no message may come before a new client checks whether some wait.
    idle_timeout: Duration,
    /// Whether this client has ever read a message.
    has_consumed: Arc<AtomicBool>,
    /// When to check whether messages wait that do not come.
    check_at: Instant,
    /// Whether messages waited at the last check.
    had_lag: bool,
}

impl Reader {
    pub(super) fn subscribe(
        settings: &Settings,
        group: Group,
        batches: Sender<Batch>,
        metrics: Metrics,
        idle_timeout: Duration,
        has_consumed: Arc<AtomicBool>,
    ) -> KafkaResult<Self> {
        let consumer: BaseConsumer<Group> = client(settings).create_with_context(group)?;
        consumer.subscribe(&[&settings.kafka.topic])?;
        Ok(Self {
            consumer,
            kafka: settings.kafka.clone(),
            batches,
            limit: settings.consumer.batch.max(1),
            next: Batch::of(0),
            paused: false,
            metrics,
            outage: Outage::default(),
            idle_timeout,
            has_consumed,
            check_at: Instant::now() + idle_timeout,
            had_lag: false,
        })
    }

    /// Reads until `stop`; then waits for the batch that is being written, commits, and leaves the group.
    ///
    /// # Errors
    /// When the client cannot go on and a new one must take over.
    pub(super) fn run(mut self, stop: &CancellationToken) -> KafkaResult<()> {
        let outcome = loop {
            if stop.is_cancelled() || self.batches.is_closed() {
                break Ok(());
            }
            if let Err(error) = self.step() {
                break Err(error);
            }
        };
        // The writer ends by itself: it finishes the statement that runs, or sees the stop while it waits.
        while !self.consumer.context().state().await_writer(POLL_TIMEOUT) {
            self.pause();
            let _ = self.poll(Duration::ZERO);
        }
        self.consumer.context().commit(&self.consumer, CommitMode::Sync);
        self.metrics.paused.set(0);
        self.metrics.lag.set(0);
        // What was gathered and not handed over is not committed; dropping the consumer leaves the group.
        outcome
    }

    fn step(&mut self) -> KafkaResult<()> {
        let busy_since = self.consumer.context().state().busy_since;
        let Some(since) = busy_since else {
            self.resume();
            if self.next.is_empty() {
                self.poll(POLL_TIMEOUT)?;
            }
            self.fill()?;
            self.hand_over();
            self.commit();
            return self.detect_stale_metadata();
        };
        if since.elapsed() > PAUSE_AFTER {
            self.pause();
            self.poll(Duration::ZERO)?;
        } else {
            self.fill()?;
        }
        // Not while the lock is needed by a callback: those run inside `poll` only.
        self.consumer.context().state().await_writer(POLL_TIMEOUT);
        self.commit();
        Ok(())
    }

    /// Takes what is there, without waiting, up to the limit.
    fn fill(&mut self) -> KafkaResult<()> {
        while self.next.len() < self.limit && self.poll(Duration::ZERO)? {}
        Ok(())
    }

    /// Polls once. True when it brought a message.
    fn poll(&mut self, timeout: Duration) -> KafkaResult<bool> {
        let polled = self.consumer.poll(timeout);
        let assignment = self.consumer.context().state().assignment;
        if self.next.assignment != assignment {
            // Its partitions were revoked inside the poll: their next owner reads these messages again.
            self.next = Batch::of(assignment);
        }
        match polled {
            None => Ok(false),
            Some(Ok(message)) => {
                self.next.add(&message);
                (self.check_at, self.had_lag) = (Instant::now() + self.idle_timeout, false);
                self.has_consumed.store(true, Ordering::Relaxed);
                self.outage.recovered(|| info!("Kafka can be read again"));
                Ok(true)
            }
            Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => Err(error),
            Some(Err(error)) => {
                self.outage.failed(&error, |error| {
                    warn!(%error, "Kafka cannot be read; orders wait: check the brokers and the topic");
                });
                debug!(%error, "poll");
                Ok(false)
            }
        }
    }

    /// A client can have stale metadata. When a topic is deleted and created again, its leader epochs start again
    /// too; a client that knew the old topic takes the new epochs for outdated ones and never reads a message. When
    /// no message has come for a while, a new client asks for the lag. If messages wait that this client does not
    /// get, a new client must take over.
    fn detect_stale_metadata(&mut self) -> KafkaResult<()> {
        if Instant::now() < self.check_at {
            return Ok(());
        }
        let mine: Vec<_> = self.consumer.assignment()?.elements().iter().map(|element| element.partition()).collect();
        // Without an answer nothing is known, and that is no reason to replace the client.
        let has_lag = !mine.is_empty() && lag::has_lag(&self.kafka, &mine).unwrap_or(false);
        if has_lag && self.had_lag {
            warn!("messages wait in Kafka and this client does not get them: the topic may have been created again");
            return Err(KafkaError::NoMessageReceived);
        }
        self.check_at = Instant::now() + if has_lag { RECHECK_AFTER } else { self.idle_timeout };
        self.had_lag = has_lag;
        Ok(())
    }

    fn hand_over(&mut self) {
        if self.next.is_empty() {
            return;
        }
        let mut state = self.consumer.context().state();
        let batch = std::mem::replace(&mut self.next, Batch::of(state.assignment));
        // The writer is idle, so there is room; a writer that is gone ends the loop above.
        if self.batches.try_send(batch).is_ok() {
            state.busy_since = Some(Instant::now());
        }
    }

    fn commit(&self) {
        self.consumer.context().commit(&self.consumer, CommitMode::Async);
    }

    /// Also pauses partitions that came with a rebalance since the last call.
    fn pause(&mut self) {
        if let Err(error) = self.consumer.assignment().and_then(|assigned| self.consumer.pause(&assigned)) {
            debug!(%error, "cannot pause");
        }
        if !self.paused {
            info!("the ledger is slow or away; reading pauses, the membership of the group stays");
            self.paused = true;
            self.metrics.paused.set(1);
        }
    }

    fn resume(&mut self) {
        if !self.paused {
            return;
        }
        match self.consumer.assignment().and_then(|assigned| self.consumer.resume(&assigned)) {
            Ok(()) => {
                info!("reading goes on");
                self.paused = false;
                self.metrics.paused.set(0);
            }
            Err(error) => debug!(%error, "cannot resume yet"),
        }
    }
}

fn client(settings: &Settings) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &settings.kafka.brokers)
        .set("group.id", &settings.kafka.group)
        .set("client.id", "seckill")
        // Offsets say what is in the ledger, so they move only after the writer has reported.
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        // A group that never committed starts with the first order, not with the next one.
        .set("auto.offset.reset", "earliest")
        // Eager: a commit during a cooperative rebalance is refused and makes the member join once more.
        .set("partition.assignment.strategy", "range")
        .set("session.timeout.ms", settings.kafka.session_timeout_ms.to_string())
        .set("heartbeat.interval.ms", (settings.kafka.session_timeout_ms / 3).min(3000).to_string())
        .set("max.poll.interval.ms", settings.consumer.max_poll_ms.to_string())
        .set("queued.min.messages", (settings.consumer.batch * 20).to_string())
        .set("topic.metadata.refresh.interval.ms", "5000")
        // A silent connection is given up for a new one; the default is a minute.
        .set("socket.timeout.ms", "10000")
        .set("reconnect.backoff.max.ms", "2000")
        .set("statistics.interval.ms", "2000")
        .set_log_level(RDKafkaLogLevel::Warning);
    config
}
