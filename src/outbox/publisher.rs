//! The Kafka side: letters go in, and each one is known to be delivered or known not to be.
//!
//! Nothing here waits without need and nothing blocks a thread of the runtime: a full queue makes the caller wait
//! for its own oldest letter. A producer that gave up for good (an idempotent producer does, when the broker has
//! lost what it remembered), or is blind to a topic that others see, is replaced, and the letters that it failed are the
//! caller's to send again.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord, Producer};
use tracing::{debug, error, info, warn};

use crate::config;

/// Letters that may wait inside the producer, of all callers together.
const QUEUE: usize = 100_000;

/// How long a caller with nothing of its own under way waits for room that others take up.
const ROOM: Duration = Duration::from_millis(5);

/// How long a new producer may take to find the topic.
const LOOK: Duration = Duration::from_secs(2);

/// A message for Kafka.
#[derive(Clone, Debug)]
pub struct Letter {
    pub topic: Arc<str>,
    pub key: Vec<u8>,
    pub payload: Vec<u8>,
    pub headers: Vec<(&'static str, String)>,
}

/// A letter, what is known of its delivery, and what its sender wants to remember with it.
pub struct Parcel<T> {
    pub note: T,
    letter: Letter,
    state: State,
}

enum State {
    /// Not handed to the producer, or handed back by it.
    Here,
    UnderWay(DeliveryFuture),
    Delivered,
}

impl<T> Parcel<T> {
    pub const fn new(letter: Letter, note: T) -> Self {
        Self { note, letter, state: State::Here }
    }

    /// Whether Kafka has confirmed the letter.
    pub const fn is_delivered(&self) -> bool {
        matches!(self.state, State::Delivered)
    }

    pub(super) const fn topic(&self) -> &Arc<str> {
        &self.letter.topic
    }

    /// Waits for the report of a letter that is under way. Safe to drop and to call again.
    async fn report(&mut self) -> Result<(), KafkaError> {
        let State::UnderWay(delivery) = &mut self.state else { return Ok(()) };
        let report = delivery.await;
        self.state = State::Here;
        match report {
            Ok(Ok(_)) => {
                self.state = State::Delivered;
                Ok(())
            }
            Ok(Err((error, _))) => Err(error),
            // The producer went away with the letter.
            Err(_) => Err(KafkaError::Canceled),
        }
    }
}

/// A producer that is replaced when it dies. Cheap to clone; clones share the producer.
#[derive(Clone)]
pub struct Publisher(Arc<Shared>);

struct Shared {
    config: ClientConfig,
    producer: ArcSwap<FutureProducer>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let_go(self.producer.load_full());
    }
}

/// Lets go of a Kafka client. Its last owner waits for the threads of the client to end, which takes a tenth of a second
/// and more: time that no thread of the runtime, and nobody who has his answer, has to spend.
pub(crate) fn let_go<T: Send + 'static>(client: T) {
    let waiting = thread::Builder::new().name("client-end".to_owned()).spawn(move || drop(client));
    if let Err(error) = waiting {
        debug!(%error, "no thread to wait on, so this one has waited");
    }
}

impl Publisher {
    /// Does not talk to Kafka yet: brokers that are down are waited for by the first letter.
    ///
    /// # Errors
    /// When librdkafka refuses the settings.
    pub fn new(kafka: &config::Kafka) -> anyhow::Result<Self> {
        Self::with_queue(kafka, QUEUE)
    }

    /// As [`Self::new`], with room for `queue` letters.
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

