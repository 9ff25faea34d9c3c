//! Holding a lock: it lives as long as it is renewed, and its loss is told in time and for good.

use std::time::{Duration, Instant};

use sandbox::{BreakAt, Timing};
use seckill::lock::{Lost, Name, Options, Released};

use super::world::{LONG, PATIENCE, World, lasting, loss, until, waiting, within};

#[tokio::test]
async fn a_held_lock_outlives_its_ttl() {
    let world = World::new("outlives").await;
    let guard = world.acquire(lasting(900)).await;
    let start = Instant::now();
    until("three times its time to live", async || {
        assert_eq!(loss(&guard), None);
        assert_eq!(world.owner().await, Some(guard.holder()));
        start.elapsed() > Duration::from_millis(2700)
    })
    .await;
    assert_eq!(guard.release().await, Released::Released);
}

#[tokio::test]
async fn a_job_that_blocks_its_runtime_keeps_its_lock() {
    let world = World::new("blocking").await;
    let guard = world.acquire(lasting(900)).await;
    std::thread::sleep(Duration::from_millis(2000));
    assert_eq!(loss(&guard), None);
    assert_eq!(world.owner().await, Some(guard.holder()));
}

#[tokio::test]
async fn many_locks_are_kept_by_one_thread() {
    let world = World::new("many").await;
    let mut guards = Vec::new();
    for n in 0..200 {
        guards.push(world.lock.acquire(&Name::new(&format!("n:{n}")).unwrap(), lasting(1500)).await.unwrap());
    }
    let renewed: Vec<_> = guards.iter().map(|guard| guard.deadline()).collect();
    for (guard, first) in guards.iter().zip(renewed) {
        until("two renewals", async || guard.deadline() > first + Duration::from_millis(600)).await;
    }
    for guard in guards {
        assert_eq!(guard.release().await, Released::Released);
    }
}

#[tokio::test]
async fn an_outage_shorter_than_the_lease_costs_nothing() {
    let world = World::behind_proxy("short_outage").await;
    let guard = world.acquire(Options { ttl: Duration::from_secs(6), ..waiting(LONG) }).await;
    world.proxy().cut().await;
    until("a renewal fails", async || world.counted("renew", "failed") > 1).await;
    let before = guard.deadline();
    world.proxy().heal().await;
    until("it is renewed", async || guard.deadline() > before).await;
    assert_eq!(loss(&guard), None);
    assert_eq!(world.counted("renew", "renewed"), 1);
    assert_eq!(guard.release().await, Released::Released);
}

#[tokio::test]
async fn a_redis_restarted_on_its_data_keeps_the_lock_alive() {
    let world = World::behind_proxy("broken_connection").await;
    let guard = world.acquire(Options { ttl: Duration::from_secs(3), ..waiting(LONG) }).await;
    // The connection breaks and can be made again at once.
    world.proxy().cut().await;
    world.proxy().heal().await;
    let before = guard.deadline();
    until("it is renewed", async || guard.deadline() > before).await;
    assert_eq!(loss(&guard), None);
}

