//! The consumer on real servers: what Kafka has becomes rows, whatever dies and whenever, and only then is it done.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prometheus::Registry;
use sandbox::Options;
use seckill::config::Settings;
use seckill::consumer::{Consumer, Fault, Recorder};
use seckill::domain::{OrderId, OrderMessage, SaleId};
use seckill::kafka::lag::backlog;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::fixtures::new_sale;
use crate::support::flow::{SOON, order, orders, publish, publish_orders, sale, settings, settings_with_own, stored};
use crate::support::wait_until;

/// A ledger of nothing but counts, whose every answer a test can hold back.
#[derive(Clone)]
struct Counting {
    /// How often each order was written.
    rows: Arc<Mutex<BTreeMap<OrderId, usize>>>,
    /// The batches as they came, before anything was written.
    seen: mpsc::UnboundedSender<Vec<OrderMessage>>,
    /// One permit per batch that may be written.
    before: Arc<Semaphore>,
    /// One permit per batch that may be answered after it was written.
    after: Arc<Semaphore>,
    known: SaleId,
}

impl Counting {
    fn new(before: usize, after: usize) -> (Self, mpsc::UnboundedReceiver<Vec<OrderMessage>>) {
        let (seen, batches) = mpsc::unbounded_channel();
        let rows = Arc::default();
        let (before, after) = (Arc::new(Semaphore::new(before)), Arc::new(Semaphore::new(after)));
        (Self { rows, seen, before, after, known: sale(1) }, batches)
    }

    fn open() -> Self {
        Self::new(Semaphore::MAX_PERMITS, Semaphore::MAX_PERMITS).0
    }

    fn rows(&self) -> BTreeMap<OrderId, usize> {
        self.rows.lock().unwrap().clone()
    }
}

impl Recorder for Counting {
    async fn record(&self, orders: &[OrderMessage]) -> Result<(), Fault> {
        let _ = self.seen.send(orders.to_vec());
        self.before.acquire().await.unwrap().forget();
        if let Some(foreign) = orders.iter().find(|order| order.sale != self.known) {
            return Err(Fault::UnknownSale(foreign.sale));
        }
        for order in orders {
            *self.rows.lock().unwrap().entry(order.id).or_default() += 1;
        }
        self.after.acquire().await.unwrap().forget();
        Ok(())
    }
}

struct Running {
    stop: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
    registry: Registry,
}

impl Running {
    fn start(settings: &Settings, recorder: impl Recorder + Sync) -> Self {
        let (stop, registry) = (CancellationToken::new(), Registry::new());
        let consumer = Consumer::new(settings, recorder, &registry).unwrap();
        let task = tokio::spawn(consumer.run(stop.clone()));
        Self { stop, task, registry }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }

    /// As a crash does: the writer is gone in the middle of its work, and nothing is committed after this instant.
    async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    fn metric(&self, name: &str) -> f64 {
        let name = format!("seckill_consumer_{name}");
        let family = self.registry.gather().into_iter().find(|family| family.name() == name).unwrap();
        let metric = &family.get_metric()[0];
        metric.get_counter().get_value() + metric.get_gauge().get_value()
    }
}

/// A broker that has just started takes a moment to find out that it coordinates the group.
async fn behind(settings: &Settings) -> u64 {
    let start = Instant::now();
    loop {
        let kafka = settings.kafka.clone();
        match tokio::task::spawn_blocking(move || backlog(&kafka)).await.unwrap() {
            Ok(behind) => return behind,
            Err(error) => assert!(start.elapsed() < SOON, "{error:#}"),
        }
    }
}

async fn settled(settings: &Settings) {
    wait_until("committed offsets reach the watermarks", SOON, || async { behind(settings).await == 0 }).await;
}

/// Known failure: a consumer on a fixed partition at the newest offset.
#[tokio::test]
async fn orders_placed_before_the_first_consumer_started_become_rows() {
    let settings = settings("consumer_earliest").await;
    publish_orders(&settings, &orders(sale(1), 0..1200)).await;
    assert_eq!(behind(&settings).await, 1200);
    let ledger = Counting::open();
    let consumer = Running::start(&settings, ledger.clone());
    settled(&settings).await;
    consumer.stop().await;
    assert_eq!(ledger.rows().len(), 1200);
    assert!(ledger.rows().values().all(|&times| times == 1));

    publish_orders(&settings, &orders(sale(1), 1200..1205)).await;
    let consumer = Running::start(&settings, ledger.clone());
    settled(&settings).await;
    consumer.stop().await;
    assert_eq!(ledger.rows().len(), 1205);
    assert!(ledger.rows().values().all(|&times| times == 1), "what is committed does not come again");
}

