//! Getting a lock: one at a time, never endless, and nothing left behind by those who gave up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use seckill::lock::{AcquireError, Name, Options, Released, Unavailable, keys};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::world::{LONG, World, lasting, until, waiting, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_holders_on_two_instances_only_one_is_inside_at_a_time() {
    let world = World::new("contention").await;
    let (inside, tokens) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let mut holders = JoinSet::new();
    for n in 0..12 {
        let lock = if n % 2 == 0 { world.lock.clone() } else { world.other.clone() };
        let (name, inside, tokens) = (world.name.clone(), inside.clone(), tokens.clone());
        holders.spawn(async move {
            for _ in 0..4 {
                let guard = lock.acquire(&name, waiting(LONG)).await.unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "two were inside");
                tokens.lock().await.push(guard.token());
                tokio::task::yield_now().await;
                inside.store(false, Ordering::SeqCst);
                assert_eq!(guard.release().await, Released::Released);
            }
        });
    }
    within("all had their turn", holders.join_all()).await;
    assert_eq!(*tokens.lock().await, (1..=48).collect::<Vec<_>>(), "every holder has a greater token than the last");
}

#[tokio::test]
async fn a_busy_lock_is_refused_at_once_and_says_how_long_it_lives() {
    let world = World::new("busy").await;
    let _held = world.acquire(lasting(20_000)).await;
    match world.other.acquire(&world.name, lasting(300)).await {
        Err(AcquireError::Busy { retry_after }) => assert!(retry_after > Duration::from_secs(5), "{retry_after:?}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_wait_ends_when_its_time_is_up_and_not_before() {
    let world = World::new("wait_ends").await;
    let _held = world.acquire(waiting(LONG)).await;
    let (start, wait) = (Instant::now(), Duration::from_millis(400));
    let refused = within("an end", world.other.acquire(&world.name, waiting(wait))).await;
    assert!(matches!(refused, Err(AcquireError::TimedOut)), "{refused:?}");
    assert!(start.elapsed() >= wait);
}

#[tokio::test]
async fn a_waiter_that_loses_the_race_goes_on_waiting() {
    let world = World::new("two_waiters").await;
    let held = world.acquire(waiting(LONG)).await;
    let mut waiters = JoinSet::new();
    for _ in 0..2 {
        let (lock, name) = (world.other.clone(), world.name.clone());
        waiters.spawn(async move { lock.acquire(&name, waiting(LONG)).await.unwrap().release().await });
    }
    assert_eq!(held.release().await, Released::Released);
    assert_eq!(within("both", waiters.join_all()).await, [Released::Released; 2]);
}

#[tokio::test]
async fn the_lock_of_a_dead_holder_is_free_when_its_time_is_up() {
    let world = World::new("dead_holder").await;
    world.steal(Duration::from_millis(400)).await;
    let guard = within("it expires", world.acquire(waiting(LONG))).await;
    assert_eq!(guard.release().await, Released::Released);
}

/// A retry must not be shut out by what its own first try has done, nor count twice.
#[tokio::test]
async fn an_acquire_whose_answer_was_lost_finds_itself_the_holder() {
    let world = World::behind_proxy("lost_answer").await;
    world.proxy().drop_responses().await;
    let (lock, name) = (world.lock.clone(), world.name.clone());
    let options = Options { ttl: Duration::from_secs(3), ..waiting(LONG) };
    let acquiring = tokio::spawn(async move { lock.acquire(&name, options).await });
    world.until_held().await;
    world.proxy().heal().await;
    let guard = within("an answer", acquiring).await.unwrap().unwrap();
    assert_eq!(world.owner().await, Some(guard.holder()));
    assert_eq!(guard.token(), 1, "one token was minted");
    assert_eq!(guard.release().await, Released::Released);
    assert_eq!(world.owner().await, None, "one release is enough");
}

/// With a time to live that no test waits for: what frees the lock is the abort.
#[tokio::test]
async fn an_acquire_that_timed_out_is_undone_when_redis_executes_it_late() {
    let world = World::behind_proxy("late").await;
    world.own().pause().unwrap();
    let options = Options { ttl: Duration::from_secs(3), ..Options::default() };
    let refused = within("an end", world.lock.acquire(&world.name, options)).await;
    assert!(matches!(refused, Err(AcquireError::Unavailable(Unavailable::NoAnswer))), "{refused:?}");
    world.own().resume().unwrap();
    until("the abort arrives", async || world.gone("aborted").await).await;
    world.until_free().await;
}

#[tokio::test]
async fn an_acquire_whose_answer_was_lost_and_is_not_retried_leaves_no_lock() {
    let world = World::behind_proxy("lost_and_left").await;
    world.proxy().drop_responses().await;
    let refused = within("an end", world.lock.acquire(&world.name, waiting(Duration::ZERO))).await;
    assert!(matches!(refused, Err(AcquireError::Unavailable(_))), "{refused:?}");
    until("the abort arrives", async || world.gone("aborted").await).await;
    world.until_free().await;
    world.proxy().heal().await;
    let next = within("another", world.other.acquire(&world.name, waiting(LONG))).await.unwrap();
    assert_eq!(next.token(), 2, "the first had been taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_dropped_at_any_point_leaves_no_lock_behind() {
    let world = World::new("dropped").await;
    for n in 0..200 {
        let limit = Duration::from_micros(n * 20);
        let taken = tokio::time::timeout(limit, world.lock.acquire(&world.name, waiting(LONG))).await;
        drop(taken);
    }
    // The time to live is a minute: had one of them stayed, this would be in vain.
    let guard = within("it is free", world.other.acquire(&world.name, waiting(LONG / 2))).await.unwrap();
    assert_eq!(guard.release().await, Released::Released);
    assert!(world.lock.close(LONG).await, "nothing is left to be undone");
    assert_eq!(world.owner().await, None);
}

#[tokio::test]
async fn a_waiter_that_was_dropped_takes_nothing_later() {
    let world = World::new("dropped_waiter").await;
    let held = world.acquire(waiting(LONG)).await;
    let waiter = world.other.acquire(&world.name, waiting(LONG));
    assert!(tokio::time::timeout(Duration::from_millis(50), waiter).await.is_err());
    assert_eq!(held.release().await, Released::Released);
    assert!(world.other.close(LONG).await);
    assert_eq!(world.owner().await, None);
}

/// Faults and contention are told apart, and neither is endless.
#[tokio::test]
async fn a_redis_that_is_away_is_a_fault_and_not_a_busy_lock() {
    let world = World::behind_proxy("away").await;
    world.own().kill().unwrap();
    for options in [waiting(Duration::ZERO), waiting(Duration::from_millis(300))] {
        let refused = within("an end", world.lock.acquire(&world.name, options)).await;
        assert!(matches!(refused, Err(AcquireError::Unavailable(_))), "{refused:?}");
    }
    world.own().restart().await.unwrap();
    let guard = within("it is back", world.acquire(waiting(LONG))).await;
    assert_eq!(guard.release().await, Released::Released);
}

#[tokio::test]
async fn a_command_that_redis_refuses_is_not_repeated_as_if_it_were_contention() {
    let world = World::new("refused").await;
    let _: () = world.redis.clone().set(keys::lock(&world.name), "no hash").await.unwrap();
    let refused = within("an end", world.lock.acquire(&world.name, waiting(LONG * 1000))).await;
    assert!(matches!(refused, Err(AcquireError::Unavailable(Unavailable::Redis(_)))), "{refused:?}");
}

#[tokio::test]
async fn without_a_floor_from_postgresql_there_is_no_lock() {
    let world = World::new("no_floor").await;
    world.pool().close().await;
    let refused = world.lock.acquire(&world.name, waiting(LONG)).await;
    assert!(matches!(refused, Err(AcquireError::Unavailable(Unavailable::Floor(_)))), "{refused:?}");
    assert_eq!(world.owner().await, None);
}

#[tokio::test]
async fn locks_of_different_things_do_not_meet() {
    let world = World::new("granularity").await;
    let _one = world.acquire(waiting(LONG)).await;
    let another = Name::new("sale:2").unwrap();
    assert!(world.other.acquire(&another, waiting(Duration::ZERO)).await.is_ok());
}

#[tokio::test]
async fn scripts_that_redis_has_forgotten_are_sent_again() {
    let world = World::new("forgotten").await;
    world.forget_scripts().await;
    let guard = world.acquire(lasting(600)).await;
    world.forget_scripts().await;
    let first = guard.deadline();
    until("a renewal", async || guard.deadline() > first).await;
    world.forget_scripts().await;
    assert_eq!(guard.release().await, Released::Released);
}

#[tokio::test]
async fn a_closed_lock_tells_its_holders_and_takes_nobody() {
    let world = World::new("closed").await;
    let guard = world.acquire(waiting(LONG)).await;
    let job = tokio::spawn(async move {
        let why = guard.lost().await;
        (why, guard.release().await)
    });
    assert!(world.lock.close(LONG).await);
    let why = seckill::lock::Lost::Closing;
    assert_eq!(job.await.unwrap(), (why, Released::Lost(why)));
    assert_eq!(world.owner().await, None, "not left to its time to live");
    assert_eq!(world.counted("lost", "closing") + world.counted("release", "lost"), 0, "an orderly end pages nobody");
    let refused = world.lock.acquire(&world.name, waiting(LONG)).await;
    assert!(matches!(refused, Err(AcquireError::Unavailable(Unavailable::Closed))), "{refused:?}");
}
