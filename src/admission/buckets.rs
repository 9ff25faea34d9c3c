//! Token buckets, one per key, in bounded memory.
//!
//! What comes in: a small key and the clock's now. What is decided: whether the key's bucket holds a token.
//! What is guaranteed: exactly `burst` requests pass at once, then `per_second` in every second; never more than
//! about `max_tracked` keys are held, however many are tried; a bucket that is full again is forgotten by the next
//! [`Buckets::sweep`], because a full bucket and an unknown one behave the same.
//!
//! governor never forgets a key by itself, and a sweep alone leaves an attacker the time between two sweeps to
//! fill the memory. So there are both: a sweep, and a cap. Beyond the cap a *new* key is let through unseen; the
//! caller's wider bucket holds it. Refusing it instead would let an attacker lock honest newcomers out.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use governor::clock::{Clock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::{DashMapStateStore, ShrinkableKeyedStateStore};
use governor::state::{NotKeyed, StateStore};
use governor::{Quota, RateLimiter};
use prometheus::{IntCounter, IntGauge};

/// How fast a bucket fills and how much it holds.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub per_second: NonZeroU32,
    pub burst: NonZeroU32,
}

impl Rate {
    /// None if either figure is 0, which would admit nobody, ever.
    pub fn new(per_second: u32, burst: u32) -> Option<Self> {
        Some(Self { per_second: NonZeroU32::new(per_second)?, burst: NonZeroU32::new(burst)? })
    }

    pub(super) fn quota(self) -> Quota {
        Quota::per_second(self.per_second).allow_burst(self.burst)
    }
}

/// What one set of buckets tells about itself.
#[derive(Clone, Debug)]
pub struct Gauges {
    /// Keys held now.
    pub tracked: IntGauge,
    /// Requests that were let through unseen because the set was full.
    pub untracked: IntCounter,
}

/// A set of token buckets, one per key of type `K`.
pub struct Buckets<K, C>
where
    K: Hash + Eq + Clone,
    C: Clock,
{
    limiter: RateLimiter<K, Capped<K>, C, NoOpMiddleware<C::Instant>>,
    tracked: IntGauge,
}

impl<K, C> Buckets<K, C>
where
    K: Hash + Eq + Clone,
    C: Clock,
{
    pub fn new(rate: Rate, max_tracked: usize, clock: C, gauges: Gauges) -> Self {
        let store = Capped {
            buckets: DashMapStateStore::default(),
            held: AtomicUsize::new(0),
            most: max_tracked,
            untracked: gauges.untracked,
        };
        Self { limiter: RateLimiter::new(rate.quota(), store, clock), tracked: gauges.tracked }
    }

    /// Takes one token of `key`, or says how long until there is one.
    pub fn take(&self, key: &K) -> Result<(), Duration> {
        self.limiter.check_key(key).map_err(|until| wait(&until, self.limiter.clock()))
    }

    /// Forgets every bucket that is full again and gives its memory back.
    ///
    /// Locks one shard of the map at a time, so requests wait microseconds, not for the whole sweep.
    pub fn sweep(&self) {
        self.limiter.retain_recent();
        self.limiter.shrink_to_fit();
        self.tracked.set(i64::try_from(self.limiter.len()).unwrap_or(i64::MAX));
    }

    /// Keys held now.
    pub fn tracked(&self) -> usize {
        self.limiter.len()
    }
}

/// How long until `until`, by `clock`.
pub(super) fn wait<C: Clock>(until: &governor::NotUntil<C::Instant>, clock: &C) -> Duration
where
    C::Instant: Reference,
{
    until.wait_time_from(clock.now())
}

/// governor's concurrent map, which stops taking in new keys at `most`.
struct Capped<K> {
    buckets: DashMapStateStore<K>,
    /// Places taken. Counted here because the map's own `len` visits every shard. Two threads that bring the same
    /// new key may count it twice, and a key that is swept in the middle of a request is not counted again; each
    /// sweep puts the figure right, so it is off by no more than the requests in flight.
    held: AtomicUsize,
    most: usize,
    untracked: IntCounter,
}

impl<K> Capped<K> {
    fn reserve(&self) -> bool {
        let one_more = |held: usize| (held < self.most).then_some(held + 1);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }
}

impl<K: Hash + Eq + Clone> StateStore for Capped<K> {
    type Key = K;

    fn measure_and_replace<T, F, E>(&self, key: &K, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        // One look-up for a key that is held: it is the dearest part of a limiter.
        if let Some(bucket) = self.buckets.get(key) {
            return bucket.measure_and_replace(&NotKeyed::NonKey, decide);
        }
        if self.reserve() {
            return self.buckets.measure_and_replace(key, decide);
        }
        // Full: the key is treated as one that was never seen, and stays that way.
        self.untracked.inc();
        decide(None).map(|(passed, _)| passed)
    }
}

impl<K: Hash + Eq + Clone> ShrinkableKeyedStateStore<K> for Capped<K> {
    fn retain_recent(&self, drop_below: Nanos) {
        ShrinkableKeyedStateStore::retain_recent(&self.buckets, drop_below);
        self.held.store(self.buckets.len(), Ordering::Relaxed);
    }

    fn shrink_to_fit(&self) {
        ShrinkableKeyedStateStore::shrink_to_fit(&self.buckets);
    }