/// Counted from the instant of sending, so that the holder stops before Redis lets another in.
#[tokio::test]
async fn the_deadline_of_a_holder_comes_before_redis_forgets_the_lock() {
    let world = World::new("deadline").await;
    let guard = world.acquire(lasting(900)).await;
    for _ in 0..50 {
        world.assert_ends_by(guard.deadline()).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Redis has counted since before the answer, however long that was under way.
#[tokio::test]
async fn an_answer_that_was_long_under_way_lengthens_no_lease() {
    let world = World::behind_proxy("slow_answers").await;
    let acquire =
        world.proxy().breakpoint(BreakAt::Script(include_str!("../../../lua/lock_acquire.lua")), Timing::After);
    let (lock, name) = (world.lock.clone(), world.name.clone());
    let options = Options { ttl: Duration::from_secs(6), ..waiting(LONG) };
    let acquiring = tokio::spawn(async move { lock.acquire(&name, options).await });
    let held = acquire.hit(PATIENCE).await.unwrap();
    until("a part of the lease is over", async || world.pttl().await < 5_700).await;
    held.resume();
    let guard = within("an answer", acquiring).await.unwrap().unwrap();
    let first = guard.deadline();
    world.assert_ends_by(first).await;

    let renew = world.proxy().breakpoint(BreakAt::Script(include_str!("../../../lua/lock_renew.lua")), Timing::After);
    let held = renew.hit(PATIENCE).await.unwrap();
    until("a part of the next lease is over", async || world.pttl().await < 5_700).await;
    held.resume();
    until("it is renewed", async || guard.deadline() > first).await;
    world.assert_ends_by(guard.deadline()).await;
}

#[tokio::test]
async fn the_deadline_counts_from_the_try_that_succeeded() {
    let world = World::new("late_success").await;
    world.steal(Duration::from_secs(2)).await;
    let guard = world.acquire(Options { ttl: Duration::from_secs(3), ..waiting(LONG) }).await;
    let remaining = guard.deadline() - Instant::now();
    assert!(remaining > Duration::from_millis(1500), "{remaining:?}");
}

#[tokio::test]
async fn a_lock_that_vanished_is_lost_and_not_made_again() {
    let world = World::new("vanished").await;
    let guard = world.acquire(lasting(900)).await;
    world.remove().await;
    assert_eq!(within("the loss is told", guard.lost()).await, Lost::Missing);
    assert_eq!(loss(&guard), Some(Lost::Missing), "for good");
    assert_eq!(world.owner().await, None);
    assert_eq!(world.counted("lost", "missing"), 1);
    assert_eq!(guard.release().await, Released::Lost(Lost::Missing));
}

#[tokio::test]
async fn a_lock_that_another_has_is_lost_and_stays_theirs() {
    let world = World::new("stolen").await;
    let guard = world.acquire(lasting(900)).await;
    world.steal(LONG).await;
    let before = world.pttl().await;
    assert_eq!(within("the loss is told", guard.lost()).await, Lost::Foreign);
    assert_eq!(guard.release().await, Released::Lost(Lost::Foreign));
    assert_eq!(world.owner().await.as_deref(), Some("thief"));
    let after = world.pttl().await;
    assert!((30_000..=before).contains(&after), "nobody touched its time to live: {after}");
}

#[tokio::test]
async fn a_lock_that_cannot_be_renewed_is_lost_at_the_deadline() {
    for silent in [false, true] {
        let world = World::behind_proxy(if silent { "stalled" } else { "cut" }).await;
        let guard = world.acquire(Options { ttl: Duration::from_millis(900), ..waiting(LONG) }).await;
        if silent {
            world.proxy().stall().await
        } else {
            world.proxy().cut().await
        }
        assert_eq!(within("the loss is told", guard.lost()).await, Lost::Deadline);
        assert!(Instant::now() >= guard.deadline());
        assert!(world.counted("renew", "failed") > 0);
        assert_eq!(world.counted("lost", "deadline"), 1);
        // For good: another may have held it before the way was open again.
        world.proxy().heal().await;
        world.until_free().await;
        let other = within("another", world.other.acquire(&world.name, waiting(LONG))).await.unwrap();
        assert_eq!(loss(&guard), Some(Lost::Deadline));
        assert_eq!(guard.release().await, Released::Lost(Lost::Deadline));
        assert_eq!(world.owner().await, Some(other.holder()), "the successor's lock is untouched");
    }
}

#[tokio::test]
async fn a_renewal_whose_answer_is_lost_does_not_release_the_lock() {
    let world = World::behind_proxy("renew_lost").await;
    let guard = world.acquire(Options { ttl: Duration::from_secs(3), ..waiting(LONG) }).await;
    world.proxy().drop_responses().await;
    until("answers are lost", async || world.counted("renew", "failed") > 0).await;
    assert_eq!(world.owner().await, Some(guard.holder()));
    world.proxy().heal().await;
    until("it is renewed", async || world.counted("renew", "renewed") > 0).await;
    assert_eq!(loss(&guard), None);
    assert_eq!(guard.release().await, Released::Released);
}

#[tokio::test]
async fn a_lock_held_for_too_long_is_taken_from_its_job() {
    let world = World::new("max_hold").await;
    let options = Options { max_hold: Duration::from_millis(500), ..lasting(900) };
    let guard = world.acquire(options).await;
    assert_eq!(within("the loss is told", guard.lost()).await, Lost::MaxHold);
    assert_eq!(world.owner().await, Some(guard.holder()), "it runs out, it is not cut off");
    world.until_free().await;
    assert_eq!(world.counted("lost", "max_hold"), 1);
    assert_eq!(guard.release().await, Released::Lost(Lost::MaxHold));
}

#[tokio::test]
async fn a_lock_given_back_after_its_longest_hold_is_free_at_once() {
    let world = World::new("max_hold_release").await;
    let guard = world.acquire(Options { max_hold: Duration::from_millis(100), ..waiting(LONG) }).await;
    assert_eq!(within("the loss is told", guard.lost()).await, Lost::MaxHold);
    assert_eq!(guard.release().await, Released::Lost(Lost::MaxHold));
    assert_eq!(world.owner().await, None);
}

#[tokio::test]
async fn a_guard_that_leaks_does_not_keep_the_lock_for_ever() {
    let world = World::new("leaked").await;
    let options = Options { max_hold: Duration::from_millis(400), ..lasting(300) };
    std::mem::forget(world.acquire(options).await);
    let _ = within("another", world.other.acquire(&world.name, waiting(LONG))).await.unwrap();
    assert_eq!(world.counted("lost", "max_hold"), 1);
}
