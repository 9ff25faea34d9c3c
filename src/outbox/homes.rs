//! Which Redis a relay reads from, as far as it matters to a rebuild.
//!
//! A relay may hold orders in memory that its Redis has forgotten since. A rebuild must not begin before they are in
//! Kafka, so every worker says of which Redis process it has published everything that it had read *before*.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::domain::SaleId;

/// What the workers of one relay say. Clones share it.
#[derive(Clone, Default)]
pub struct Homes(Arc<Mutex<HashMap<SaleId, Option<String>>>>);

impl Homes {
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
        let homes = self.lock();
        let mut reported = homes.values();
        let first = reported.next()?.clone()?;
        reported.all(|home| home.as_ref() == Some(&first)).then_some(first)
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
        let homes = Homes::default();
        homes.enter(sale(1));
        homes.enter(sale(2));
        homes.report(sale(1), "a".to_owned());
        assert_eq!(homes.flushed(), None);
        homes.report(sale(2), "b".to_owned());
        assert_eq!(homes.flushed(), None, "one of them still reads from another process");
        homes.report(sale(1), "b".to_owned());
        assert_eq!(homes.flushed().as_deref(), Some("b"));
    }
}