    fn len(&self) -> usize {
        self.buckets.len()
    }

    fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use governor::clock::FakeRelativeClock;

    use super::*;

    type Fake = Buckets<u64, FakeRelativeClock>;

    fn gauges() -> Gauges {
        Gauges {
            tracked: IntGauge::new("tracked", "keys").expect("a gauge"),
            untracked: IntCounter::new("untracked", "requests").expect("a counter"),
        }
    }

    fn buckets(per_second: u32, burst: u32, max_tracked: usize) -> (Fake, FakeRelativeClock, Gauges) {
        let clock = FakeRelativeClock::default();
        let gauges = gauges();
        let rate = Rate::new(per_second, burst).expect("a rate above 0");
        (Buckets::new(rate, max_tracked, clock.clone(), gauges.clone()), clock, gauges)
    }

    #[test]
    fn exactly_the_burst_passes_then_one_more_per_refill() {
        let (buckets, clock, _) = buckets(5, 10, 100);
        for n in 0..10 {
            assert_eq!(buckets.take(&1), Ok(()), "request {n} is within the burst");
        }
        assert_eq!(buckets.take(&1), Err(Duration::from_millis(200)), "the eleventh waits for one refill");
        assert_eq!(buckets.take(&2), Ok(()), "another key has a bucket of its own");

        clock.advance(Duration::from_millis(199));
        assert_eq!(buckets.take(&1), Err(Duration::from_millis(1)));
        clock.advance(Duration::from_millis(1));
        assert_eq!(buckets.take(&1), Ok(()));
        assert_eq!(buckets.take(&1), Err(Duration::from_millis(200)), "one refill admits one request");

        clock.advance(Duration::from_secs(3600));
        let passed = (0..100).filter(|_| buckets.take(&1).is_ok()).count();
        assert_eq!(passed, 10, "a bucket never holds more than its burst, however long it rests");
    }

    #[test]
    fn a_burst_of_one_is_one() {
        let (buckets, clock, _) = buckets(1, 1, 100);
        assert_eq!(buckets.take(&1), Ok(()));
        assert_eq!(buckets.take(&1), Err(Duration::from_secs(1)));
        clock.advance(Duration::from_secs(1));
        assert_eq!(buckets.take(&1), Ok(()));
    }

    #[test]
    fn the_burst_is_exact_when_many_threads_ask_at_once() {
        let (buckets, _, _) = buckets(1, 1_000, 100);
        let buckets = Arc::new(buckets);
        let askers: Vec<_> = (0..8)
            .map(|_| {
                let buckets = Arc::clone(&buckets);
                thread::spawn(move || (0..1_000).filter(|_| buckets.take(&7).is_ok()).count())
            })
            .collect();
        let passed: usize = askers.into_iter().map(|asker| asker.join().expect("no panic")).sum();
        assert_eq!(passed, 1_000);
    }

    /// Known failure: the keyed governor map grows without bound.
    #[test]
    fn five_million_keys_do_not_make_the_keyed_map_grow_without_bound() {
        let (buckets, clock, gauges) = buckets(5, 1, 10_000);
        for key in 0..5_000_000 {
            assert_eq!(buckets.take(&key), Ok(()), "a new key is never refused by its own bucket");
        }
        assert_eq!(buckets.tracked(), 10_000);
        assert_eq!(gauges.untracked.get(), 4_990_000);
        assert!(buckets.take(&1).is_err(), "a key that was held before the flood still is");

        clock.advance(Duration::from_secs(1));
        buckets.sweep();
        assert_eq!(buckets.tracked(), 0, "full buckets are forgotten");
        assert_eq!(gauges.tracked.get(), 0);
        assert_eq!(buckets.limiter.into_state_store().buckets.capacity(), 0, "and their memory given back");
    }

    #[test]
    fn a_sweep_forgets_only_full_buckets_and_makes_room_for_new_ones() {
        let (buckets, clock, _) = buckets(1, 2, 2);
        assert_eq!((buckets.take(&1), buckets.take(&1)), (Ok(()), Ok(())));
        clock.advance(Duration::from_secs(2));
        assert_eq!((buckets.take(&2), buckets.take(&2)), (Ok(()), Ok(())));
        clock.advance(Duration::from_secs(1));
        buckets.sweep();
        assert_eq!(buckets.tracked(), 1, "key 1 is full again, key 2 is not");
        assert_eq!(buckets.take(&2), Ok(()));
        assert!(buckets.take(&2).is_err(), "key 2 kept its debt through the sweep");
        assert_eq!((buckets.take(&3), buckets.take(&3)), (Ok(()), Ok(())));
        assert!(buckets.take(&3).is_err(), "key 3 found the place that key 1 left");
    }

    #[test]
    fn a_cap_that_many_threads_run_into_at_once_holds() {
        let (buckets, _, _) = buckets(1, 1, 1_000);
        let buckets = Arc::new(buckets);
        let askers: Vec<_> = (0..8_u64)
            .map(|asker| {
                let buckets = Arc::clone(&buckets);
                thread::spawn(move || {
                    for n in 0..10_000 {
                        assert_eq!(buckets.take(&(asker << 32 | n)), Ok(()));
                    }
                })
            })
            .collect();
        for asker in askers {
            asker.join().expect("no panic");
        }
        assert_eq!(buckets.tracked(), 1_000);
    }
}
