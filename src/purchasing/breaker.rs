//! A circuit breaker: when to stop asking a server that does not answer, and when to try it again. A state machine
//! without a clock.
//!
//! ```text
//!            `failures` in a row                 `open_for` later, for one caller
//!   closed ─────────────────────────▶ open ────────────────────────────────────────▶ half-open
//!     ▲                                 ▲      the probe fails                          │
//!     │                                 └───────────────────────────────────────────────┤
//!     └──────────────────────────────────────── the probe succeeds ─────────────────────┘
//! ```
//!
//! A permit belongs to the epoch in which it was given; the epoch changes with the state. Outcomes of an older epoch come
//! too late: a call that was sent before the breaker opened must neither close it nor put off the next probe.

use std::time::{Duration, Instant};

/// Permission to ask the server once. Its outcome goes to [`Breaker::record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    epoch: u64,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server answered, whatever it said.
    Success,
    /// It could not be reached, or did not answer in time.
    Failure,
    /// The call was given up, or never sent: nothing is known.
    Ignored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant },
    HalfOpen,
}

/// One breaker for one server. Starts closed.
#[derive(Debug)]
pub struct Breaker {
    failures: u32,
    open_for: Duration,
    state: State,
    epoch: u64,
}

impl Breaker {
    /// Opens after `failures` failed calls in a row (at least 1), and lets a probe through after `open_for`.
    pub const fn new(failures: u32, open_for: Duration) -> Self {
        Self { failures, open_for, state: State::Closed { failures: 0 }, epoch: 0 }
    }

    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// Permission to ask the server, or `None`: not now.
    pub fn try_acquire(&mut self, now: Instant) -> Option<Permit> {
        match self.state {
            State::Closed { .. } => {}
            State::Open { until } if now >= until => self.enter(State::HalfOpen),
            State::Open { .. } | State::HalfOpen => return None,
        }
        Some(Permit { epoch: self.epoch })
    }

    /// Takes in how a call ended.
    pub fn record(&mut self, permit: Permit, outcome: Outcome, now: Instant) {
        if permit.epoch != self.epoch {
            return;
        }
        match (self.state, outcome) {
            (State::Closed { .. }, Outcome::Success) => self.state = State::Closed { failures: 0 },
            (State::Closed { failures }, Outcome::Failure) if failures + 1 < self.failures => {
                self.state = State::Closed { failures: failures + 1 };
            }
            (State::HalfOpen, Outcome::Success) => self.enter(State::Closed { failures: 0 }),
            (State::Closed { .. } | State::HalfOpen, Outcome::Failure) => {
                self.enter(State::Open { until: now + self.open_for });
            }
            // A probe without a result leaves its place to the next caller, or it would stay half-open for ever.
            (State::HalfOpen, Outcome::Ignored) => self.enter(State::Open { until: now }),
            (State::Closed { .. }, Outcome::Ignored) | (State::Open { .. }, _) => {}
        }
    }

    const fn enter(&mut self, state: State) {
        self.state = state;
        self.epoch += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN_FOR: Duration = Duration::from_millis(500);

    struct Fixture {
        breaker: Breaker,
        now: Instant,
    }

    impl Fixture {
        fn closed() -> Self {
            Self { breaker: Breaker::new(3, OPEN_FOR), now: Instant::now() }
        }

        fn open() -> Self {
            let mut fixture = Self::closed();
            (0..3).for_each(|_| fixture.call(Outcome::Failure));
            assert!(!fixture.breaker.is_closed());
            fixture
        }

        fn try_acquire(&mut self) -> Option<Permit> {
            self.breaker.try_acquire(self.now)
        }

        fn record(&mut self, permit: Permit, outcome: Outcome) {
            self.breaker.record(permit, outcome, self.now);
        }

        fn call(&mut self, outcome: Outcome) {
            let permit = self.try_acquire().expect("a permit");
            self.record(permit, outcome);
        }
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_an_answer_in_between_counts_anew() {
        let mut fixture = Fixture::closed();
        for outcome in [Outcome::Failure, Outcome::Failure, Outcome::Success, Outcome::Failure, Outcome::Ignored] {
            fixture.call(outcome);
        }
        fixture.call(Outcome::Failure);
        assert!(fixture.breaker.is_closed());
        fixture.call(Outcome::Failure);
        assert_eq!(fixture.try_acquire(), None);
    }

    #[test]
    fn of_many_that_ask_at_once_exactly_one_probes() {
        let mut fixture = Fixture::open();
        fixture.now += OPEN_FOR - Duration::from_millis(1);
        assert_eq!(fixture.try_acquire(), None, "too early");
        fixture.now += Duration::from_millis(1);
        let permits: Vec<_> = (0..100).filter_map(|_| fixture.try_acquire()).collect();
        assert_eq!(permits.len(), 1);
        fixture.now += OPEN_FOR * 10;
        assert_eq!(fixture.try_acquire(), None, "a slow probe is still the only one");
        fixture.record(permits[0], Outcome::Success);
        assert!(fixture.breaker.is_closed());
    }

    #[test]
    fn a_failed_probe_opens_it_for_the_whole_time_again() {
        let mut fixture = Fixture::open();
        fixture.now += OPEN_FOR;
        fixture.call(Outcome::Failure);
        fixture.now += OPEN_FOR - Duration::from_millis(1);
        assert_eq!(fixture.try_acquire(), None);
        fixture.now += Duration::from_millis(1);
        fixture.call(Outcome::Success);
        assert!(fixture.breaker.is_closed());
    }

    #[test]
    fn a_probe_that_is_given_up_leaves_its_place_to_the_next() {
        let mut fixture = Fixture::open();
        fixture.now += OPEN_FOR;
        let given_up = fixture.try_acquire().expect("a permit to probe");
        fixture.record(given_up, Outcome::Ignored);
        let next = fixture.try_acquire().expect("a permit to probe");
        fixture.record(given_up, Outcome::Success);
        assert!(!fixture.breaker.is_closed(), "the first probe has no say any more");
        fixture.record(next, Outcome::Success);
        assert!(fixture.breaker.is_closed());
    }

    #[test]
    fn answers_from_before_it_opened_say_nothing_about_the_probe() {
        let mut fixture = Fixture::closed();
        let early: Vec<_> = (0..5).filter_map(|_| fixture.try_acquire()).collect();
        (0..3).for_each(|n| fixture.record(early[n], Outcome::Failure));
        fixture.now += OPEN_FOR;
        let probe = fixture.try_acquire().expect("a permit to probe");
        fixture.record(early[3], Outcome::Failure);
        fixture.record(early[4], Outcome::Success);
        assert_eq!(fixture.try_acquire(), None, "neither closed nor free for another probe");
        fixture.record(probe, Outcome::Success);
        assert!(fixture.breaker.is_closed());
        fixture.record(early[3], Outcome::Failure);
        (0..2).for_each(|_| fixture.call(Outcome::Failure));
        assert!(fixture.breaker.is_closed(), "nor does it count after it has closed");
    }
}