/// Known failure: the offset is stored before the work is done, and a crash loses the order.
#[tokio::test]
async fn a_consumer_killed_before_the_rows_are_committed_leaves_the_orders_to_the_next() {
    let settings = settings("consumer_killed_before").await;
    publish_orders(&settings, &orders(sale(1), 0..50)).await;
    let (ledger, mut batches) = Counting::new(0, 0);
    let consumer = Running::start(&settings, ledger.clone());
    batches.recv().await.unwrap();
    assert_eq!(behind(&settings).await, 50, "the work is not done");
    consumer.kill().await;
    assert_eq!(ledger.rows().len(), 0);

    let ledger = Counting::open();
    let consumer = Running::start(&settings, ledger.clone());
    settled(&settings).await;
    consumer.stop().await;
    assert_eq!(ledger.rows().len(), 50);
}

/// The other side: the rows are there and the offset is not.
#[tokio::test]
async fn a_consumer_killed_between_rows_and_offsets_makes_the_orders_come_again() {
    let settings = settings("consumer_killed_between").await;
    publish_orders(&settings, &orders(sale(1), 0..50)).await;
    let (ledger, mut batches) = Counting::new(Semaphore::MAX_PERMITS, 0);
    let consumer = Running::start(&settings, ledger.clone());
    batches.recv().await.unwrap();
    wait_until("rows are written", SOON, || async { !ledger.rows().is_empty() }).await;
    let written: Vec<_> = ledger.rows().into_keys().collect();
    assert_eq!(behind(&settings).await, 50, "rows are there, offsets are not");
    consumer.kill().await;

    ledger.after.add_permits(1000);
    let consumer = Running::start(&settings, ledger.clone());
    settled(&settings).await;
    consumer.stop().await;
    assert_eq!(ledger.rows().len(), 50);
    assert!(written.iter().all(|id| ledger.rows()[id] == 2));
}

/// Known failure: a poison message blocks a partition for ever.
#[tokio::test]
async fn poison_goes_to_the_dead_letters_with_its_reason_and_the_good_order_behind_it_is_written() {
    let settings = settings("consumer_poison").await;
    let good = orders(sale(1), 0..3);
    let bytes = seckill::kafka::message::encode;
    let newer = String::from_utf8(bytes(&good[0])).unwrap().replace("\"v\":1", "\"v\":2").into_bytes();
    // One key: all in one partition, behind each other.
    let at_one_place = |payload| ("buyer".to_owned(), payload);
    let payloads = [
        b"garbage".to_vec(),
        bytes(&good[0]),
        newer,
        Vec::new(),
        bytes(&order(sale(404), 9)),
        bytes(&good[1]),
        bytes(&good[2]),
    ];
    publish(&settings, payloads.map(at_one_place)).await;
    let ledger = Counting::open();
    let consumer = Running::start(&settings, ledger.clone());
    settled(&settings).await;
    assert_eq!(consumer.metric("dead_lettered_total"), 4.0);
    consumer.stop().await;
    assert_eq!(ledger.rows().into_keys().collect::<Vec<_>>(), good.iter().map(|order| order.id).collect::<Vec<_>>());

    let mut dead = stored(&settings.kafka.brokers, &settings.kafka.dead_letter_topic).await;
    dead.sort_by_key(|letter| letter.headers["source_offset"].clone());
    let offsets: Vec<_> = dead.iter().map(|letter| letter.headers["source_offset"].as_str()).collect();
    assert_eq!(offsets, ["0", "2", "3", "4"]);
    assert!(dead.iter().all(|letter| letter.headers["source_topic"] == settings.kafka.topic));
    assert!(dead.iter().all(|letter| letter.headers.contains_key("source_partition")));
    assert_eq!(dead[0].payload, b"garbage");
    assert!(dead[1].headers["reason"].contains("version 2"), "{:?}", dead[1]);
    assert!(dead[3].headers["reason"].contains("sale 404"), "{:?}", dead[3]);
}

