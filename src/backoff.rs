//! How long to wait before the next try: twice as long each time up to a cap, with jitter.

use std::time::Duration;

/// Pauses that double up to a cap. Jitter spreads callers that failed together, so that they do not retry together.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    cap: Duration,
    next: Duration,
}

impl Backoff {
    /// A cap below `first` is raised to it.
    pub(crate) fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap: cap.max(first), next: first }
    }

    /// The next pause, at a random place between half and all of its length.
    pub(crate) fn next_pause(&mut self) -> Duration {
        self.pause(rand::random())
    }

    /// The next pause. `random` from 0 to 1 places it between half and all of its length.
    pub(crate) fn pause(&mut self, random: f64) -> Duration {
        let whole = self.next;
        self.next = whole.saturating_mul(2).min(self.cap);
        whole.mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))
    }

    /// Starts again with the first pause.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn pauses_double_up_to_the_cap_and_never_beyond() {
        let mut backoff = Backoff::new(ms(10), ms(200));
        let whole: Vec<_> = (0..8).map(|_| backoff.pause(1.0).as_millis()).collect();
        assert_eq!(whole, [10, 20, 40, 80, 160, 200, 200, 200]);
    }

    #[test]
    fn pauses_are_spread_over_the_upper_half() {
        let (mut early, mut late) = (Backoff::new(ms(10), ms(200)), Backoff::new(ms(10), ms(200)));
        for _ in 0..100 {
            let (early, late) = (early.pause(0.0), late.pause(1.0));
            assert_eq!(early * 2, late);
        }
        let mut backoff = Backoff::new(ms(10), ms(200));
        for random in [-1.0, 7.0, f64::INFINITY] {
            assert!(backoff.pause(random) <= ms(200));
        }
        let mut random = Backoff::new(ms(200), ms(200));
        assert!((0..100).all(|_| (ms(100)..=ms(200)).contains(&random.next_pause())));
    }

    #[test]
    fn after_success_pauses_start_again_with_the_first() {
        let mut backoff = Backoff::new(ms(50), ms(150));
        assert_eq!([backoff.pause(1.0), backoff.pause(1.0)], [ms(50), ms(100)]);
        backoff.reset();
        assert_eq!(backoff.pause(1.0), ms(50));
    }

    #[test]
    fn a_cap_below_the_first_pause_is_raised_to_it() {
        let mut backoff = Backoff::new(ms(50), ms(20));
        assert_eq!([backoff.pause(1.0), backoff.pause(1.0)], [ms(50), ms(50)]);
    }
}
