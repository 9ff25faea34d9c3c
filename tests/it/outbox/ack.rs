//! The script that removes what Kafka has confirmed.

use redis::Script;
use redis::aio::MultiplexedConnection;
use sandbox::{Options, RedisOptions, Sandbox};
use seckill::stock::keys::{self, RELAY_GROUP};

use super::{make_group, read_as};
use crate::support::flow::{pending, redis, sale, settings};

/// Runs every branch of the script and answers what it said.
async fn acknowledge(redis: &mut MultiplexedConnection, pairs: &[(&str, &str)]) -> (u64, u64, u64, u64) {
    let script = Script::new(include_str!("../../../lua/ack.lua"));
    let mut call = script.prepare_invoke();
    call.key(keys::outbox(sale(1))).arg(RELAY_GROUP);
    for (id, order) in pairs {
        call.arg(id).arg(order);
    }
    call.invoke_async(redis).await.unwrap()
}

async fn every_branch_of_the_script(redis: &mut MultiplexedConnection) {
    let key = keys::outbox(sale(1));
    assert_eq!(acknowledge(redis, &[("1-0", "x")]).await, (0, 1, 0, 0), "no stream");
    for (id, field) in [("1-0", "order"), ("2-0", "order"), ("3-0", "colour"), ("4-0", "order")] {
        redis::cmd("XADD").arg(&key).arg(id).arg(field).arg("mine").query_async::<()>(redis).await.unwrap();
    }
    assert_eq!(acknowledge(redis, &[("9-0", "mine")]).await, (0, 1, 0, 4), "no group");
    make_group(redis, sale(1)).await;
    read_as("me", redis, sale(1)).await;
    redis::cmd("XDEL").arg(&key).arg("4-0").query_async::<()>(redis).await.unwrap();
    assert_eq!(pending(redis, sale(1)).await, 4);

    assert_eq!(acknowledge(redis, &[]).await, (0, 0, 0, 3));
    assert_eq!(acknowledge(redis, &[("1-0", "another")]).await, (0, 0, 1, 3), "another order under the same id");
    assert_eq!(pending(redis, sale(1)).await, 4);
    let (mine, nameless, gone) = (("1-0", "mine"), ("3-0", ""), ("4-0", "mine"));
    assert_eq!(acknowledge(redis, &[mine, nameless, gone]).await, (2, 1, 0, 1));
    assert_eq!(pending(redis, sale(1)).await, 1);
    assert_eq!(acknowledge(redis, &[mine, nameless, gone]).await, (0, 3, 0, 1), "a repeat changes nothing");
    assert_eq!(acknowledge(redis, &[("2-0", "mine")]).await, (1, 0, 0, 0));

    // The head of the stream goes in one cut, and nothing beyond it.
    let sequence = "7-18446744073709551615";
    for id in ["5-1", "5-2", "6-0", sequence] {
        redis::cmd("XADD").arg(&key).arg(id).arg("order").arg(id).query_async::<()>(redis).await.unwrap();
    }
    read_as("me", redis, sale(1)).await;
    assert_eq!(acknowledge(redis, &[("5-1", "5-1"), ("5-2", "another")]).await, (1, 0, 1, 3), "not all mine");
    assert_eq!(acknowledge(redis, &[("6-0", "6-0")]).await, (1, 0, 0, 2), "not the head");
    assert_eq!(acknowledge(redis, &[("5-2", "5-2")]).await, (1, 0, 0, 1), "the head");
    assert_eq!(acknowledge(redis, &[(sequence, sequence)]).await, (1, 0, 0, 0), "an id with no next one");
    assert_eq!(pending(redis, sale(1)).await, 0);

    let many: Vec<String> = (0..2500).map(|n| format!("9-{n}")).collect();
    for id in &many {
        redis::cmd("XADD").arg(&key).arg(id).arg("order").arg("mine").query_async::<()>(redis).await.unwrap();
    }
    read_as("me", redis, sale(1)).await;
    let pairs: Vec<_> = many.iter().map(|id| (id.as_str(), "mine")).collect();
    assert_eq!(acknowledge(redis, &pairs[..2400]).await, (2400, 0, 0, 100));
    assert_eq!(pending(redis, sale(1)).await, 100);
}

#[tokio::test]
async fn acknowledging_removes_my_entries_and_leaves_those_of_other_orders_alone() {
    let settings = settings("ack").await;
    every_branch_of_the_script(&mut redis(&settings).await).await;
}

#[tokio::test]
async fn acknowledging_works_on_a_node_in_cluster_mode() {
    let cluster = RedisOptions { cluster: true, ..RedisOptions::default() };
    let own = Sandbox::start(Options::none().redis(cluster)).await.unwrap();
    let client = redis::Client::open(own.redis().url()).unwrap();
    every_branch_of_the_script(&mut client.get_multiplexed_async_connection().await.unwrap()).await;
}
