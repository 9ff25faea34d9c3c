//! How far the ledger is behind Kafka.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, anyhow};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::config;
use crate::outbox::let_go;

const PATIENCE: Duration = Duration::from_secs(5);

/// How much of the topic there is at one moment: the watermarks of each partition.
#[derive(Clone, Debug)]
pub struct Watermarks(HashMap<i32, Mark>);

#[derive(Clone, Copy, Debug)]
struct Mark {
    low: i64,
    high: i64,
}

impl Watermarks {
    /// Messages that were there at that moment and are not committed. `now` was taken after the offsets: one that is
    /// beyond its end was committed in a topic of the same name that is gone, and says nothing about this one.
    fn ahead_of(&self, committed: &HashMap<i32, i64>, now: &Self) -> u64 {
        let ahead = self.0.iter().filter_map(|(partition, then)| {
            let now = now.0.get(partition)?;
            // What has expired meanwhile, or ended with its topic, is waited for by nobody.
            let (low, high) = (then.low.max(now.low), then.high.min(now.high));
            let offset = committed.get(partition).copied().filter(|offset| *offset <= now.high);
            // A partition for which the group never committed counts from its first message.
            let done = offset.map_or(low, |offset| low.max(offset));
            u64::try_from(high - done).ok()
        });
        ahead.sum()
    }
}

/// Whether Kafka answers and has the topic. Blocks the calling thread while it asks.
///
/// # Errors
/// When Kafka does not answer within a few seconds, or the topic does not exist.
pub fn look_for(kafka: &config::Kafka) -> anyhow::Result<()> {
    observe(kafka, |observer| observer.partitions().map(drop))
}

/// Messages that were there at `then`, or are now, and that the group has not committed; and the moment that counted.
/// 0 means that every order that Kafka had at that moment is in the ledger (or among the dead letters). Blocks the
/// calling thread while it asks; does not join the group.
///
/// # Errors
/// When Kafka does not answer within a few seconds, or the topic does not exist.
pub fn ahead(kafka: &config::Kafka, then: Option<Watermarks>) -> anyhow::Result<(u64, Watermarks)> {
    observe(kafka, |observer| {
        let partitions = observer.partitions()?;
        // Committed first: what is published in between counts as not yet written, never the other way round.
        let committed = observer.committed(&partitions)?;
        let now = observer.watermarks(&partitions)?;
        let then = then.unwrap_or_else(|| now.clone());
        Ok((then.ahead_of(&committed, &now), then))
    })
}

/// [`ahead`], as of now.
///
/// # Errors
/// When Kafka does not answer within a few seconds, or the topic does not exist.
pub fn backlog(kafka: &config::Kafka) -> anyhow::Result<u64> {
    Ok(ahead(kafka, None)?.0)
}

/// Whether one of these partitions has messages that the group has not committed. Blocks the calling thread while it
/// asks.
///
/// # Errors
/// When Kafka does not answer within a few seconds, or a partition does not exist.
pub(super) fn is_waiting(kafka: &config::Kafka, partitions: &[i32]) -> anyhow::Result<bool> {
    observe(kafka, |observer| {
        let committed = observer.committed(partitions)?;
        let now = observer.watermarks(partitions)?;
        Ok(now.ahead_of(&committed, &now) > 0)
    })
}

/// Asks over a client made for it: one that was there before its topic was deleted and made anew can be blind to the
/// new one.
fn observe<T>(kafka: &config::Kafka, ask: impl FnOnce(&Observer) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", &kafka.brokers).set("group.id", &kafka.group).set("enable.auto.commit", "false");
    let observer = Observer { client: client.create().context("the Kafka settings")?, topic: kafka.topic.clone() };
    let answer = ask(&observer);
    let_go(observer);
    answer
}

/// A client that looks and takes no part.
struct Observer {
    client: BaseConsumer,
    topic: String,
}

impl Observer {
    fn partitions(&self) -> anyhow::Result<Vec<i32>> {
        let metadata = self.client.fetch_metadata(Some(&self.topic), PATIENCE).context("Kafka does not answer")?;
        let topic = metadata.topics().first().filter(|topic| topic.error().is_none() && !topic.partitions().is_empty());
        let topic = topic.ok_or_else(|| anyhow!("topic {} does not exist", self.topic))?;
        Ok(topic.partitions().iter().map(|partition| partition.id()).collect())
    }

    fn watermarks(&self, partitions: &[i32]) -> anyhow::Result<Watermarks> {
        let mut marks = HashMap::new();
        for partition in partitions {
            let marked = self.client.fetch_watermarks(&self.topic, *partition, PATIENCE);
            let (low, high) = marked.context("no watermarks")?;
            marks.insert(*partition, Mark { low, high });
        }
        Ok(Watermarks(marks))
    }

    /// The offsets that the group has committed.
    fn committed(&self, partitions: &[i32]) -> anyhow::Result<HashMap<i32, i64>> {
        let mut asked = TopicPartitionList::new();
        for partition in partitions {
            asked.add_partition(&self.topic, *partition);
        }
        let answer = self.client.committed_offsets(asked, PATIENCE).context("no committed offsets")?;
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
        Watermarks(HashMap::from([(0, Mark { low, high })]))
    }

    #[test]
    fn what_the_group_has_not_committed_is_ahead_of_it() {
        let (then, now) = (marks(0, 10), marks(0, 30));
        let ahead = |offset| then.ahead_of(&HashMap::from([(0, offset)]), &now);
        assert_eq!([ahead(0), ahead(7), ahead(10), ahead(30)], [10, 3, 0, 0]);
        assert_eq!(then.ahead_of(&HashMap::new(), &now), 10, "it has never committed anything");
        assert_eq!(marks(8, 10).ahead_of(&HashMap::from([(0, 5)]), &now), 2, "some have expired before");
        assert_eq!(then.ahead_of(&HashMap::from([(0, 5)]), &marks(8, 30)), 2, "some have expired meanwhile");
        assert_eq!(then.ahead_of(&HashMap::from([(0, 5)]), &marks(30, 30)), 0, "all of them have");
    }

    #[test]
    fn an_offset_of_an_older_topic_of_the_same_name_says_nothing_of_this_one() {
        let now = marks(0, 10);
        assert_eq!(now.ahead_of(&HashMap::from([(0, 11)]), &now), 10);
        assert_eq!(now.ahead_of(&HashMap::from([(0, 10)]), &now), 0);
        let older = marks(0, 100);
        assert_eq!(
            older.ahead_of(&HashMap::from([(0, 10)]), &now),
            0,
            "marks of a topic that is gone are not waited for"
        );
        assert_eq!(
            older.ahead_of(&HashMap::from([(0, 10)]), &Watermarks(HashMap::new())),
            0,
            "nor those of a partition"
        );
    }
}
