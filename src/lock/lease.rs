//! The rules of time, as plain functions of moments that are passed in.
//!
//! A lease is counted from the instant at which its request was *sent*: Redis starts counting later, so we stop
//! believing in the lock before Redis lets somebody else have it. The margin covers clocks that run at slightly
//! different rates.

use std::time::{Duration, Instant, SystemTime};

use crate::backoff::Backoff;

/// No lease is shorter: the calls that keep it alive need some time themselves.
pub const MIN_TTL: Duration = Duration::from_millis(200);
/// A renewal that takes longer has failed, however long the lease is.
const LONGEST_CALL: Duration = Duration::from_secs(2);

/// A moment on both clocks: the steady one stands still while the machine is suspended, the wall clock can be set.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub steady: Instant,
    pub wall: SystemTime,
}

impl Moment {
    pub fn now() -> Self {
        Self { steady: Instant::now(), wall: SystemTime::now() }
    }

    /// The longer of the two times that the clocks tell. Too long ends a lease early, too short would end it late.
    fn since(self, earlier: Self) -> Duration {
        let steady = self.steady.saturating_duration_since(earlier.steady);
        steady.max(self.wall.duration_since(earlier.wall).unwrap_or_default())
    }
}

/// The time for which Redis has certainly promised the lock to us.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    sent: Moment,
    ttl: Duration,
}

impl Lease {
    /// Granted in answer to a request that was sent at `sent`: the request that succeeded, not the first one tried.
    pub const fn new(sent: Moment, ttl: Duration) -> Self {
        Self { sent, ttl }
    }

    pub const fn sent(&self) -> Instant {
        self.sent.steady
    }

    /// From here on somebody else may hold the lock.
    pub fn deadline(&self) -> Instant {
        self.sent.steady + self.length()
    }

    pub fn remaining(&self, now: Moment) -> Duration {
        self.length().saturating_sub(now.since(self.sent))
    }

    pub fn has_ended(&self, now: Moment) -> bool {
        self.remaining(now).is_zero()
    }

    /// After a third. A try that fails then is repeated until the deadline, not left for the next third: of the
    /// tries at one, two and three thirds the last would come when the lock has just expired.
    pub fn renew_at(&self) -> Instant {
        self.sent.steady + self.ttl / 3
    }

    fn length(&self) -> Duration {
        self.ttl.saturating_sub(self.ttl / 100 + Duration::from_millis(2))
    }
}

/// How long one call to Redis may take: well below a third of the lease.
pub fn call_timeout(ttl: Duration) -> Duration {
    (ttl / 6).min(LONGEST_CALL)
}

/// Pauses of a request that waits for somebody else to give the lock back.
pub fn waiting_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(10), Duration::from_millis(200))
}

/// Pauses of a call that Redis did not answer, within a lease that is running out.
pub fn retry_backoff(ttl: Duration) -> Backoff {
    let cap = ttl / 12;
    Backoff::new(Duration::from_millis(50).min(cap / 4), cap)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn later(moment: Moment, steady: Duration, wall: Duration) -> Moment {
        Moment { steady: moment.steady + steady, wall: moment.wall + wall }
    }

    #[test]
    fn a_lease_ends_before_redis_ends_it_counted_from_the_send_instant() {
        let sent = Moment::now();
        let lease = Lease::new(sent, TTL);
        let length = lease.deadline() - sent.steady;
        assert_eq!(length, TTL - Duration::from_millis(302));
        let short = length - Duration::from_millis(1);
        assert!(!lease.has_ended(later(sent, short, short)));
        assert!(lease.has_ended(later(sent, length, length)));
        assert_eq!(lease.remaining(later(sent, short, short)), Duration::from_millis(1));
    }

    #[test]
    fn a_machine_that_was_suspended_finds_its_lease_ended() {
        let sent = Moment::now();
        let lease = Lease::new(sent, TTL);
        assert!(lease.has_ended(later(sent, Duration::from_secs(1), Duration::from_secs(60))));
    }

    #[test]
    fn a_wall_clock_that_is_set_back_lengthens_no_lease() {
        let sent = Moment::now();
        let lease = Lease::new(sent, TTL);
        let back = Moment { steady: sent.steady + TTL, wall: sent.wall - Duration::from_secs(3600) };
        assert!(lease.has_ended(back));
    }

    #[test]
    fn a_renewal_has_two_thirds_of_the_lease_for_further_tries() {
        let lease = Lease::new(Moment::now(), TTL);
        assert!(lease.deadline() - lease.renew_at() > TTL / 3 + 4 * call_timeout(TTL));
        assert!(call_timeout(TTL) < TTL / 3 && call_timeout(MIN_TTL) < MIN_TTL / 3);
    }

    #[test]
    fn the_tries_of_a_failing_renewal_fit_into_the_lease() {
        for ttl in [MIN_TTL, TTL, Duration::from_secs(600)] {
            let mut backoff = retry_backoff(ttl);
            let tries = (0..6).map(|_| backoff.pause(1.0) + call_timeout(ttl).min(ttl / 60)).sum::<Duration>();
            assert!(tries < ttl * 2 / 3, "{ttl:?}: {tries:?}");
        }
    }
}