/// A ledger behind a switch: away, or there.
struct Switched {
    ledger: Counting,
    away: Arc<Mutex<bool>>,
}

impl Recorder for Switched {
    async fn record(&self, orders: &[OrderMessage]) -> Result<(), Fault> {
        if *self.away.lock().unwrap() {
            return Err(Fault::Later(anyhow::anyhow!("the message is of a generation to come")));
        }
        self.ledger.record(orders).await
    }
}

/// Known failure: retries are exhausted, and the order is acknowledged and dropped.
#[tokio::test]
async fn a_ledger_that_cannot_take_a_message_yet_is_waited_for_and_nothing_is_dead_lettered() {
    let settings = settings("consumer_ahead").await;
    publish_orders(&settings, &orders(sale(1), 0..20)).await;
    let ledger = Counting::open();
    let away = Arc::new(Mutex::new(true));
    let consumer = Running::start(&settings, Switched { ledger: ledger.clone(), away: Arc::clone(&away) });
    wait_until("many tries failed", SOON, || async { consumer.metric("retries_total") > 20.0 }).await;
    assert_eq!((behind(&settings).await, ledger.rows().len()), (20, 0));
    *away.lock().unwrap() = false;
    settled(&settings).await;
    consumer.stop().await;
    assert_eq!(ledger.rows().len(), 20);
    assert_eq!(stored(&settings.kafka.brokers, &settings.kafka.dead_letter_topic).await.len(), 0);
}

/// Known failure: the poll interval is exceeded; the group rebalances, or the consumer silently stops.
#[tokio::test]
async fn a_ledger_slower_than_the_poll_interval_costs_no_membership_and_no_order() {
    let mut settings = settings("consumer_slow").await;
    settings.kafka.session_timeout_ms = 6000;
    settings.consumer.max_poll_ms = 6000;
    settings.consumer.batch = 10;
    let (ledger, mut batches) = Counting::new(0, Semaphore::MAX_PERMITS);
    let consumer = Running::start(&settings, ledger.clone());
    publish_orders(&settings, &orders(sale(1), 0..100)).await;
    batches.recv().await.unwrap();
    let start = Instant::now();
    wait_until("reading pauses", SOON, || async { consumer.metric("paused") == 1.0 }).await;
    publish_orders(&settings, &orders(sale(1), 100..200)).await;
    wait_until("the poll interval passes", SOON, || async { start.elapsed() > Duration::from_secs(8) }).await;
    assert_eq!(behind(&settings).await, 200);

    ledger.before.add_permits(Semaphore::MAX_PERMITS / 2);
    settled(&settings).await;
    assert_eq!((consumer.metric("paused"), consumer.metric("rebalances_total")), (0.0, 0.0));
    consumer.stop().await;
    assert_eq!(ledger.rows().len(), 200);
    assert!(ledger.rows().values().all(|&times| times == 1));
}

/// the consumer silently stops. A pause survives in librdkafka what it was meant for: it ends in the
/// middle of a rebalance, when there is nothing to resume.
#[tokio::test]
async fn a_pause_that_ends_in_the_middle_of_a_rebalance_leaves_no_partition_unread() {
    let mut settings = settings("consumer_sticky").await;
    settings.consumer.batch = 10;
    let (ledger, mut batches) = Counting::new(0, Semaphore::MAX_PERMITS);
    let first = Running::start(&settings, ledger.clone());
    publish_orders(&settings, &orders(sale(1), 0..100)).await;
    batches.recv().await.unwrap();
    wait_until("reading pauses", SOON, || async { first.metric("paused") == 1.0 }).await;
    let second = Running::start(&settings, Counting { before: Arc::new(Semaphore::new(1_000)), ..ledger.clone() });
    wait_until("the partitions are taken away", SOON, || async { first.metric("rebalances_total") > 0.0 }).await;
    // The rebalance waits for the batch in hand.
    ledger.before.add_permits(1_000);
    second.stop().await;
    publish_orders(&settings, &orders(sale(1), 100..200)).await;
    settled(&settings).await;
    first.stop().await;
    assert_eq!(ledger.rows().len(), 200);
}

