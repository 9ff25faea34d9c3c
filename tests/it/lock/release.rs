//! Giving a lock back: once, only one's own, and whatever becomes of the caller.

use std::time::{Duration, Instant};

use seckill::lock::{Lost, Options, Released};

use super::world::{LONG, World, lasting, until, waiting, within};

#[tokio::test]
async fn a_lock_that_is_not_ours_is_left_alone_and_its_release_is_loud() {
    let world = World::new("not_ours").await;
    let guard = world.acquire(waiting(LONG)).await;
    world.steal(LONG).await;
    assert_eq!(guard.release().await, Released::Lost(Lost::Foreign));
    assert_eq!(world.owner().await.as_deref(), Some("thief"));
    assert_eq!((world.counted("release", "lost"), world.counted("lost", "foreign")), (1, 1));
}

/// The work took longer than the lock was good for, and somebody else is at work.
#[tokio::test]
async fn a_late_release_does_not_delete_the_successors_lock() {
    let world = World::new("late_release").await;
    let late = world.acquire(Options { max_hold: Duration::ZERO, ..lasting(300) }).await;
    let successor = within("it expires", world.other.acquire(&world.name, waiting(LONG))).await.unwrap();
    assert_eq!(late.release().await, Released::Lost(Lost::MaxHold));
    assert_eq!(world.owner().await, Some(successor.holder()));
    assert!(successor.token() > 1);
    assert_eq!(successor.release().await, Released::Released);
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_finds_the_lock_already_released() {
    let world = World::behind_proxy("release_lost").await;
    let guard = world.acquire(waiting(LONG)).await;
    world.proxy().drop_responses().await;
    let releasing = tokio::spawn(guard.release());
    world.until_free().await;
    let successor = world.other.acquire(&world.name, waiting(LONG)).await.unwrap();
    world.proxy().heal().await;
    assert_eq!(within("an answer", releasing).await.unwrap(), Released::AlreadyReleased);
    assert_eq!(world.owner().await, Some(successor.holder()), "the retry does not touch the successor's lock");
}

#[tokio::test]
async fn a_release_that_redis_never_confirms_ends_and_leaves_the_rest_to_the_ttl() {
    let world = World::behind_proxy("unconfirmed").await;
    let guard = world.acquire(Options { ttl: Duration::from_millis(900), ..waiting(LONG) }).await;
    world.proxy().cut().await;
    assert_eq!(within("an end", guard.release()).await, Released::Unconfirmed);
    world.until_free().await;
}

/// The last renewal is over before the release begins, so none can follow it and nothing renews a lock for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_renewed_after_a_release() {
    let world = World::new("no_renewal").await;
    for n in 0..100_u64 {
        let guard = world.acquire(Options { ttl: Duration::from_millis(900), ..waiting(LONG) }).await;
        // Around the third at which the renewal is sent, for some.
        if n % 5 == 0 {
            tokio::time::sleep(Duration::from_millis(298 + n % 7)).await;
        }
        let released = guard.release().await;
        assert!(matches!(released, Released::Released), "{released:?}");
        assert_eq!(world.owner().await, None);
    }
    let renewals = world.counted("renew", "renewed");
    assert!(world.lock.close(LONG).await, "no task is left");
    assert_eq!(world.counted("renew", "renewed"), renewals);
    assert_eq!(world.owner().await, None);
}

#[tokio::test]
async fn a_release_waits_for_the_renewal_that_is_on_its_way() {
    let world = World::behind_proxy("release_waits").await;
    let guard = world.acquire(Options { ttl: Duration::from_secs(6), ..waiting(LONG) }).await;
    world.proxy().drop_responses().await;
    let mut left = world.pttl().await;
    until("Redis has renewed it, and nobody heard", async || {
        let before = std::mem::replace(&mut left, world.pttl().await);
        left > before
    })
    .await;
    let releasing = tokio::spawn(guard.release());
    world.until_free().await;
    assert_eq!(world.counted("renew", "failed"), 1, "it was given up before the release was sent");
    world.proxy().heal().await;
    let released = within("an end", releasing).await.unwrap();
    assert!(matches!(released, Released::Released | Released::AlreadyReleased), "{released:?}");
    assert_eq!(world.counted("renew", "renewed") + world.counted("renew", "failed"), 1);
}

#[tokio::test]
async fn a_release_and_a_loss_at_the_same_time_end_in_one_of_the_two() {
    let world = World::new("release_or_loss").await;
    for _ in 0..50 {
        let guard = world.acquire(waiting(LONG)).await;
        let (released, ()) = tokio::join!(guard.release(), world.remove());
        assert!(matches!(released, Released::Released | Released::Lost(Lost::Missing)), "{released:?}");
    }
}

#[tokio::test]
async fn a_release_goes_on_when_its_caller_is_gone() {
    let world = World::new("cancelled_release").await;
    for n in 0..50 {
        let guard = world.acquire(waiting(LONG)).await;
        let _ = tokio::time::timeout(Duration::from_micros(n * 10), guard.release()).await;
        within("it is freed", world.until_free()).await;
    }
}

/// Long before its time to live.
#[tokio::test]
async fn the_lock_of_an_aborted_job_is_freed_at_once() {
    let world = World::new("aborted").await;
    let guard = world.acquire(waiting(LONG)).await;
    let job = tokio::spawn(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    tokio::task::yield_now().await;
    job.abort();
    let start = Instant::now();
    world.until_free().await;
    assert!(start.elapsed() < LONG / 2);
    until("it is counted", async || world.counted("dropped", "") == 1).await;
}

#[tokio::test]
async fn a_guard_can_be_dropped_anywhere() {
    let world = World::new("dropped_anywhere").await;
    let (first, second, third) = (world.acquire(waiting(LONG)).await, world.name.clone(), world.lock.clone());
    // Where there is no runtime.
    std::thread::spawn(move || drop(first)).join().unwrap();
    world.until_free().await;
    // While a panic unwinds.
    let guard = third.acquire(&second, waiting(LONG)).await.unwrap();
    let panicked = std::thread::spawn(move || {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("as a failing job does"));
    });
    assert!(panicked.join().is_err());
    world.until_free().await;
    // With a runtime that goes down.
    let guard = third.acquire(&second, waiting(LONG)).await.unwrap();
    let ending = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        runtime.block_on(tokio::task::yield_now());
    });
    ending.join().unwrap();
    world.until_free().await;
}

/// Dropping takes no answer from anybody: it ends at once, and the lock expires.
#[tokio::test]
async fn a_guard_dropped_without_redis_neither_waits_nor_keeps_the_lock() {
    let world = World::behind_proxy("dropped_cut").await;
    let guard = world.acquire(Options { ttl: Duration::from_secs(3), ..waiting(LONG) }).await;
    world.proxy().stall().await;
    let start = Instant::now();
    drop(guard);
    assert!(start.elapsed() < Duration::from_millis(500), "shorter than one call may take");
    assert!(world.owner().await.is_some());
    world.until_free().await;
}
