//! How long to wait before trying again: twice as long each time, up to a cap, back to the start after success.

use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
    failing: bool,
}

impl Backoff {
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        Self { first, most: most.max(first), next: first, failing: false }
    }

    /// The wait before the next try.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (self.next * 2).min(self.most);
        self.failing = true;
        wait
    }

    /// Forgets the failures.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
        self.failing = false;
    }

    /// Whether the last thing that happened was a failure.
    pub(crate) const fn is_failing(&self) -> bool {
        self.failing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap_and_start_anew_after_success() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(50), ms(150));
        assert_eq!([backoff.next(), backoff.next(), backoff.next()], [ms(50), ms(100), ms(150)]);
        assert!(backoff.is_failing());
        backoff.reset();
        assert!(!backoff.is_failing());
        assert_eq!(backoff.next(), ms(50));
    }
}
