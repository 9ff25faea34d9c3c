//! Every branch of every script of the lock, on a plain Redis and on a node in cluster mode.

use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use sandbox::{Fsync, Options, RedisOptions, Sandbox};
use seckill::lock::script::{AbortCode, AcquireCode, Acquisition, ReleaseCode, RenewCode};
use seckill::lock::{Name, keys};

#[tokio::test]
async fn every_branch_of_every_lock_script() {
    for cluster in [false, true] {
        let options = RedisOptions { cluster, fsync: Fsync::Off };
        let sandbox = Sandbox::start(Options::none().redis(options)).await.unwrap();
        let client = redis::Client::open(sandbox.redis().url()).unwrap();
        let mut redis = client.get_multiplexed_async_connection().await.unwrap();
        acquire(&mut redis).await;
        renew(&mut redis).await;
        release(&mut redis).await;
        abort(&mut redis).await;
        every_key_expires(&mut redis).await;
    }
}

const TTL: Duration = Duration::from_secs(30);

fn acquisition(name: &str) -> Acquisition {
    Acquisition::new(Name::new(name).unwrap(), TTL)
}

async fn acquire(redis: &mut MultiplexedConnection) {
    let (ann, bob) = (acquisition("a"), acquisition("a"));
    assert_eq!(ann.take(41, redis).await.unwrap(), (AcquireCode::Taken, 42), "above the floor");
    let short = Acquisition { ttl: Duration::from_secs(5), ..ann.clone() };
    assert_eq!(short.take(70, redis).await.unwrap(), (AcquireCode::Mine, 42), "the same token, once minted");
    let (code, left) = bob.take(0, redis).await.unwrap();
    assert_eq!(code, AcquireCode::Busy);
    assert!((1..=5000).contains(&left), "{left}");
    assert_eq!(ann.release(redis).await.unwrap(), ReleaseCode::Released);
    assert_eq!(ann.take(0, redis).await.unwrap().0, AcquireCode::Gone, "a late copy takes nothing");
    assert_eq!(bob.take(0, redis).await.unwrap(), (AcquireCode::Taken, 43), "above every earlier one");
    assert_eq!(bob.release(redis).await.unwrap(), ReleaseCode::Released);
    let _: i64 = redis.del(keys::tokens(&bob.name)).await.unwrap();
    assert_eq!(acquisition("a").take(43, redis).await.unwrap(), (AcquireCode::Taken, 44), "the counter was forgotten");
}

async fn renew(redis: &mut MultiplexedConnection) {
    let (ann, bob) = (acquisition("b"), acquisition("b"));
    let (ann_key, long) = (keys::lock(&ann.name), Acquisition { ttl: 2 * TTL, ..ann.clone() });
    assert_eq!(ann.renew(redis).await.unwrap(), RenewCode::Missing);
    assert!(!redis.exists::<_, bool>(&ann_key).await.unwrap(), "not made anew");
    assert_eq!(ann.take(0, redis).await.unwrap().0, AcquireCode::Taken);
    assert_eq!(long.renew(redis).await.unwrap(), RenewCode::Renewed);
    assert!(redis.pttl::<_, i64>(&ann_key).await.unwrap() > 40_000);
    assert_eq!(bob.renew(redis).await.unwrap(), RenewCode::Foreign);
    assert!(redis.pttl::<_, i64>(&ann_key).await.unwrap() > 40_000, "untouched");
}

async fn release(redis: &mut MultiplexedConnection) {
    let (ann, bob) = (acquisition("c"), acquisition("c"));
    assert_eq!(ann.release(redis).await.unwrap(), ReleaseCode::Missing);
    assert_eq!(ann.take(0, redis).await.unwrap().0, AcquireCode::Taken);
    assert_eq!(bob.release(redis).await.unwrap(), ReleaseCode::Foreign);
    assert_eq!(ann.release(redis).await.unwrap(), ReleaseCode::Released);
    assert_eq!(bob.take(0, redis).await.unwrap().0, AcquireCode::Taken);
    assert_eq!(ann.release(redis).await.unwrap(), ReleaseCode::Already, "a repeat after a lost answer");
    assert_eq!(bob.renew(redis).await.unwrap(), RenewCode::Renewed, "and the next holder is untouched");
}

async fn abort(redis: &mut MultiplexedConnection) {
    let (ann, bob) = (acquisition("d"), acquisition("d"));
    assert_eq!(ann.abort(redis).await.unwrap(), AbortCode::Nothing);
    assert_eq!(ann.take(0, redis).await.unwrap().0, AcquireCode::Gone, "an acquire that comes after its abort");
    assert_eq!(bob.take(0, redis).await.unwrap().0, AcquireCode::Taken);
    assert_eq!(ann.abort(redis).await.unwrap(), AbortCode::Nothing);
    assert_eq!(bob.renew(redis).await.unwrap(), RenewCode::Renewed, "another's is untouched");
    assert_eq!(bob.abort(redis).await.unwrap(), AbortCode::Removed);
    assert_eq!(bob.abort(redis).await.unwrap(), AbortCode::Nothing);
    assert_eq!(bob.release(redis).await.unwrap(), ReleaseCode::Already);
}

async fn every_key_expires(redis: &mut MultiplexedConnection) {
    for key in redis.keys::<_, Vec<String>>("*").await.unwrap() {
        assert!(redis.pttl::<_, i64>(&key).await.unwrap() > 0, "{key} would stay for ever");
    }
}
