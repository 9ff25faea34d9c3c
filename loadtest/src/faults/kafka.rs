//! A Kafka that is away, hangs for longer than a delivery may take, restarts, or loses its topic.

use std::time::Duration;

use tokio::time::sleep;

use super::ground::Ground;
use super::round::{Round, Wish, until};
use super::{Fault, Figures, topic};

pub const FAULTS: &[Fault] = &[
    Fault::new("kafka-down", "kill -9 of Kafka, away for 3 s", |g, r| Box::pin(down(g, r))),
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
    Fault::new("kafka-topic-recreated", "the topic is deleted with all its orders, and made anew", |g, r| {
        Box::pin(topic_recreated(g, r))
    })
    .with(Wish { stock: 1_200, buyers: 2_000, window: Duration::from_secs(20), ..Wish::USUAL }),
];

/// Figures of an outage in which the sale must go on.
async fn sold_meanwhile(round: &Round, time: Duration) -> Figures {
    let before = round.accepted();
    sleep(time).await;
    Figures::from_iter([("accepted_meanwhile".to_owned(), (round.accepted() - before).into())])
}

async fn down(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    ground.sandbox().kafka().kill()?;
    let figures = sold_meanwhile(round, Duration::from_secs(3)).await;
    ground.sandbox().kafka().restart().await?;
    Ok(figures)
}

async fn paused(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    let longer = Duration::from_millis(ground.stage.settings.kafka.delivery_timeout_ms + 1_000);
    ground.sandbox().kafka().pause()?;
    let figures = sold_meanwhile(round, longer).await;
    ground.sandbox().kafka().resume()?;
    Ok(figures)
}

async fn restarted(ground: &mut Ground, _: &Round) -> anyhow::Result<Figures> {
    ground.sandbox().kafka().stop().await?;
    ground.sandbox().kafka().restart().await?;
    Ok(Figures::new())
}

async fn cut(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    let proxy = ground.sandbox().kafka().proxy()?;
    proxy.cut().await;
    let figures = sold_meanwhile(round, Duration::from_secs(2)).await;
    proxy.heal().await;
    Ok(figures)
}

/// The roles run on and learn of it as it happens: the topic is gone, and then another one of the same name is there.
/// Kafka was restarted before, so that the leaders of the new topic count from below those of the old one: that is what
/// makes a client of the old one blind.
async fn topic_recreated(ground: &mut Ground, round: &Round) -> anyhow::Result<Figures> {
    restarted(ground, round).await?;
    round.until_sold(50).await?;
    let kafka = &ground.stage.settings.kafka;
    topic::delete(kafka, &kafka.topic).await?;
    until("the topic can be made again", async || {
        seckill::outbox::topics::ensure(kafka).await.is_ok() && topic::exists(kafka, &kafka.topic).await
    })
    .await?;
    Ok(Figures::new())
}
