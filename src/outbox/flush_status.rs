//! Whether a relay has published what it had read from a Redis process that is gone. A rebuild waits for that.
//!
//! A relay may hold orders in memory that its Redis has since lost. A rebuild must not begin before they are in
//! Kafka. So every worker reports the run id of the Redis process that it reads from, once everything that it had
//! read *before* is in Kafka.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::domain::SaleId;

/// The reports of the workers of one relay. Clones share them.
#[derive(Clone, Default)]
pub struct RelayFlushStatus(Arc<Mutex<HashMap<SaleId, Option<String>>>>);

impl RelayFlushStatus {
    /// A worker begins: until it reports, nothing is known of it.
    pub(super) fn enter(&self, sale: SaleId) {
        self.lock().insert(sale, None);
    }

    /// Everything that the worker read before it came to this process is in Kafka.
    pub(super) fn report(&self, sale: SaleId, run_id: String) {
        self.lock().insert(sale, Some(run_id));
    }

    /// The worker has ended.
    pub(super) fn leave(&self, sale: SaleId) {
        self.lock().remove(&sale);
    }

    /// Whether there is any worker at all: a relay without one holds nothing.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// The run id that all workers have reported, if they agree.
    pub fn flushed(&self) -> Option<String> {
        let reports = self.lock();
        let mut reported = reports.values();
        let first = reported.next()?.clone()?;
        reported.all(|run_id| run_id.as_ref() == Some(&first)).then_some(first)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SaleId, Option<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_has_flushed_only_when_all_its_workers_have() {
        let sale = |id| SaleId::new(id).expect("a sale id");
        let status = RelayFlushStatus::default();
        status.enter(sale(1));
        status.enter(sale(2));
        status.report(sale(1), "a".to_owned());
        assert_eq!(status.flushed(), None);
        status.report(sale(2), "b".to_owned());
        assert_eq!(status.flushed(), None, "one of them still reads from another process");
        status.report(sale(1), "b".to_owned());
        assert_eq!(status.flushed().as_deref(), Some("b"));
    }
}
