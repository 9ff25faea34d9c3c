//! One log line for an outage instead of one for each call that meets it.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Reasons of one outage that are logged. A reason that names something new each time must not fill the log.
const MAX_REASONS: usize = 8;

/// The state of something that fails for a while, such as a server that is down.
///
/// It logs when the outage begins, when the outage gets a new reason, and when it is over. A reason that was logged in
/// this outage is not logged again: two errors that alternate are two lines. The message is written at the call:
///
/// ```ignore
/// match answer {
///     Ok(_) => outage.recovered(|| info!("Redis answers again")),
///     Err(error) => outage.failed(&error, |error| warn!(%error, "Redis does not answer")),
/// }
/// ```
#[derive(Debug, Default)]
pub struct Outage {
    /// Whether there is one. Spares the usual case, in which nothing fails, the lock.
    ongoing: AtomicBool,
    reasons: Mutex<Vec<String>>,
}

impl Outage {
    /// A try has failed. Calls `log` if the outage begins with it or has not had this reason before.
    pub fn failed<R: Display + ?Sized>(&self, reason: &R, log: impl FnOnce(&R)) {
        let text = reason.to_string();
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        self.ongoing.store(true, Ordering::Relaxed);
        if reasons.len() >= MAX_REASONS || reasons.contains(&text) {
            return;
        }
        reasons.push(text);
        drop(reasons);
        log(reason);
    }

    /// A try has succeeded. Calls `log` if that ends an outage.
    pub fn recovered(&self, log: impl FnOnce()) {
        if !self.is_ongoing() {
            return;
        }
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        // Of several callers that succeed at once, one ends the outage.
        let ended = self.ongoing.swap(false, Ordering::Relaxed);
        reasons.clear();
        drop(reasons);
        if ended {
            log();
        }
    }

    /// Whether the last try failed.
    pub fn is_ongoing(&self) -> bool {
        self.ongoing.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// The lines that an outage logs.
    #[derive(Default)]
    struct Log {
        outage: Outage,
        lines: RefCell<Vec<String>>,
    }

    impl Log {
        fn failed(&self, reason: &str) {
            self.outage.failed(reason, |reason| self.lines.borrow_mut().push(reason.to_owned()));
        }

        fn recovered(&self) {
            self.outage.recovered(|| self.lines.borrow_mut().push("over".to_owned()));
        }

        fn lines(&self) -> Vec<String> {
            self.lines.take()
        }
    }

    #[test]
    fn an_outage_is_logged_when_it_begins_when_it_gets_a_new_reason_and_when_it_is_over() {
        let log = Log::default();
        log.recovered();
        assert_eq!(log.lines(), [""; 0], "nothing has failed");
        log.failed("refused");
        log.failed("refused");
        assert_eq!(log.lines(), ["refused"], "once");
        assert!(log.outage.is_ongoing());
        log.failed("timed out");
        log.failed("timed out");
        assert_eq!(log.lines(), ["timed out"], "a new reason");
        log.recovered();
        log.recovered();
        assert_eq!(log.lines(), ["over"], "once");
        assert!(!log.outage.is_ongoing());
        log.failed("refused");
        assert_eq!(log.lines(), ["refused"], "the next outage begins");
    }

    #[test]
    fn reasons_that_alternate_are_logged_once_each() {
        let log = Log::default();
        for _ in 0..100 {
            log.failed("refused");
            log.failed("timed out");
        }
        assert_eq!(log.lines(), ["refused", "timed out"]);
    }

    #[test]
    fn reasons_that_are_new_each_time_do_not_fill_the_log() {
        let log = Log::default();
        for n in 0..100 {
            log.failed(&format!("order {n}"));
        }
        assert_eq!(log.lines().len(), MAX_REASONS);
        log.recovered();
        assert_eq!(log.lines(), ["over"]);
    }
}
