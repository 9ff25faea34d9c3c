//! Membership of the consumer group: the current assignment, what is written under it, and what is committed.
//!
//! The callbacks run inside `poll`, on the polling thread, so the lock is never contended.

use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{ClientContext, Offset, Statistics, TopicPartitionList};
use tracing::{debug, info, warn};

use super::Metrics;
use super::batch::Offsets;
use super::writer::Done;

/// How long revoked partitions wait for the batch that is being written. After that the next owner writes the batch
/// once more, which changes nothing.
const HANDOVER: Duration = Duration::from_secs(2);

/// How long after a failed commit the offsets are committed again.
const RECOMMIT: Duration = Duration::from_secs(1);

/// The reader's end of the channel from the writer, and the state of the membership.
pub(super) struct Group {
    topic: String,
    metrics: Metrics,
    state: Mutex<State>,
}

pub(super) struct State {
    done: Receiver<Done>,
    /// Since when the writer has had a batch; `None` while it waits for one.
    pub(super) busy_since: Option<Instant>,
    /// Raised whenever partitions are revoked. What was read before belongs to their next owner.
    pub(super) assignment: u64,
    /// What is written under this assignment.
    written: Offsets,
    /// When `written` is to be committed; `None` when it is.
    commit_due_at: Option<Instant>,
}

impl Group {
    pub(super) fn new(topic: &str, metrics: Metrics, done: Receiver<Done>) -> Self {
        let state = State { done, busy_since: None, assignment: 0, written: Offsets::new(), commit_due_at: None };
        Self { topic: topic.to_owned(), metrics, state: Mutex::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves no half-changed state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits what is written and not committed.
    pub(super) fn commit(&self, consumer: &BaseConsumer<Self>, mode: CommitMode) {
        let Some(list) = self.uncommitted(mode) else { return };
        if let Err(error) = consumer.commit(&list, mode) {
            self.refused(&error);
        }
    }

    /// The offsets to commit now. A synchronous commit does not wait until they are due.
    fn uncommitted(&self, mode: CommitMode) -> Option<TopicPartitionList> {
        let mut state = self.state();
        let due = state.commit_due_at.is_some_and(|at| matches!(mode, CommitMode::Sync) || at <= Instant::now());
        if !due {
            return None;
        }
        state.commit_due_at = None;
        let mut list = TopicPartitionList::with_capacity(state.written.len());
        for (partition, next) in &state.written {
            if let Err(error) = list.add_partition_offset(&self.topic, *partition, Offset::Offset(*next)) {
                warn!(partition, next, %error, "an offset cannot be committed");
            }
        }
        Some(list)
    }

    fn refused(&self, error: &KafkaError) {
        self.metrics.commit_failures.inc();
        warn!(%error, "Kafka did not take the offsets; they are committed again");
        self.state().commit_due_at.get_or_insert(Instant::now() + RECOMMIT);
    }
}

impl State {
    /// Waits up to `timeout` for the writer. True when it is idle.
    pub(super) fn await_writer(&mut self, timeout: Duration) -> bool {
        if self.busy_since.is_none() {
            return true;
        }
        match self.done.recv_timeout(timeout) {
            Ok(done) => self.take(done),
            Err(RecvTimeoutError::Timeout) => return false,
            // The writer broke down; its batch stays uncommitted.
            Err(RecvTimeoutError::Disconnected) => {}
        }
        self.busy_since = None;
        true
    }

    /// Takes the offsets of a batch, unless its partitions were revoked meanwhile.
    fn take(&mut self, done: Done) {
        if done.assignment != self.assignment {
            return;
        }
        if let Some(offsets) = done.offsets {
            self.written.extend(offsets);
            self.commit_due_at = Some(Instant::now());
        }
    }
}

impl ClientContext for Group {
    fn stats(&self, statistics: Statistics) {
        let partitions = statistics.topics.get(&self.topic).map(|topic| topic.partitions.values());
        let lag = partitions.into_iter().flatten().map(|partition| partition.consumer_lag.max(0)).sum();
        self.metrics.lag.set(lag);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // librdkafka reconnects by itself; the reader says when it matters.
        debug!(%error, reason, "Kafka client");
    }
}

impl ConsumerContext for Group {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Revoke(partitions) = rebalance else { return };
        self.metrics.rebalances.inc();
        info!(partitions = partitions.count(), "partitions are revoked");
        if !consumer.assignment_lost() {
            self.state().await_writer(HANDOVER);
            self.commit(consumer, CommitMode::Sync);
        }
        // librdkafka keeps a partition paused beyond the assignment. Without this, a partition that comes back would
        // stay paused: the reader resumes only what it has paused itself.
        if let Err(error) = consumer.resume(partitions) {
            debug!(%error, "cannot resume");
        }
        let mut state = self.state();
        state.assignment += 1;
        state.written.clear();
        state.commit_due_at = None;
    }

    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(partitions) = rebalance {
            info!(partitions = partitions.count(), "partitions are assigned");
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        if let Err(error) = result {
            self.refused(&error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use prometheus::Registry;

    use super::*;

    #[test]
    fn offsets_of_an_assignment_that_is_gone_are_never_committed() {
        let (done, finished) = channel();
        let metrics = Metrics::registered(&Registry::new()).expect("a fresh registry");
        let group = Group::new("orders", metrics, finished);
        let finish = |assignment| {
            let offsets = Some(Offsets::from([(0, 7)]));
            group.state().busy_since = Some(Instant::now());
            done.send(Done { assignment, offsets }).expect("the group listens");
            assert!(group.state().await_writer(Duration::from_secs(10)));
        };
        group.state().assignment = 2;
        finish(1);
        assert!(group.uncommitted(CommitMode::Sync).is_none(), "the partition belongs to somebody else");
        finish(2);
        assert_eq!(group.uncommitted(CommitMode::Sync).map(|list| list.count()), Some(1));
        assert!(group.uncommitted(CommitMode::Sync).is_none(), "committed once");
    }
}
