//! Kafka is down, hangs past the delivery timeout, restarts, or loses its topic.

use std::time::Duration;

use tokio::time::sleep;

use super::fault::{Fault, Figures};
use super::round::{Round, SaleSpec, until};
use super::testbed::TestBed;
use super::topic;

pub const FAULTS: &[Fault] = &[
    Fault::new("kafka-down", "kill -9 of Kafka, down for 3 s", |g, r| Box::pin(down(g, r))),
    Fault::new(
        "kafka-paused-past-delivery-timeout",
        "Kafka answers nothing for longer than a delivery may take",
        |g, r| Box::pin(paused(g, r)),
    )
    .quick(),
    Fault::new("kafka-restarted", "Kafka stops in order and comes back", |g, r| Box::pin(restarted(g, r))),
    Fault::new("kafka-cut", "every connection to Kafka breaks, and none can be made for 2 s", |g, r| {
        Box::pin(cut(g, r))
    }),
    Fault::new("kafka-topic-recreated", "the topic is deleted with all its orders, and created again", |g, r| {
        Box::pin(topic_recreated(g, r))
    })
    .with(SaleSpec { stock: 1_200, buyers: 2_000, window: Duration::from_secs(20), ..SaleSpec::USUAL }),
];

/// Figures of an outage in which the sale must go on.
async fn sold_meanwhile(round: &Round, time: Duration) -> Figures {
    let before = round.accepted();
    sleep(time).await;
    Figures::from_iter([("accepted_meanwhile".to_owned(), (round.accepted() - before).into())])
}

async fn down(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    testbed.sandbox().kafka().kill()?;
    let figures = sold_meanwhile(round, Duration::from_secs(3)).await;
    testbed.sandbox().kafka().restart().await?;
    Ok(figures)
}

async fn paused(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let longer = Duration::from_millis(testbed.cluster.settings.kafka.delivery_timeout_ms + 1_000);
    testbed.sandbox().kafka().pause()?;
    let figures = sold_meanwhile(round, longer).await;
    testbed.sandbox().kafka().resume()?;
    Ok(figures)
}

async fn restarted(testbed: &mut TestBed, _: &Round) -> anyhow::Result<Figures> {
    testbed.sandbox().kafka().stop().await?;
    testbed.sandbox().kafka().restart().await?;
    Ok(Figures::new())
}

async fn cut(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    let proxy = testbed.sandbox().kafka().proxy()?;
    proxy.cut().await;
    let figures = sold_meanwhile(round, Duration::from_secs(2)).await;
    proxy.heal().await;
    Ok(figures)
}

/// The roles keep running while the topic is deleted and created again under the same name. Kafka restarts first, so
/// that the leader epochs of the new topic start below those of the old one: this leaves a client with stale metadata.
async fn topic_recreated(testbed: &mut TestBed, round: &Round) -> anyhow::Result<Figures> {
    restarted(testbed, round).await?;
    round.until_sold(50).await?;
    let kafka = &testbed.cluster.settings.kafka;
    topic::delete(kafka, &kafka.topic).await?;
    until("the topic can be created again", async || {
        seckill::kafka::topics::ensure(kafka).await.is_ok() && topic::exists(kafka, &kafka.topic).await
    })
    .await?;
    Ok(Figures::new())
}
