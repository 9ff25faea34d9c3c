//! How far the consumer group, and so the ledger, is behind Kafka.
//!
//! Each question makes a client of its own: a client that is older than its topic may have stale metadata of it.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, anyhow};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::drop_in_background;
use crate::config;

const TIMEOUT: Duration = Duration::from_secs(5);

/// The watermarks of every partition of the topic at one moment.
#[derive(Clone, Debug)]
pub struct Watermarks(HashMap<i32, Watermark>);

#[derive(Clone, Copy, Debug)]
struct Watermark {
    /// The offset of the first message that has not expired.
    low: i64,
    /// The offset that the next message will get.
    high: i64,
}

impl Watermarks {
    /// Messages that were there at that moment and are not committed. `now` was read after the offsets. So an offset
    /// beyond its end was committed in a deleted topic of the same name, and says nothing about this one.
    fn lag(&self, committed: &HashMap<i32, i64>, now: &Self) -> u64 {
        let lags = self.0.iter().filter_map(|(partition, then)| {
            let now = now.0.get(partition)?;
            // Messages that have expired since, or were deleted with their topic, do not count.
            let (low, high) = (then.low.max(now.low), then.high.min(now.high));
            let offset = committed.get(partition).copied().filter(|offset| *offset <= now.high);
            // A partition for which the group never committed counts from its first message.
            let done = offset.map_or(low, |offset| low.max(offset));
            u64::try_from(high - done).ok()
        });
        lags.sum()
    }
}

/// Whether Kafka answers and has the topic. Blocks the calling thread while it asks.
///
/// # Errors
/// When Kafka does not answer within a few seconds, or the topic does not exist.
pub fn check_topic(kafka: &config::Kafka) -> anyhow::Result<()> {
    observe(kafka, |observer| observer.partitions().map(drop))
}

/// Messages that were there at `then` (without it: now) and that the group has not committed, and the watermarks of
/// that moment. 0 means that every order that Kafka had at that moment is in the ledger or among the dead letters.
/// Blocks the calling thread while it asks; does not join the group.
///
/// # Errors
/// When Kafka does not answer within a few seconds, or the topic does not exist.
pub fn measure(kafka: &config::Kafka, then: Option<Watermarks>) -> anyhow::Result<(u64, Watermarks)> {
    observe(kafka, |observer| {
        let partitions = observer.partitions()?;
        // Committed offsets first: a message that is published in between counts as not committed, never the reverse.
        let committed = observer.committed(&partitions)?;
        let now = observer.watermarks(&partitions)?;
        let then = then.unwrap_or_else(|| now.clone());
        Ok((then.lag(&committed, &now), then))
    })
}

/// [`measure`] as of now.
///
/// # Errors
/// When Kafka does not answer within a few seconds, or the topic does not exist.
pub fn backlog(kafka: &config::Kafka) -> anyhow::Result<u64> {
    Ok(measure(kafka, None)?.0)
}

/// Whether one of these partitions has messages that the group has not committed. Blocks the calling thread while it
/// asks.
///
/// # Errors
/// When Kafka does not answer within a few seconds, or a partition does not exist.
pub(crate) fn has_lag(kafka: &config::Kafka, partitions: &[i32]) -> anyhow::Result<bool> {
    observe(kafka, |observer| {
        let committed = observer.committed(partitions)?;
        let now = observer.watermarks(partitions)?;
        Ok(now.lag(&committed, &now) > 0)
    })
}

/// Asks over a new client.
fn observe<T>(kafka: &config::Kafka, ask: impl FnOnce(&Observer) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", &kafka.brokers).set("group.id", &kafka.group).set("enable.auto.commit", "false");
    let observer = Observer { client: client.create().context("the Kafka settings")?, topic: kafka.topic.clone() };
    let answer = ask(&observer);
    drop_in_background(observer);
    answer
}

/// A client that reads offsets and does not join the group.
struct Observer {
    client: BaseConsumer,
    topic: String,
}

impl Observer {
    fn partitions(&self) -> anyhow::Result<Vec<i32>> {
        let metadata = self.client.fetch_metadata(Some(&self.topic), TIMEOUT).context("Kafka does not answer")?;
        let topic = metadata.topics().first().filter(|topic| topic.error().is_none() && !topic.partitions().is_empty());
        let topic = topic.ok_or_else(|| anyhow!("topic {} does not exist", self.topic))?;
        Ok(topic.partitions().iter().map(|partition| partition.id()).collect())
    }

    fn watermarks(&self, partitions: &[i32]) -> anyhow::Result<Watermarks> {
        let mut watermarks = HashMap::new();
        for partition in partitions {
            let answer = self.client.fetch_watermarks(&self.topic, *partition, TIMEOUT);
            let (low, high) = answer.context("no watermarks")?;
            watermarks.insert(*partition, Watermark { low, high });
        }
        Ok(Watermarks(watermarks))
    }

    /// The offsets that the group has committed.
    fn committed(&self, partitions: &[i32]) -> anyhow::Result<HashMap<i32, i64>> {
        let mut asked = TopicPartitionList::new();
        for partition in partitions {
            asked.add_partition(&self.topic, *partition);
        }
        let answer = self.client.committed_offsets(asked, TIMEOUT).context("no committed offsets")?;
        let mut committed = HashMap::new();
        for element in answer.elements() {
            element.error().context("no committed offset")?;
            if let Offset::Offset(offset) = element.offset() {
                committed.insert(element.partition(), offset);
            }
        }
        Ok(committed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(low: i64, high: i64) -> Watermarks {
        Watermarks(HashMap::from([(0, Watermark { low, high })]))
    }

    #[test]
    fn the_lag_is_what_the_group_has_not_committed() {
        let (then, now) = (marks(0, 10), marks(0, 30));
        let lag = |offset| then.lag(&HashMap::from([(0, offset)]), &now);
        assert_eq!([lag(0), lag(7), lag(10), lag(30)], [10, 3, 0, 0]);
        assert_eq!(then.lag(&HashMap::new(), &now), 10, "it has never committed anything");
        assert_eq!(marks(8, 10).lag(&HashMap::from([(0, 5)]), &now), 2, "some have expired before");
        assert_eq!(then.lag(&HashMap::from([(0, 5)]), &marks(8, 30)), 2, "some have expired meanwhile");
        assert_eq!(then.lag(&HashMap::from([(0, 5)]), &marks(30, 30)), 0, "all of them have");
    }

    #[test]
    fn an_offset_of_an_older_topic_of_the_same_name_says_nothing_of_this_one() {
        let now = marks(0, 10);
        assert_eq!(now.lag(&HashMap::from([(0, 11)]), &now), 10);
        assert_eq!(now.lag(&HashMap::from([(0, 10)]), &now), 0);
        let older = marks(0, 100);
        assert_eq!(older.lag(&HashMap::from([(0, 10)]), &now), 0, "messages of a deleted topic are not waited for");
        assert_eq!(
            older.lag(&HashMap::from([(0, 10)]), &Watermarks(HashMap::new())),
            0,
            "nor those of a deleted partition"
        );
    }
}