#[tokio::test]
async fn a_stop_finishes_the_batch_in_hand_commits_it_and_leaves_the_rest() {
    let mut settings = settings("consumer_stop").await;
    settings.consumer.batch = 10;
    publish_orders(&settings, &orders(sale(1), 0..100)).await;
    let (ledger, mut batches) = Counting::new(0, Semaphore::MAX_PERMITS);
    let consumer = Running::start(&settings, ledger.clone());
    let in_hand = batches.recv().await.unwrap().len();
    consumer.stop.cancel();
    ledger.before.add_permits(1);
    consumer.stop().await;
    assert_eq!(ledger.rows().len(), in_hand);
    assert_eq!(behind(&settings).await, 100 - in_hand as u64);
}

#[tokio::test]
async fn a_stop_while_the_ledger_is_away_is_quick_and_commits_nothing() {
    let settings = settings("consumer_stop_away").await;
    publish_orders(&settings, &orders(sale(1), 0..20)).await;
    let away = Arc::new(Mutex::new(true));
    let consumer = Running::start(&settings, Switched { ledger: Counting::open(), away });
    wait_until("a try failed", SOON, || async { consumer.metric("retries_total") > 0.0 }).await;
    tokio::time::timeout(Duration::from_secs(10), consumer.stop()).await.expect("the stop is bounded");
    assert_eq!(behind(&settings).await, 20);
}

#[tokio::test]
async fn partitions_that_move_to_another_consumer_take_every_order_along() {
    let mut settings = settings("consumer_moves").await;
    settings.consumer.batch = 20;
    let ledger = Counting::open();
    let first = Running::start(&settings, ledger.clone());
    publish_orders(&settings, &orders(sale(1), 0..2000)).await;
    wait_until("the first works", SOON, || async { !ledger.rows().is_empty() }).await;
    let second = Running::start(&settings, ledger.clone());
    wait_until("the group is shared", SOON, || async { first.metric("rebalances_total") > 0.0 }).await;
    publish_orders(&settings, &orders(sale(1), 2000..4000)).await;
    wait_until("both work", SOON, || async { second.metric("messages_total") > 0.0 }).await;
    first.stop().await;
    publish_orders(&settings, &orders(sale(1), 4000..5000)).await;
    settled(&settings).await;
    second.stop().await;
    assert_eq!(ledger.rows().len(), 5000);
    assert!(ledger.rows().values().all(|&times| times == 1), "each hand-over commits first");
}

/// Known failure: the database is down for all tries.
#[tokio::test]
async fn postgresql_down_for_all_tries_loses_nothing_and_the_rows_come_when_it_is_back() {
    use seckill::catalogue::{Catalogue, NewSale};
    use seckill::ledger::{self, Ledger};

    let (own, settings) = settings_with_own("consumer_database", Options::none().postgres()).await;
    let ledger = Ledger::connect(&settings.postgres, Duration::from_secs(900)).await.unwrap();
    ledger::migrate(ledger.pool()).await.unwrap();
    let catalogue = Catalogue::load(ledger.pool().clone(), settings.redis.retention()).await.unwrap();
    let new = NewSale { total: 1000, reserve: None, ..new_sale() };
    let sale = catalogue.create(new).await.unwrap().id;
    ledger.open_generation(sale, 0, None).await.unwrap();

    let consumer = Running::start(&settings, ledger.clone());
    publish_orders(&settings, &orders(sale, 0..100)).await;
    settled(&settings).await;
    own.postgres().stop().await.unwrap();
    publish_orders(&settings, &orders(sale, 100..300)).await;
    wait_until("tries failed", SOON, || async { consumer.metric("retries_total") >= 5.0 }).await;
    assert_eq!(behind(&settings).await, 200);
    own.postgres().restart().await.unwrap();
    settled(&settings).await;
    consumer.stop().await;
    let view = ledger.view(sale).await.unwrap().unwrap();
    assert_eq!((view.orders.len(), view.available + view.reserve), (300, 700));
    assert_eq!(stored(&settings.kafka.brokers, &settings.kafka.dead_letter_topic).await.len(), 0);
}

#[tokio::test]
async fn the_backlog_of_a_topic_that_does_not_exist_is_an_error_and_not_zero() {
    let mut settings = settings("consumer_backlog").await;
    assert_eq!(behind(&settings).await, 0, "a topic without messages is settled");
    settings.kafka.topic.push_str(".missing");
    let kafka = settings.kafka;
    assert!(tokio::task::spawn_blocking(move || backlog(&kafka)).await.unwrap().is_err());
}
