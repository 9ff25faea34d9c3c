//! What the tests of the relay and of the consumer share: orders, outboxes, and the content of topics.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Headers;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use redis::aio::MultiplexedConnection;
use sandbox::{Options, Sandbox};
use seckill::config::Settings;
use seckill::domain::{OrderId, OrderMessage, SaleId};
use seckill::kafka::{self, Delivery, Producer, Record};
use seckill::stock::keys::{self, RELAY_GROUP};

use super::fixtures::{self, order_message};
use super::servers::{shared_settings, with_own};

/// Generous: a bound for broken code.
pub const SOON: Duration = Duration::from_secs(60);

pub fn sale(id: i32) -> SaleId {
    SaleId::new(id).unwrap()
}

/// The `n`-th order of a sale, always the same, each by another buyer.
pub fn order(sale: SaleId, n: u64) -> OrderMessage {
    order_message(OrderId::mint(sale, 1_700_000_000, n), &format!("buyer-{n}"))
}

pub fn orders(sale: SaleId, numbers: std::ops::Range<u64>) -> Vec<OrderMessage> {
    numbers.map(|n| order(sale, n)).collect()
}

/// Settings of their own with their topics made. Short waits, so that take-overs happen while one looks.
pub async fn settings(name: &str) -> Settings {
    short_waits(shared_settings(name).await).await
}

/// The same with servers of the test's own.
pub async fn settings_with_own(name: &str, options: Options) -> (Sandbox, Settings) {
    let (sandbox, settings) = with_own(name, options).await;
    (sandbox, short_waits(settings).await)
}

async fn short_waits(mut settings: Settings) -> Settings {
    settings.outbox.block_ms = 50;
    settings.outbox.claim_after_ms = 300;
    settings.consumer.retry_ms = 10;
    settings.consumer.max_retry_ms = 50;
    kafka::topics::ensure(&settings.kafka).await.unwrap();
    settings
}

pub async fn redis(settings: &Settings) -> MultiplexedConnection {
    fixtures::redis(&settings.redis).await
}

/// Appends to the outbox what `purchase.lua` would.
pub async fn append(redis: &mut MultiplexedConnection, orders: &[OrderMessage]) {
    for chunk in orders.chunks(1000) {
        let mut pipeline = redis::pipe();
        for order in chunk {
            let mut add = redis::cmd("XADD");
            add.arg(keys::outbox(order.sale)).arg("*");
            add.arg("order").arg(order.id.to_string()).arg("user").arg(order.user.as_str());
            add.arg("quantity").arg(order.quantity).arg("generation").arg(order.generation);
            add.arg("accepted_ms").arg(order.accepted_ms);
            pipeline.add_command(add).ignore();
        }
        pipeline.query_async::<()>(redis).await.unwrap();
    }
}

pub async fn length(redis: &mut MultiplexedConnection, sale: SaleId) -> u64 {
    redis::cmd("XLEN").arg(keys::outbox(sale)).query_async(redis).await.unwrap()
}

/// Entries that are read and not acknowledged.
pub async fn pending(redis: &mut MultiplexedConnection, sale: SaleId) -> u64 {
    let mut command = redis::cmd("XPENDING");
    command.arg(keys::outbox(sale)).arg(RELAY_GROUP);
    match command.query_async::<Vec<redis::Value>>(redis).await {
        Ok(summary) => redis::from_redis_value(summary[0].clone()).unwrap(),
        Err(_) => 0,
    }
}

/// The orders that stand in an outbox.
pub async fn standing(redis: &mut MultiplexedConnection, sale: SaleId) -> Vec<OrderId> {
    let mut range = redis::cmd("XRANGE");
    range.arg(keys::outbox(sale)).arg("-").arg("+");
    let entries: Vec<(String, Vec<String>)> = range.query_async(redis).await.unwrap();
    entries.into_iter().map(|(_, fields)| fields[1].parse().unwrap()).collect()
}

/// A message as it stands in a topic.
#[derive(Clone, Debug)]
pub struct Stored {
    pub partition: i32,
    pub key: Vec<u8>,
    pub payload: Vec<u8>,
    pub headers: BTreeMap<String, String>,
}

impl Stored {
    pub fn order(&self) -> OrderMessage {
        kafka::message::decode(&self.payload).unwrap()
    }
}

/// Everything in a topic at this moment.
pub async fn stored(brokers: &str, topic: &str) -> Vec<Stored> {
    let (brokers, topic) = (brokers.to_owned(), topic.to_owned());
    tokio::task::spawn_blocking(move || read_all(&brokers, &topic)).await.unwrap()
}

fn read_all(brokers: &str, topic: &str) -> Vec<Stored> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "a-look-from-outside")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), SOON).unwrap();
    let mut assignment = TopicPartitionList::new();
    let mut expected = 0;
    for partition in metadata.topics()[0].partitions() {
        let (low, high) = consumer.fetch_watermarks(topic, partition.id(), SOON).unwrap();
        expected += usize::try_from(high - low).unwrap();
        assignment.add_partition_offset(topic, partition.id(), Offset::Beginning).unwrap();
    }
    consumer.assign(&assignment).unwrap();
    let mut found = Vec::with_capacity(expected);
    while found.len() < expected {
        let message = consumer.poll(SOON).expect("a message below the watermark").unwrap();
        let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap_or_default().to_vec()).unwrap();
        let headers = message
            .headers()
            .map(|headers| headers.iter().map(|header| (header.key.to_owned(), text(header.value))).collect());
        found.push(Stored {
            partition: message.partition(),
            key: message.key().unwrap_or_default().to_vec(),
            payload: message.payload().unwrap_or_default().to_vec(),
            headers: headers.unwrap_or_default(),
        });
    }
    found
}

/// How often each order stands in a topic.
pub async fn copies(settings: &Settings) -> BTreeMap<OrderId, usize> {
    let mut copies = BTreeMap::new();
    for message in stored(&settings.kafka.brokers, &settings.kafka.topic).await {
        *copies.entry(message.order().id).or_default() += 1;
    }
    copies
}

/// Puts messages into the topic of orders as they are.
pub async fn publish(settings: &Settings, payloads: impl IntoIterator<Item = (String, Vec<u8>)>) {
    let producer = Producer::new(&settings.kafka).unwrap();
    let topic: std::sync::Arc<str> = settings.kafka.topic.as_str().into();
    let record = |(key, payload): (String, Vec<u8>)| {
        let record = Record { topic: topic.clone(), key: key.into_bytes(), payload, headers: Vec::new() };
        Delivery::new(record, ())
    };
    let mut deliveries: Vec<_> = payloads.into_iter().map(record).collect();
    producer.send(&mut deliveries).await.unwrap();
    producer.await_acks(&mut deliveries).await.unwrap();
}

pub async fn publish_orders(settings: &Settings, orders: &[OrderMessage]) {
    let payload = |order: &OrderMessage| (order.user.to_string(), kafka::message::encode(order));
    publish(settings, orders.iter().map(payload)).await;
}
