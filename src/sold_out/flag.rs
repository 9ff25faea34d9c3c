//! The flag of one sale, and the order in which updates move it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::domain::{StockUpdate, StockVersion};

/// Stands for an unknown number of units. No sale has so many.
const UNKNOWN: u32 = u32::MAX;

/// Whether one sale is known to have nothing left, and as of which version.
#[derive(Debug)]
pub struct Flag {
    raised: AtomicBool,
    remaining: AtomicU32,
    newest: Mutex<StockVersion>,
}

impl Default for Flag {
    fn default() -> Self {
        Self { raised: AtomicBool::new(false), remaining: AtomicU32::new(UNKNOWN), newest: Mutex::default() }
    }
}

impl Flag {
    /// True if, by the newest update, no unit is left.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// Units left as of the newest update; may lag by a second. `None` while unknown: before the first update, after
    /// units came back, and while Redis cannot sell.
    pub fn remaining(&self) -> Option<u32> {
        Some(self.remaining.load(Ordering::Relaxed)).filter(|units| *units != UNKNOWN)
    }

    /// Applies the update that came with an answer. Within one version units only go away, so there the flag only rises; a
    /// newer version decides again; an older one is a late answer and changes nothing.
    pub fn observe(&self, update: StockUpdate) {
        self.apply(&mut self.newest(), update);
    }

    /// Applies a probe. A probe that found units lowers the flag whatever its version: a Redis that came back with an older
    /// state has units that no later update would ever show. Where another answer overtook the probe this is wrong, for
    /// one purchase: its answer raises the flag again.
    pub fn on_probe(&self, update: Option<StockUpdate>) {
        let mut newest = self.newest();
        match update {
            Some(update) => {
                self.apply(&mut newest, update);
                if update.remaining > 0 {
                    self.set(false, update.remaining);
                }
            }
            // Sold out is a fact about stock; a Redis that cannot sell is a fault. Let the buyers meet the fault.
            None => self.set(false, UNKNOWN),
        }
    }

    /// Applies the message that units came back at `version`. It does not say how many.
    pub fn on_restock(&self, version: StockVersion) {
        let mut newest = self.newest();
        if version > *newest {
            *newest = version;
            self.set(false, UNKNOWN);
        }
    }

    fn apply(&self, newest: &mut StockVersion, update: StockUpdate) {
        if update.version < *newest {
            return;
        }
        let same_version = update.version == *newest;
        *newest = update.version;
        if same_version {
            // What is unknown is larger than any number.
            let least = update.remaining.min(self.remaining.load(Ordering::Relaxed));
            self.set(update.remaining == 0 || self.is_raised(), least);
        } else {
            self.set(update.remaining == 0, update.remaining);
        }
    }

    /// Only while `newest` is held: readers may see the one without the other, writers must not.
    fn set(&self, raised: bool, remaining: u32) {
        self.remaining.store(remaining, Ordering::Relaxed);
        self.raised.store(raised, Ordering::Relaxed);
    }

    fn newest(&self) -> MutexGuard<'_, StockVersion> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(generation: i64, epoch: i64, remaining: u32) -> StockUpdate {
        StockUpdate { version: StockVersion::new(generation, epoch), remaining }
    }

    #[test]
    fn only_an_answer_with_nothing_left_raises_it() {
        let flag = Flag::default();
        flag.observe(update(1, 0, 1));
        assert!(!flag.is_raised());
        flag.observe(update(1, 0, 0));
        assert!(flag.is_raised());
    }

    #[test]
    fn a_late_answer_of_the_same_epoch_does_not_lower_it() {
        let flag = Flag::default();
        flag.observe(update(1, 0, 0));
        flag.observe(update(1, 0, 3));
        assert!(flag.is_raised());
    }

    #[test]
    fn a_late_sold_out_does_not_hide_units_that_came_back() {
        let flag = Flag::default();
        flag.observe(update(1, 0, 0));
        flag.on_restock(StockVersion::new(1, 1));
        flag.observe(update(1, 0, 0));
        assert!(!flag.is_raised());
    }

    #[test]
    fn a_late_restock_message_does_not_lower_it_once_the_units_are_sold() {
        let flag = Flag::default();
        flag.observe(update(1, 2, 0));
        flag.on_restock(StockVersion::new(1, 1));
        flag.on_restock(StockVersion::new(1, 2));
        assert!(flag.is_raised());
        flag.on_restock(StockVersion::new(1, 3));
        assert!(!flag.is_raised());
    }

    #[test]
    fn a_rebuild_outranks_every_epoch_of_the_generation_before() {
        let flag = Flag::default();
        flag.observe(update(1, 7, 0));
        flag.observe(update(2, 0, 5));
        assert!(!flag.is_raised());
        flag.observe(update(1, 7, 0));
        assert!(!flag.is_raised(), "the old generation must not raise it again");
        flag.observe(update(2, 0, 0));
        assert!(flag.is_raised());
    }

    #[test]
    fn what_nobody_has_told_is_unknown_and_never_a_number() {
        let flag = Flag::default();
        assert_eq!(flag.remaining(), None, "before the first update");
        flag.observe(update(1, 0, 4));
        flag.observe(update(1, 0, 6));
        assert_eq!(flag.remaining(), Some(4), "the later one of two answers is the smaller one");
        flag.observe(update(1, 0, 0));
        flag.on_restock(StockVersion::new(1, 1));
        assert_eq!(flag.remaining(), None, "units came back, and the message does not say how many");
        flag.on_probe(Some(update(1, 1, 2)));
        assert_eq!(flag.remaining(), Some(2));
        flag.on_probe(None);
        assert_eq!(flag.remaining(), None, "a Redis that cannot sell has no number");
        flag.observe(update(1, 1, 0));
        flag.on_probe(Some(update(1, 1, 3)));
        assert_eq!((flag.is_raised(), flag.remaining()), (false, Some(3)), "lowered, and not with nothing left");
    }

    #[test]
    fn a_probe_that_finds_units_or_a_fault_lowers_it() {
        let flag = Flag::default();
        flag.observe(update(1, 0, 0));
        flag.on_probe(None);
        assert!(!flag.is_raised());
        flag.observe(update(1, 0, 0));
        flag.on_probe(Some(update(1, 1, 2)));
        assert!(!flag.is_raised());
    }
}
