//! How far the ledger is behind Kafka.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, anyhow};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::config;

const PATIENCE: Duration = Duration::from_secs(5);

/// How much of the topic there is at one moment: the high watermark of each partition.
#[derive(Clone, Debug)]
pub struct Watermarks(HashMap<i32, Mark>);

#[derive(Clone, Copy, Debug)]
struct Mark {
    low: i64,
    high: i64,
}

impl Watermarks {
    /// Messages that were there at that moment, and that the group has not committed by now. Blocks the calling
    /// thread while it asks; does not join the group.
    ///
    /// # Errors
    /// When Kafka does not answer within a few seconds.
    pub fn ahead_of_group(&self, kafka: &config::Kafka) -> anyhow::Result<u64> {
        Ok(self.ahead_of(&committed(kafka, self.0.keys().copied())?))
    }

    fn ahead_of(&self, committed: &HashMap<i32, i64>) -> u64 {
        let ahead = self.0.iter().map(|(partition, mark)| {
            // A partition for which the group never committed counts from its first message.
            let done = committed.get(partition).map_or(mark.low, |offset| mark.low.max(*offset));
            u64::try_from(mark.high - done).unwrap_or(0)
        });
        ahead.sum()
    }
}

/// The watermarks now. Blocks the calling thread while it asks.
///
/// # Errors
/// When Kafka does not answer within a few seconds, or the topic does not exist.
pub fn watermarks(kafka: &config::Kafka) -> anyhow::Result<Watermarks> {
    let consumer = observer(kafka)?;
    let metadata = consumer.fetch_metadata(Some(&kafka.topic), PATIENCE).context("Kafka does not answer")?;
    let topic = metadata.topics().first().filter(|topic| topic.error().is_none() && !topic.partitions().is_empty());
    let topic = topic.ok_or_else(|| anyhow!("topic {} does not exist", kafka.topic))?;
    let mut marks = HashMap::new();
    for partition in topic.partitions() {
        let (low, high) = consumer.fetch_watermarks(&kafka.topic, partition.id(), PATIENCE).context("no watermarks")?;
        marks.insert(partition.id(), Mark { low, high });
    }
    Ok(Watermarks(marks))
}

/// Messages between the group's committed offsets and the high watermarks, over all partitions of the topic. 0
/// means that every order that Kafka has is in the ledger (or among the dead letters). Blocks the calling thread
/// while it asks.
///
/// # Errors
/// When Kafka does not answer within a few seconds, or the topic does not exist.
pub fn backlog(kafka: &config::Kafka) -> anyhow::Result<u64> {
    let partitions: Vec<_> = watermarks(kafka)?.0.into_keys().collect();
    waiting_in(kafka, &partitions)
}

/// As [`backlog`], in these partitions. Asks over a new connection, which knows nothing but what the brokers say now.
fn waiting_in(kafka: &config::Kafka, partitions: &[i32]) -> anyhow::Result<u64> {
    // Committed first: what is published in between counts as not yet written, never the other way round.
    let committed = committed(kafka, partitions.iter().copied())?;
    let mut marks = watermarks(kafka)?;
    marks.0.retain(|partition, _| partitions.contains(partition));
    // An offset beyond the end was committed in a topic of the same name that is gone.
    let of_this_topic = |(partition, offset): &(i32, i64)| marks.0.get(partition).is_some_and(|m| *offset <= m.high);
    Ok(marks.ahead_of(&committed.into_iter().filter(of_this_topic).collect()))
}

/// Whether one of these partitions has messages that the group has not committed. Blocks the calling thread while it
/// asks.
///
/// # Errors
/// When Kafka does not answer within a few seconds, or the topic does not exist.
pub(super) fn is_waiting(kafka: &config::Kafka, partitions: &[i32]) -> anyhow::Result<bool> {
    Ok(waiting_in(kafka, partitions)? > 0)
}

/// The offsets that the group has committed.
fn committed(kafka: &config::Kafka, partitions: impl Iterator<Item = i32>) -> anyhow::Result<HashMap<i32, i64>> {
    let mut asked = TopicPartitionList::new();
    for partition in partitions {
        asked.add_partition(&kafka.topic, partition);
    }
    let answer = observer(kafka)?.committed_offsets(asked, PATIENCE).context("no committed offsets")?;
    let mut committed = HashMap::new();
    for element in answer.elements() {
        element.error().context("no committed offset")?;
        if let Offset::Offset(offset) = element.offset() {
            committed.insert(element.partition(), offset);
        }
    }
    Ok(committed)
}

fn observer(kafka: &config::Kafka) -> anyhow::Result<BaseConsumer> {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", &kafka.brokers).set("group.id", &kafka.group).set("enable.auto.commit", "false");
    client.create().context("the Kafka settings")
}
