//! Sends records to Kafka. The caller learns of each record whether it was delivered.
//!
//! No call blocks a thread of the runtime: when the queue of the producer is full, the caller waits for its own
//! oldest record. A producer that failed for good (an idempotent producer does, when the broker has lost its state)
//! or has stale metadata of a topic is replaced. The caller sends the records that failed again.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord, Producer as _};
use tracing::{debug, error, warn};

use crate::config;

/// Records that may wait inside the producer, of all callers together.
const QUEUE: usize = 100_000;

/// How long a caller with no record of its own in flight waits while the queue is full of those of others.
const QUEUE_FULL_WAIT: Duration = Duration::from_millis(5);

/// How long a new producer may take to find the topic.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// A message for Kafka.
#[derive(Clone, Debug)]
pub struct Record {
    pub topic: Arc<str>,
    pub key: Vec<u8>,
    pub payload: Vec<u8>,
    pub headers: Vec<(&'static str, String)>,
}

/// A record, the state of its delivery, and what its sender keeps with it.
pub struct Delivery<T> {
    pub context: T,
    record: Record,
    state: State,
}

enum State {
    /// Not handed to the producer yet, or failed by it.
    Pending,
    InFlight(DeliveryFuture),
    Delivered,
}

impl<T> Delivery<T> {
    pub const fn new(record: Record, context: T) -> Self {
        Self { context, record, state: State::Pending }
    }

    /// Whether Kafka has confirmed the record.
    pub const fn is_delivered(&self) -> bool {
        matches!(self.state, State::Delivered)
    }

    pub(crate) const fn topic(&self) -> &Arc<str> {
        &self.record.topic
    }

    /// Waits for the acknowledgement of a record that is in flight. Cancel safe.
    async fn ack(&mut self) -> Result<(), KafkaError> {
        let State::InFlight(delivery) = &mut self.state else { return Ok(()) };
        let report = delivery.await;
        self.state = State::Pending;
        match report {
            Ok(Ok(_)) => {
                self.state = State::Delivered;
                Ok(())
            }
            Ok(Err((error, _))) => Err(error),
            // The producer was dropped with the record in its queue.
            Err(_) => Err(KafkaError::Canceled),
        }
    }
}

/// A Kafka producer that is replaced when it breaks. Cheap to clone; clones share it.
#[derive(Clone)]
pub struct Producer(Arc<Shared>);

struct Shared {
    config: ClientConfig,
    producer: ArcSwap<FutureProducer>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        drop_in_background(self.producer.load_full());
    }
}

/// Drops a Kafka client on a thread of its own. The last owner of a client waits until the threads of the client have
/// ended, which takes a tenth of a second and more. Neither the runtime nor the caller should wait that long.
pub(crate) fn drop_in_background<T: Send + 'static>(client: T) {
    let waiting = thread::Builder::new().name("client-end".to_owned()).spawn(move || drop(client));
    if let Err(error) = waiting {
        debug!(%error, "no thread could be started to drop a Kafka client; it was dropped here");
    }
}

impl Producer {
    /// Does not talk to Kafka yet: the first record waits for brokers that are down.
    ///
    /// # Errors
    /// When librdkafka refuses the settings.
    pub fn new(kafka: &config::Kafka) -> anyhow::Result<Self> {
        Self::with_queue(kafka, QUEUE)
    }

