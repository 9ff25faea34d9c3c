//! The half that must not wait: polls Kafka on a thread of its own and gathers the next batch while the writer has
//! one. At most one batch is ahead.
//!
//! Kafka takes partitions away from a consumer that does not poll. So while the writer is slow, or the database is
//! away for minutes, the partitions are paused and polling goes on.

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

/// How long a poll waits for a first message: also how soon a stop is noticed.
const POLL: Duration = Duration::from_millis(100);

/// How long the writer may have a batch before the partitions are paused.
const SLOW: Duration = Duration::from_secs(1);

/// What is waiting at the first look may be on its way; what still waits at the second is not coming.
const SECOND_LOOK: Duration = Duration::from_secs(2);

pub(super) struct Reader {
    consumer: BaseConsumer<Group>,
    kafka: config::Kafka,
    batches: Sender<Batch>,
    limit: usize,
    /// Gathered and not handed over.
    next: Batch,
    paused: bool,
    metrics: Metrics,
    failing: bool,
    /// How long nothing may come before somebody else is asked whether that is true.
    quiet: Duration,
    /// Whether this client has ever read anything.
    sighted: Arc<AtomicBool>,
    /// When to look whether messages wait that do not come.
    look_at: Instant,
    /// Whether some were waiting when it was last looked.
    waiting: bool,
}

impl Reader {
    pub(super) fn subscribe(
        settings: &Settings,
        group: Group,
        batches: Sender<Batch>,
        metrics: Metrics,
        quiet: Duration,
        sighted: Arc<AtomicBool>,
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
            failing: false,
            quiet,
            sighted,
            look_at: Instant::now() + quiet,
            waiting: false,
        })
    }

    /// Reads until `stop`; then waits for the batch in hand, commits, and leaves the group.
    ///
    /// # Errors
    /// When the client is beyond repair: a new one must be made.
    pub(super) fn run(mut self, stop: &CancellationToken) -> KafkaResult<()> {
        let outcome = loop {
            if stop.is_cancelled() || self.batches.is_closed() {
                break Ok(());
            }
            if let Err(error) = self.step() {
                break Err(error);
            }
        };
        // The writer ends by itself: it finishes the statement that runs, or notices the stop while it waits.
        while !self.consumer.context().state().await_writer(POLL) {
            self.pause();
            let _ = self.gather(Duration::ZERO);
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
                self.gather(POLL)?;
            }
            self.fill()?;
            self.hand_over();
            self.commit();
            return self.doubt_the_quiet();
        };
        if since.elapsed() > SLOW {
            self.pause();
            self.gather(Duration::ZERO)?;
        } else {
            self.fill()?;
        }
        // Not while the lock is needed by a callback: those run inside `gather` only.
        self.consumer.context().state().await_writer(POLL);
        self.commit();
        Ok(())
    }

    /// Takes what is there, without waiting, up to the limit.
    fn fill(&mut self) -> KafkaResult<()> {
        while self.next.len() < self.limit && self.gather(Duration::ZERO)? {}
        Ok(())
    }

    /// One poll. True when it brought a message.
    fn gather(&mut self, patience: Duration) -> KafkaResult<bool> {
        let polled = self.consumer.poll(patience);
        let assignment = self.consumer.context().state().assignment;
        if self.next.assignment != assignment {
            // Its partitions were taken away inside the poll: their next owner reads these messages again.
            self.next = Batch::of(assignment);
        }
        match polled {
            None => Ok(false),
            Some(Ok(message)) => {
                self.next.add(&message);
                (self.look_at, self.waiting) = (Instant::now() + self.quiet, false);
                self.sighted.store(true, Ordering::Relaxed);
                if self.failing {
                    info!("Kafka can be read again");
                    self.failing = false;
                }
                Ok(true)
            }
            Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => Err(error),
            Some(Err(error)) => {
                if !self.failing {
                    warn!(%error, "Kafka cannot be read; orders wait: check the brokers and the topic");
                    self.failing = true;
                }
                debug!(%error, "poll");
                Ok(false)
            }
        }
    }

    /// A client can be blind: a topic that is deleted and made anew begins to count its leaders anew, and the old client
    /// takes them for old news and reads nothing for ever. When nothing has come for a while, a new connection is asked;
    /// where it sees messages that this client does not, a new client has to take over.
    fn doubt_the_quiet(&mut self) -> KafkaResult<()> {
        if Instant::now() < self.look_at {
            return Ok(());
        }
        let mine: Vec<_> = self.consumer.assignment()?.elements().iter().map(|element| element.partition()).collect();
        // A Kafka that does not answer has nothing to tell, and an unknown answer is no reason to do anything.
        let waiting = !mine.is_empty() && lag::has_lag(&self.kafka, &mine).unwrap_or(false);
        if waiting && self.waiting {
            warn!("orders wait in Kafka and do not come: the topic may have been made anew");
            return Err(KafkaError::NoMessageReceived);
        }
        self.look_at = Instant::now() + if waiting { SECOND_LOOK } else { self.quiet };
        self.waiting = waiting;
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
            info!("the ledger is slow or away: reading pauses, membership stays");
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
        // Offsets say what is in the ledger, so only the writer's word moves them.
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