    /// Hands over every letter that is here. While the queue is full it waits for the oldest letter under way, and
    /// goes on as long as Kafka takes them: the caller decides what a failure means.
    ///
    /// # Errors
    /// Why the producer refused a letter, or failed the one that was to make room. What was not handed over is here.
    pub async fn send<T>(&self, parcels: &mut [Parcel<T>]) -> Result<(), KafkaError> {
        let producer = self.0.producer.load_full();
        // Every parcel before this one has its report, or was never under way.
        let mut oldest = 0;
        let mut next = 0;
        while next < parcels.len() {
            let parcel = &mut parcels[next];
            if !matches!(parcel.state, State::Here) {
                next += 1;
                continue;
            }
            match producer.send_result(record(&parcel.letter)) {
                Ok(delivery) => {
                    parcel.state = State::UnderWay(delivery);
                    next += 1;
                }
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                    while oldest < next && !matches!(parcels[oldest].state, State::UnderWay(_)) {
                        oldest += 1;
                    }
                    if oldest < next {
                        parcels[oldest].report().await?;
                    } else {
                        tokio::time::sleep(ROOM).await;
                    }
                }
                Err((error, _)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until nothing is under way. Safe to drop and to call again.
    ///
    /// # Errors
    /// Why the last of the failed letters failed; those are here again.
    pub async fn reports<T>(&self, parcels: &mut [Parcel<T>]) -> Result<(), KafkaError> {
        let mut outcome = Ok(());
        for parcel in parcels {
            if let Err(error) = parcel.report().await {
                outcome = Err(error);
            }
        }
        outcome
    }

    /// After a failed delivery: puts a new producer in the place of one that will never deliver again.
    ///
    /// That is one that gave up for good, and one that is blind: a topic that is deleted and made anew begins to count
    /// its leaders anew, and an old client takes them for old news. Where letters ran out of time, a new producer is
    /// asked for the topic; if that one sees it, it takes over. A Kafka that is away is seen by neither.
    pub async fn revive(&self, topic: &str, failure: &KafkaError) {
        let current = self.0.producer.load_full();
        if let Some((code, reason)) = current.client().fatal_error() {
            match self.0.config.create() {
                Ok(fresh) => {
                    warn!(%code, reason, "the Kafka producer gave up for good; a new one takes over");
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
        // Asking blocks a thread, and so does letting go of a producer.
        let asked = tokio::task::spawn_blocking(move || {
            let fresh: FutureProducer = config.create().ok()?;
            sees(&fresh, &topic).then_some(fresh)
        });
        if let Ok(Some(fresh)) = asked.await {
            warn!("orders ran out of time at a Kafka producer, and a new one sees the topic; it takes over");
            self.replace(current, fresh);
        }
    }

    /// Unless somebody else was faster.
    fn replace(&self, current: Arc<FutureProducer>, fresh: FutureProducer) {
        let fresh = Arc::new(fresh);
        let replaced = self.0.producer.compare_and_swap(&current, Arc::clone(&fresh));
        let_go(if Arc::ptr_eq(&replaced, &current) { current } else { fresh });
    }
}

/// Whether a producer knows a leader of every partition of the topic.
fn sees(producer: &FutureProducer, topic: &str) -> bool {
    let Ok(metadata) = producer.client().fetch_metadata(Some(topic), LOOK) else { return false };
    let partitions = metadata.topics().first().map(|topic| topic.partitions()).unwrap_or_default();
    !partitions.is_empty() && partitions.iter().all(|partition| partition.leader() >= 0)
}

fn record(letter: &Letter) -> FutureRecord<'_, Vec<u8>, Vec<u8>> {
    let record = FutureRecord::to(&letter.topic).key(&letter.key).payload(&letter.payload);
    if letter.headers.is_empty() {
        return record;
    }
    let mut headers = OwnedHeaders::new_with_capacity(letter.headers.len());
    for (key, value) in &letter.headers {
        headers = headers.insert(Header { key, value: Some(value) });
    }
    record.headers(headers)
}

/// Says once that Kafka takes nothing, and once that it takes letters again.
#[derive(Default)]
pub(crate) struct Condition {
    failing: bool,
}

impl Condition {
    pub(crate) fn failed(&mut self, error: &KafkaError) {
        if !self.failing {
            warn!(%error, "Kafka does not confirm orders; they wait and are sent again: check the brokers and topics");
        }
        self.failing = true;
    }

    pub(crate) fn succeeded(&mut self) {
        if self.failing {
            info!("Kafka confirms orders again");
        }
        self.failing = false;
    }
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

    /// Whether a publisher has another producer after such a failure.
    async fn revives(publisher: &Publisher, failure: RDKafkaErrorCode) -> bool {
        let before = publisher.0.producer.load_full();
        publisher.revive("orders", &KafkaError::MessageProduction(failure)).await;
        !Arc::ptr_eq(&before, &publisher.0.producer.load_full())
    }

    #[tokio::test]
    async fn a_producer_whose_letters_run_out_of_time_is_replaced_where_another_one_sees_the_topic() {
        let broker = broker();
        let publisher = Publisher::new(&topic_at(broker.bootstrap_servers())).expect("a producer");
        assert!(revives(&publisher, RDKafkaErrorCode::MessageTimedOut).await);
        assert!(!revives(&publisher, RDKafkaErrorCode::MessageSizeTooLarge).await, "that is the letter's fault");
    }

    #[tokio::test]
    async fn while_kafka_is_away_no_producer_takes_over_from_another() {
        let publisher = Publisher::new(&topic_at("127.0.0.1:1".to_owned())).expect("a producer");
        assert!(!revives(&publisher, RDKafkaErrorCode::MessageTimedOut).await);
    }

    #[tokio::test]
    async fn a_producer_that_gave_up_for_good_is_replaced_and_its_letters_are_sent_again() {
        let broker = broker();
        let publisher = Publisher::new(&topic_at(broker.bootstrap_servers())).expect("a producer");
        let letter = |n: u8| {
            Parcel::new(Letter { topic: "orders".into(), key: vec![n], payload: vec![n], headers: Vec::new() }, n)
        };
        let reason = CString::new("the broker forgot this producer").expect("no NUL");
        let code = rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
        let producer = publisher.0.producer.load_full();
        // SAFETY: the client lives as long as `producer`, and the string as long as the call.
        unsafe { rd_kafka_test_fatal_error(producer.client().native_ptr(), code, reason.as_ptr()) };
        drop(producer);

        let mut parcels: Vec<_> = (0..100).map(letter).collect();
        let sent = publisher.send(&mut parcels).await;
        let reported = publisher.reports(&mut parcels).await;
        let failure = sent.and(reported).expect_err("it gave up");
        assert!(!parcels.iter().any(Parcel::is_delivered));

        publisher.revive("orders", &failure).await;
        publisher.send(&mut parcels).await.expect("room");
        publisher.reports(&mut parcels).await.expect("delivery");
        assert!(parcels.iter().all(Parcel::is_delivered));
    }
}
