//! Makes the topics that orders and dead letters go to.

use std::time::Duration;

use anyhow::{Context, bail};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::types::RDKafkaErrorCode;
use tracing::info;

use crate::config;

const TIMEOUT: Duration = Duration::from_secs(15);

/// Makes the topics that are not there yet. One that is there keeps its partitions: changing their number would
/// send a buyer's next order to another partition than the last.
///
/// # Errors
/// When Kafka cannot be reached or refuses.
pub async fn ensure(kafka: &config::Kafka) -> anyhow::Result<()> {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &kafka.brokers).create().context("the Kafka settings")?;
    let topics = [&kafka.topic, &kafka.dead_letter_topic]
        .map(|t| NewTopic::new(t, kafka.partitions, TopicReplication::Fixed(kafka.replication)));
    let options = AdminOptions::new().operation_timeout(Some(TIMEOUT)).request_timeout(Some(TIMEOUT));
    let answers = admin.create_topics(&topics, &options).await.context("the topics cannot be made")?;
    for answer in answers {
        match answer {
            Ok(topic) => info!(topic, partitions = kafka.partitions, "made the topic"),
            Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((topic, code)) => bail!("topic {topic} cannot be made: {code}"),
        }
    }
    Ok(())
}
