//! The Kafka side: letters go in, and each one is known to be delivered or known not to be.
//!
//! Nothing here waits without need and nothing blocks a thread of the runtime: a full queue makes the caller wait
//! for its own oldest letter. A producer that gave up for good (an idempotent producer does, when the broker has
//! lost what it remembered) is replaced, and the letters that it failed are the caller's to send again.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord, Producer};
use tracing::{error, info, warn};

use crate::config;

/// Letters that may wait inside the producer, of all callers together.
const QUEUE: usize = 100_000;

/// How long a caller with nothing of its own under way waits for room that others take up.
const ROOM: Duration = Duration::from_millis(5);

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
pub struct Publisher {
    config: Arc<ClientConfig>,
    producer: Arc<ArcSwap<FutureProducer>>,
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
            .set("reconnect.backoff.max.ms", "2000");
        let producer = Arc::new(ArcSwap::from_pointee(config.create::<FutureProducer>()?));
        Ok(Self { config: Arc::new(config), producer })
    }

    /// Hands over every letter that is here. While the queue is full it waits for the oldest letter under way, and
    /// goes on as long as Kafka takes them: the caller decides what a failure means.
    ///
    /// # Errors
    /// Why the producer refused a letter, or failed the one that was to make room. What was not handed over is here.
    pub async fn send<T>(&self, parcels: &mut [Parcel<T>]) -> Result<(), KafkaError> {
        let producer = self.producer.load_full();
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

    /// Puts a new producer in the place of one that will never deliver again.
    pub fn revive(&self) {
        let current = self.producer.load_full();
        let Some((code, reason)) = current.client().fatal_error() else { return };
        match self.config.create::<FutureProducer>() {
            Ok(fresh) => {
                warn!(%code, reason, "the Kafka producer gave up for good; a new one takes over");
                let replaced = self.producer.compare_and_swap(&current, Arc::new(fresh));
                if Arc::ptr_eq(&replaced, &current) {
                    // The last owner waits for the producer's thread to end: not on a thread of the runtime.
                    drop(replaced);
                    tokio::task::spawn_blocking(move || drop(current));
                }
            }
            Err(error) => error!(%error, "no new Kafka producer can be made"),
        }
    }

    /// Whether the current producer still works, for tests and for readiness.
    pub fn is_healthy(&self) -> bool {
        self.producer.load().client().fatal_error().is_none()
    }
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
