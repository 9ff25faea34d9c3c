//! The breaker that all workers of a node share, with the clock and the log.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::breaker::{Breaker, Pass, Report};

/// Whether this node asks Redis.
#[derive(Debug)]
pub struct Circuit {
    breaker: Mutex<Breaker>,
    clock: fn() -> Instant,
}

/// Leave for one call. Dropped without a word, as when its caller has gone away, it says [`Report::Nothing`].
#[derive(Debug)]
pub struct Permit<'a> {
    circuit: &'a Circuit,
    pass: Pass,
    report: Report,
}

impl Circuit {
    pub const fn new(failures: u32, open_for: Duration, clock: fn() -> Instant) -> Self {
        Self { breaker: Mutex::new(Breaker::new(failures, open_for)), clock }
    }

    /// Leave to ask Redis, or `None`: it does not answer, and this call is not the one that tries again.
    pub fn enter(&self) -> Option<Permit<'_>> {
        let pass = self.breaker().ask((self.clock)())?;
        Some(Permit { circuit: self, pass, report: Report::Nothing })
    }

    pub fn is_closed(&self) -> bool {
        self.breaker().is_closed()
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        // Nothing panics while the lock is held, so a poisoned one still holds a whole state.
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit<'_> {
    pub fn report(mut self, report: Report) {
        self.report = report;
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut breaker = self.circuit.breaker();
        let was_closed = breaker.is_closed();
        breaker.report(self.pass, self.report, (self.circuit.clock)());
        let is_closed = breaker.is_closed();
        drop(breaker);
        match (was_closed, is_closed) {
            (true, false) => tracing::warn!("redis does not answer: purchases are kept from it, but for probes"),
            (false, true) => tracing::info!("redis answers again"),
            _ => {}
        }
    }
}