    /// As [`Self::new`], with room for `queue` records.
    ///
    /// # Errors
    /// When librdkafka refuses the settings.
    pub fn with_queue(kafka: &config::Kafka, queue: usize) -> anyhow::Result<Self> {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &kafka.brokers)
            .set("client.id", "seckill")
            // Implies acks=all and ordered retries without duplicates inside one producer.
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", kafka.delivery_timeout_ms.to_string())
            .set("linger.ms", "2")
            .set("compression.type", "lz4")
            // The partitioner of the Java clients: everyone puts a user in the same partition.
            .set("partitioner", "murmur2_random")
            .set("queue.buffering.max.messages", queue.to_string())
            // A silent connection is given up for a new one; the default is a minute.
            .set("socket.timeout.ms", "10000")
            .set("reconnect.backoff.max.ms", "2000");
        let producer = ArcSwap::from_pointee(config.create::<FutureProducer>()?);
        Ok(Self(Arc::new(Shared { config, producer })))
    }

    /// Hands every pending record to the producer. While the queue is full, it waits for the oldest record in flight.
    /// It stops at the first failure; the caller decides what that means.
    ///
    /// # Errors
    /// Why the producer refused a record, or failed the one that was waited for. Records that were not handed over stay
    /// pending.
    pub async fn send<T>(&self, deliveries: &mut [Delivery<T>]) -> Result<(), KafkaError> {
        let producer = self.0.producer.load_full();
        // No delivery before this one is in flight.
        let mut oldest = 0;
        let mut next = 0;
        while next < deliveries.len() {
            let delivery = &mut deliveries[next];
            if !matches!(delivery.state, State::Pending) {
                next += 1;
                continue;
            }
            match producer.send_result(to_rdkafka(&delivery.record)) {
                Ok(future) => {
                    delivery.state = State::InFlight(future);
                    next += 1;
                }
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                    while oldest < next && !matches!(deliveries[oldest].state, State::InFlight(_)) {
                        oldest += 1;
                    }
                    if oldest < next {
                        deliveries[oldest].ack().await?;
                    } else {
                        tokio::time::sleep(QUEUE_FULL_WAIT).await;
                    }
                }
                Err((error, _)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until no record is in flight. Cancel safe.
    ///
    /// # Errors
    /// Why the last of the failed records failed. Failed records are pending again.
    pub async fn await_acks<T>(&self, deliveries: &mut [Delivery<T>]) -> Result<(), KafkaError> {
        let mut outcome = Ok(());
        for delivery in deliveries {
            if let Err(error) = delivery.ack().await {
                outcome = Err(error);
            }
        }
        outcome
    }

    /// After a failed delivery: replaces the producer if it can never deliver again.
    ///
    /// Two kinds of producer cannot: one with a fatal error, and one with stale metadata. When a topic is deleted and
    /// created again, its leader epochs start again too, and a client that knew the old topic takes the new epochs
    /// for outdated ones. So when records time out, a new producer asks for the leaders of the topic. It takes over
    /// if it gets them; while Kafka is down it does not.
    pub async fn replace_if_broken(&self, topic: &str, failure: &KafkaError) {
        let current = self.0.producer.load_full();
        if let Some((code, reason)) = current.client().fatal_error() {
            match self.0.config.create() {
                Ok(fresh) => {
                    warn!(%code, reason, "the Kafka producer has failed for good; a new one takes over");
                    self.replace(current, fresh);
                }
                Err(error) => error!(%error, "no new Kafka producer can be made"),
            }
            return;
        }
        if failure.rdkafka_error_code() != Some(RDKafkaErrorCode::MessageTimedOut) {
            return;
        }
        let (config, topic) = (self.0.config.clone(), topic.to_owned());
        // Both the request and the drop of a producer block a thread.
        let asked = tokio::task::spawn_blocking(move || {
            let fresh: FutureProducer = config.create().ok()?;
            has_leaders(&fresh, &topic).then_some(fresh)
        });
        if let Ok(Some(fresh)) = asked.await {
            warn!("records timed out at a Kafka producer, and a new one finds the topic; the new one takes over");
            self.replace(current, fresh);
        }
    }

    /// Does nothing if another caller has replaced it already.
    fn replace(&self, current: Arc<FutureProducer>, fresh: FutureProducer) {
        let fresh = Arc::new(fresh);
        let replaced = self.0.producer.compare_and_swap(&current, Arc::clone(&fresh));
        drop_in_background(if Arc::ptr_eq(&replaced, &current) { current } else { fresh });
    }
}

/// Whether a producer knows a leader of every partition of the topic.
fn has_leaders(producer: &FutureProducer, topic: &str) -> bool {
    let Ok(metadata) = producer.client().fetch_metadata(Some(topic), METADATA_TIMEOUT) else { return false };
    let partitions = metadata.topics().first().map(|topic| topic.partitions()).unwrap_or_default();
    !partitions.is_empty() && partitions.iter().all(|partition| partition.leader() >= 0)
}

fn to_rdkafka(record: &Record) -> FutureRecord<'_, Vec<u8>, Vec<u8>> {
    let outgoing = FutureRecord::to(&record.topic).key(&record.key).payload(&record.payload);
    if record.headers.is_empty() {
        return outgoing;
    }
    let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
    for (key, value) in &record.headers {
        headers = headers.insert(Header { key, value: Some(value) });
    }
    outgoing.headers(headers)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use rdkafka::bindings::{rd_kafka_resp_err_t, rd_kafka_test_fatal_error};
    use rdkafka::mocking::MockCluster;

    use super::*;

    fn topic_at(brokers: String) -> config::Kafka {
        config::Kafka {
            brokers,
            topic: "orders".to_owned(),
            dead_letter_topic: "dead".to_owned(),
            group: "none".to_owned(),
            partitions: 2,
            replication: 1,
            delivery_timeout_ms: 10_000,
            session_timeout_ms: 6000,
        }
    }

    fn broker() -> MockCluster<'static, rdkafka::producer::DefaultProducerContext> {
        let broker = MockCluster::new(1).expect("a broker in this process");
        broker.create_topic("orders", 2, 1).expect("a topic");
        broker
    }

    /// Whether such a failure makes the producer replace its client.
    async fn replaces(producer: &Producer, failure: RDKafkaErrorCode) -> bool {
        let before = producer.0.producer.load_full();
        producer.replace_if_broken("orders", &KafkaError::MessageProduction(failure)).await;
        !Arc::ptr_eq(&before, &producer.0.producer.load_full())
    }

    #[tokio::test]
    async fn a_producer_whose_records_time_out_is_replaced_when_a_new_one_finds_the_topic() {
        let broker = broker();
        let producer = Producer::new(&topic_at(broker.bootstrap_servers())).expect("a producer");
        assert!(replaces(&producer, RDKafkaErrorCode::MessageTimedOut).await);
        assert!(!replaces(&producer, RDKafkaErrorCode::MessageSizeTooLarge).await, "that is the fault of the record");
    }

    #[tokio::test]
    async fn a_producer_is_not_replaced_while_kafka_is_away() {
        let producer = Producer::new(&topic_at("127.0.0.1:1".to_owned())).expect("a producer");
        assert!(!replaces(&producer, RDKafkaErrorCode::MessageTimedOut).await);
    }

    #[tokio::test]
    async fn a_producer_that_failed_for_good_is_replaced_and_its_records_are_sent_again() {
        let broker = broker();
        let producer = Producer::new(&topic_at(broker.bootstrap_servers())).expect("a producer");
        let record = |n: u8| {
            Delivery::new(Record { topic: "orders".into(), key: vec![n], payload: vec![n], headers: Vec::new() }, n)
        };
        let reason = CString::new("the broker forgot this producer").expect("no NUL");
        let code = rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
        let client = producer.0.producer.load_full();
        // SAFETY: the client lives as long as `client`, and the string as long as the call.
        unsafe { rd_kafka_test_fatal_error(client.client().native_ptr(), code, reason.as_ptr()) };
        drop(client);

        let mut deliveries: Vec<_> = (0..100).map(record).collect();
        let sent = producer.send(&mut deliveries).await;
        let acked = producer.await_acks(&mut deliveries).await;
        let failure = sent.and(acked).expect_err("it has failed for good");
        assert!(!deliveries.iter().any(Delivery::is_delivered));

        producer.replace_if_broken("orders", &failure).await;
        producer.send(&mut deliveries).await.expect("room");
        producer.await_acks(&mut deliveries).await.expect("delivery");
        assert!(deliveries.iter().all(Delivery::is_delivered));
    }
}
