//! Reads, writes and deletes topics for the drill.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};
use seckill::config;
use seckill::kafka::{Delivery, Producer, Record};

const TIMEOUT: Duration = Duration::from_secs(10);

/// The key and the payload of a message.
pub type Sent = (Vec<u8>, Vec<u8>);

/// Everything that is in a topic now.
pub async fn read(kafka: &config::Kafka, topic: &str) -> anyhow::Result<Vec<Sent>> {
    let (kafka, topic) = (kafka.clone(), topic.to_owned());
    // Polling blocks a thread.
    tokio::task::spawn_blocking(move || read_blocking(&kafka, &topic)).await?
}

fn read_blocking(kafka: &config::Kafka, topic: &str) -> anyhow::Result<Vec<Sent>> {
    let consumer = consumer(kafka)?;
    let metadata = consumer.fetch_metadata(Some(topic), TIMEOUT)?;
    let partitions = metadata.topics().first().context("no topic")?.partitions();
    let (mut list, mut expected) = (TopicPartitionList::new(), 0);
    for partition in partitions {
        let (low, high) = consumer.fetch_watermarks(topic, partition.id(), TIMEOUT)?;
        expected += high - low;
        list.add_partition_offset(topic, partition.id(), Offset::Beginning)?;
    }
    consumer.assign(&list)?;
    let (mut read, begun) = (Vec::new(), Instant::now());
    while i64::try_from(read.len())? < expected {
        ensure!(begun.elapsed() < TIMEOUT, "{} of {expected} messages of {topic} could be read", read.len());
        let Some(message) = consumer.poll(Duration::from_millis(200)) else { continue };
        let message = message?;
        read.push((message.key().unwrap_or_default().to_vec(), message.payload().unwrap_or_default().to_vec()));
    }
    Ok(read)
}

fn consumer(kafka: &config::Kafka) -> anyhow::Result<BaseConsumer> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &kafka.brokers).set("group.id", "drill").set("enable.auto.commit", "false");
    Ok(config.create()?)
}

/// Writes to the topic of orders, and returns once Kafka has it all.
pub async fn write(kafka: &config::Kafka, messages: impl IntoIterator<Item = Sent>) -> anyhow::Result<u64> {
    let producer = Producer::new(kafka)?;
    let record = |(key, payload)| Record { topic: kafka.topic.as_str().into(), key, payload, headers: Vec::new() };
    let mut deliveries: Vec<_> = messages.into_iter().map(|sent| Delivery::new(record(sent), ())).collect();
    producer.send(&mut deliveries).await?;
    producer.await_acks(&mut deliveries).await?;
    Ok(deliveries.len() as u64)
}

/// Deletes a topic. Returns before the broker has quite done it.
pub async fn delete(kafka: &config::Kafka, topic: &str) -> anyhow::Result<()> {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &kafka.brokers).create()?;
    let options = AdminOptions::new().operation_timeout(Some(TIMEOUT)).request_timeout(Some(TIMEOUT));
    for deleted in admin.delete_topics(&[topic], &options).await? {
        deleted.map_err(|(topic, code)| anyhow!("topic {topic} cannot be deleted: {code}"))?;
    }
    Ok(())
}

/// Whether a topic has partitions.
pub async fn exists(kafka: &config::Kafka, topic: &str) -> bool {
    let (kafka, topic) = (kafka.clone(), topic.to_owned());
    let ask = move || -> anyhow::Result<bool> {
        let metadata = consumer(&kafka)?.fetch_metadata(Some(&topic), TIMEOUT)?;
        Ok(metadata.topics().first().is_some_and(|topic| topic.error().is_none() && !topic.partitions().is_empty()))
    };
    tokio::task::spawn_blocking(ask).await.is_ok_and(|answer| answer.unwrap_or(false))
}
