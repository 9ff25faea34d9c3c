//! Messages that arrive twice, in the wrong order, from an older generation of the sale, or that cannot be decoded.

use anyhow::{Context, ensure};
use redis::AsyncCommands;
use redis::streams::StreamRangeReply;
use seckill::domain::SaleId;
use seckill::kafka::message::decode;
use seckill::stock::keys;
use serde_json::json;

use super::fault::{Fault, Figures};
use super::redis::forget;
use super::round::{Round, until};
use super::testbed::TestBed;
use super::topic::{self, Sent};

pub const FAULTS: &[Fault] = &[
    Fault::new("message-twice", "everything that is in Kafka is sent once more", |g, r| Box::pin(twice(g, r))).quick(),
    Fault::new("message-out-of-order", "orders come backwards, and over partitions that are not theirs", |g, r| {
        Box::pin(out_of_order(g, r))
    }),
    Fault::new("message-garbage", "bytes that are no order come between the orders", |g, r| Box::pin(garbage(g, r))),
    Fault::new(
        "dead-messages-of-an-older-generation-replayed",
        "orders that Redis forgot are replayed after the rebuild",
        |g, r| Box::pin(older_generation(g, r)),
    )
    .loses_data(),
];

/// The messages of one sale that are in Kafka now.
async fn messages_of(testbed: &TestBed, sale: SaleId) -> anyhow::Result<Vec<Sent>> {
    let kafka = &testbed.cluster.settings.kafka;
    let mut messages = topic::read(kafka, &kafka.topic).await?;
    messages.retain(|(_, payload)| decode(payload).is_ok_and(|message| message.sale == sale));
    Ok(messages)
}

fn sent(count: u64) -> Figures {
    Figures::from_iter([("sent".to_owned(), count.into())])
}

async fn twice(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let messages = messages_of(testbed, round.sale).await?;
    Ok(sent(topic::write(&testbed.cluster.settings.kafka, messages).await?))
}

/// What an outbox holds, newest first, as the relay would send it.
fn messages_in(waiting: StreamRangeReply, sale: SaleId) -> anyhow::Result<Vec<Sent>> {
    let mut messages = Vec::new();
    for entry in waiting.ids.into_iter().rev() {
        let field = |name: &str| entry.get::<String>(name);
        let number = |name: &str| entry.get::<i64>(name);
        let order = field("order").context("an entry without an order")?;
        let payload = json!({
            "v": 1, "order_id": order, "sale_id": sale, "user_id": field("user"),
            "quantity": number("quantity"), "generation": number("generation"), "accepted_ms": number("accepted_ms"),
            "request_key": field("key"), "fingerprint": field("fingerprint"),
        });
        // Not the buyer's key: the order of one buyer may come over any partition.
        messages.push((order.into_bytes(), payload.to_string().into_bytes()));
    }
    ensure!(messages.iter().all(|(_, payload)| decode(payload).is_ok()), "the drill's own messages cannot be decoded");
    Ok(messages)
}

/// While the relay is paused, the drill sends the waiting orders backwards; then the relay sends the same ones.
async fn out_of_order(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    testbed.cluster.part("relay")?.pause()?;
    round.until_sold(50).await?;
    let waiting = testbed.redis().await?.xrange_all(keys::outbox(round.sale)).await?;
    let messages = messages_in(waiting, round.sale)?;
    let count = topic::write(&testbed.cluster.settings.kafka, messages).await?;
    testbed.cluster.part("relay")?.resume()?;
    Ok(sent(count))
}

async fn garbage(testbed: &mut TestBed, _: &Round) -> anyhow::Result<Figures> {
    let kafka = &testbed.cluster.settings.kafka;
    let before = topic::read(kafka, &kafka.dead_letter_topic).await?.len();
    let odd: [&[u8]; 6] = [b"", b"{", b"\xff\xfe", b"{\"v\":99}", b"{\"v\":1,\"order_id\":\"x\"}", &[b'['; 10_000]];
    let messages = odd.iter().cycle().take(30).map(|payload| (b"nobody".to_vec(), payload.to_vec()));
    let count = topic::write(kafka, messages).await?;
    until("every one of them is a dead letter", async || {
        let dead = topic::read(kafka, &kafka.dead_letter_topic).await;
        dead.is_ok_and(|dead| dead.len() as u64 >= before as u64 + count)
    })
    .await?;
    Ok(sent(count))
}

/// Orders were held back, Redis lost them, the sale was rebuilt without them, and then they are replayed: each becomes
/// a rejected row and takes no unit. Orders that already have a row are replayed, too.
async fn older_generation(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    testbed.cluster.part("relay")?.pause()?;
    round.until_sold(50).await?;
    let lost = forget(testbed, round.sale).await?;
    let mut figures = lost.until_rebuilt(testbed, round).await?;
    let mut messages = messages_in(lost.waiting, round.sale)?;
    messages.extend(messages_of(testbed, round.sale).await?);
    let count = topic::write(&testbed.cluster.settings.kafka, messages).await?;
    testbed.cluster.part("relay")?.resume()?;
    figures.append(&mut sent(count));
    Ok(figures)
}
