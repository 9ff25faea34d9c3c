//! The breaker that all workers of a node share, with the clock and the log.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::breaker::{Breaker, Outcome, Permit};

/// Whether this node asks Redis.
#[derive(Debug)]
pub struct Circuit {
    breaker: Mutex<Breaker>,
    clock: fn() -> Instant,
}

/// Permission for one call. Dropped without an outcome, as when its caller has gone away, it counts as
/// [`Outcome::Ignored`].
#[derive(Debug)]
pub struct CallPermit<'a> {
    circuit: &'a Circuit,
    permit: Permit,
    outcome: Outcome,
}

impl Circuit {
    pub const fn new(failures: u32, open_for: Duration, clock: fn() -> Instant) -> Self {
        Self { breaker: Mutex::new(Breaker::new(failures, open_for)), clock }
    }

    /// Permission to ask Redis, or `None`: it does not answer, and this call is not the probe.
    pub fn try_acquire(&self) -> Option<CallPermit<'_>> {
        let permit = self.breaker().try_acquire((self.clock)())?;
        Some(CallPermit { circuit: self, permit, outcome: Outcome::Ignored })
    }

    pub fn is_closed(&self) -> bool {
        self.breaker().is_closed()
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        // Nothing panics while the lock is held, so a poisoned one still holds a whole state.
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallPermit<'_> {
    pub fn record(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for CallPermit<'_> {
    fn drop(&mut self) {
        let mut breaker = self.circuit.breaker();
        let was_closed = breaker.is_closed();
        breaker.record(self.permit, self.outcome, (self.circuit.clock)());
        let is_closed = breaker.is_closed();
        drop(breaker);
        match (was_closed, is_closed) {
            (true, false) => tracing::warn!("redis does not answer: purchases are kept from it, but for probes"),
            (false, true) => tracing::info!("redis answers again"),
            _ => {}
        }
    }
}
