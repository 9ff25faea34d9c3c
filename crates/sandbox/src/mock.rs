//! The broker that is built into librdkafka, for machines without Java or Kafka.
//!
//! It lives in this process and keeps everything in memory: enough to try a client, not a proof about Kafka. It belongs to
//! one thread, since its handle must not change threads.

use std::sync::mpsc;
use std::thread;

use anyhow::Context;
use rdkafka::error::KafkaResult;
use rdkafka::mocking::MockCluster;

/// The broker's number in its cluster of one.
const BROKER: i32 = 1;

enum Ask {
    CreateTopic(String, i32),
    Down,
    Up,
}

type Request = (Ask, mpsc::SyncSender<KafkaResult<()>>);

/// Dropping it ends the broker.
pub(crate) struct Mock {
    brokers: String,
    requests: mpsc::Sender<Request>,
}

impl Mock {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let (started, answer) = mpsc::sync_channel(1);
        let (requests, asked) = mpsc::channel::<Request>();
        thread::spawn(move || {
            let cluster = match MockCluster::new(BROKER) {
                Ok(cluster) => cluster,
                Err(error) => return drop(started.send(Err(error))),
            };
            let _ = started.send(Ok(cluster.bootstrap_servers()));
            for (ask, reply) in asked {
                let _ = reply.send(match ask {
                    Ask::CreateTopic(name, partitions) => cluster.create_topic(&name, partitions, 1),
                    Ask::Down => cluster.broker_down(BROKER),
                    Ask::Up => cluster.broker_up(BROKER),
                });
            }
        });
        let brokers = answer.recv().context("the mock broker's thread is gone")??;
        Ok(Self { brokers, requests })
    }

    pub(crate) fn brokers(&self) -> &str {
        &self.brokers
    }

    /// The mock does not understand requests to create a topic; it is created here.
    pub(crate) fn create_topic(&self, name: &str, partitions: i32) -> anyhow::Result<()> {
        self.ask(Ask::CreateTopic(name.to_owned(), partitions))
    }

    pub(crate) fn down(&self) -> anyhow::Result<()> {
        self.ask(Ask::Down)
    }

    pub(crate) fn up(&self) -> anyhow::Result<()> {
        self.ask(Ask::Up)
    }

    fn ask(&self, ask: Ask) -> anyhow::Result<()> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.requests.send((ask, reply)).ok().context("the mock broker's thread is gone")?;
        Ok(answer.recv().context("the mock broker's thread is gone")??)
    }
}
