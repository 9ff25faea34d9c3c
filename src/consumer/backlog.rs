//! How far the ledger is behind Kafka.

use std::time::Duration;

use anyhow::{Context, anyhow};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::config;

const PATIENCE: Duration = Duration::from_secs(5);

/// Messages between the group's committed offsets and the high watermarks, over all partitions of the topic. 0
/// means that every order that Kafka has is in the ledger (or among the dead letters). A partition for which the
/// group never committed counts from its first message.
///
/// Asks without joining the group, and blocks the calling thread while it does.
///
/// # Errors
/// When Kafka does not answer within a few seconds, or the topic does not exist.
pub fn backlog(kafka: &config::Kafka) -> anyhow::Result<u64> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &kafka.brokers)
        .set("group.id", &kafka.group)
        .set("enable.auto.commit", "false")
        .create()
        .context("the Kafka settings")?;
    let metadata = consumer.fetch_metadata(Some(&kafka.topic), PATIENCE).context("Kafka does not answer")?;
    let topic = metadata.topics().first().filter(|topic| topic.error().is_none() && !topic.partitions().is_empty());
    let topic = topic.ok_or_else(|| anyhow!("topic {} does not exist", kafka.topic))?;
    let mut asked = TopicPartitionList::new();
    for partition in topic.partitions() {
        asked.add_partition(&kafka.topic, partition.id());
    }
    // Committed first: what is published in between counts as not yet written, never the other way round.
    let committed = consumer.committed_offsets(asked, PATIENCE).context("no committed offsets")?;
    let mut behind = 0;
    for element in committed.elements() {
        element.error().context("no committed offset")?;
        let partition = element.partition();
        let (low, high) = consumer.fetch_watermarks(&kafka.topic, partition, PATIENCE).context("no watermarks")?;
        let done = match element.offset() {
            Offset::Offset(offset) => offset.max(low),
            _ => low,
        };
        behind += u64::try_from(high - done).unwrap_or(0);
    }
    Ok(behind)
}
