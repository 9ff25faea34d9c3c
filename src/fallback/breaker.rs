//! When to stop asking a server that does not answer, and when to try it again: a state machine without a clock.
//!
//! ```text
//!            `failures` in a row                 `open_for` later, for one caller
//!   Closed ─────────────────────────▶ Open ────────────────────────────────────────▶ Probing
//!     ▲                                 ▲      the probe got no answer                 │
//!     │                                 └──────────────────────────────────────────────┤
//!     └──────────────────────────────────────── the probe was answered ────────────────┘
//! ```
//!
//! A pass belongs to the round in which it was given. Answers of an older round come too late to say anything: a call
//! that was sent before the breaker opened must neither close it nor push the next probe away.

use std::time::{Duration, Instant};

/// Leave to ask the server once. To be given back with [`Breaker::report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    round: u64,
}

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The server answered, whatever it said.
    Answered,
    /// It could not be reached, or did not answer in time.
    Silent,
    /// The call was given up, or never sent: nothing is known.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant },
    Probing,
}

/// One breaker for one server. Starts closed.
#[derive(Debug)]
pub struct Breaker {
    failures: u32,
    open_for: Duration,
    state: State,
    round: u64,
}

impl Breaker {
    /// Opens after `failures` silent calls in a row (at least 1), and lets a probe through after `open_for`.
    pub const fn new(failures: u32, open_for: Duration) -> Self {
        Self { failures, open_for, state: State::Closed { failures: 0 }, round: 0 }
    }

    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// Leave to ask the server, or `None`: not now.
    pub fn ask(&mut self, now: Instant) -> Option<Pass> {
        match self.state {
            State::Closed { .. } => {}
            State::Open { until } if now >= until => self.enter(State::Probing),
            State::Open { .. } | State::Probing => return None,
        }
        Some(Pass { round: self.round })
    }

    /// Says what came of a call.
    pub fn report(&mut self, pass: Pass, report: Report, now: Instant) {
        if pass.round != self.round {
            return;
        }
        match (self.state, report) {
            (State::Closed { .. }, Report::Answered) => self.state = State::Closed { failures: 0 },
            (State::Closed { failures }, Report::Silent) if failures + 1 < self.failures => {
                self.state = State::Closed { failures: failures + 1 };
            }
            (State::Probing, Report::Answered) => self.enter(State::Closed { failures: 0 }),
            (State::Closed { .. } | State::Probing, Report::Silent) => {
                self.enter(State::Open { until: now + self.open_for });
            }
            // A probe without a result leaves its place to the next caller, or nobody would ever probe again.
            (State::Probing, Report::Nothing) => self.enter(State::Open { until: now }),
            (State::Closed { .. }, Report::Nothing) | (State::Open { .. }, _) => {}
        }
    }

    const fn enter(&mut self, state: State) {
        self.state = state;
        self.round += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN_FOR: Duration = Duration::from_millis(500);

    struct Bench {
        breaker: Breaker,
        now: Instant,
    }

    impl Bench {
        fn closed() -> Self {
            Self { breaker: Breaker::new(3, OPEN_FOR), now: Instant::now() }
        }

        fn open() -> Self {
            let mut bench = Self::closed();
            (0..3).for_each(|_| bench.call(Report::Silent));
            assert!(!bench.breaker.is_closed());
            bench
        }

        fn ask(&mut self) -> Option<Pass> {
            self.breaker.ask(self.now)
        }

        fn report(&mut self, pass: Pass, report: Report) {
            self.breaker.report(pass, report, self.now);
        }

        fn call(&mut self, report: Report) {
            let pass = self.ask().expect("leave to ask");
            self.report(pass, report);
        }
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_an_answer_in_between_counts_anew() {
        let mut bench = Bench::closed();
        for report in [Report::Silent, Report::Silent, Report::Answered, Report::Silent, Report::Nothing] {
            bench.call(report);
        }
        bench.call(Report::Silent);
        assert!(bench.breaker.is_closed());
        bench.call(Report::Silent);
        assert_eq!(bench.ask(), None);
    }

    #[test]
    fn of_many_that_ask_at_once_exactly_one_probes() {
        let mut bench = Bench::open();
        bench.now += OPEN_FOR - Duration::from_millis(1);
        assert_eq!(bench.ask(), None, "too early");
        bench.now += Duration::from_millis(1);
        let passes: Vec<_> = (0..100).filter_map(|_| bench.ask()).collect();
        assert_eq!(passes.len(), 1);
        bench.now += OPEN_FOR * 10;
        assert_eq!(bench.ask(), None, "a slow probe is still the only one");
        bench.report(passes[0], Report::Answered);
        assert!(bench.breaker.is_closed());
    }

    #[test]
    fn a_failed_probe_opens_it_for_the_whole_time_again() {
        let mut bench = Bench::open();
        bench.now += OPEN_FOR;
        bench.call(Report::Silent);
        bench.now += OPEN_FOR - Duration::from_millis(1);
        assert_eq!(bench.ask(), None);
        bench.now += Duration::from_millis(1);
        bench.call(Report::Answered);
        assert!(bench.breaker.is_closed());
    }

    #[test]
    fn a_probe_that_is_given_up_leaves_its_place_to_the_next() {
        let mut bench = Bench::open();
        bench.now += OPEN_FOR;
        let given_up = bench.ask().expect("leave to probe");
        bench.report(given_up, Report::Nothing);
        let next = bench.ask().expect("leave to probe");
        bench.report(given_up, Report::Answered);
        assert!(!bench.breaker.is_closed(), "the first probe has no say any more");
        bench.report(next, Report::Answered);
        assert!(bench.breaker.is_closed());
    }

    #[test]
    fn answers_from_before_it_opened_say_nothing_about_the_probe() {
        let mut bench = Bench::closed();
        let early: Vec<_> = (0..5).filter_map(|_| bench.ask()).collect();
        (0..3).for_each(|n| bench.report(early[n], Report::Silent));
        bench.now += OPEN_FOR;
        let probe = bench.ask().expect("leave to probe");
        bench.report(early[3], Report::Silent);
        bench.report(early[4], Report::Answered);
        assert_eq!(bench.ask(), None, "neither closed nor free for another probe");
        bench.report(probe, Report::Answered);
        assert!(bench.breaker.is_closed());
        bench.report(early[3], Report::Silent);
        (0..2).for_each(|_| bench.call(Report::Silent));
        assert!(bench.breaker.is_closed(), "nor does it count after it has closed");
    }
}
