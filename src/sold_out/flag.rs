//! The flag of one sale and the order in which news moves it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::domain::{Epoch, StockNews};

/// Whether one sale is known to have nothing left, and since which epoch.
#[derive(Debug, Default)]
pub struct Flag {
    raised: AtomicBool,
    remaining: AtomicU32,
    newest: Mutex<Epoch>,
}

impl Flag {
    /// True if, by the newest news, no unit is left.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// Units left by the newest news; may lag by a second.
    pub fn remaining(&self) -> u32 {
        self.remaining.load(Ordering::Relaxed)
    }

    /// Takes in the news of an answer. Within one epoch units only go away, so there the flag only rises; a newer
    /// epoch decides anew; an older one is a late answer and says nothing.
    pub fn observe(&self, news: StockNews) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if news.epoch < *newest {
            return;
        }
        let same_epoch = news.epoch == *newest;
        let raised = news.remaining == 0 || (same_epoch && self.is_raised());
        let remaining = if same_epoch { news.remaining.min(self.remaining()) } else { news.remaining };
        *newest = news.epoch;
        self.remaining.store(remaining, Ordering::Relaxed);
        self.raised.store(raised, Ordering::Relaxed);
    }

    /// Takes in a probe: an answer that was asked for after everything known so far.
    pub fn probed(&self, news: Option<StockNews>) {
        match news {
            Some(news) => {
                self.observe(news);
                if news.remaining > 0 {
                    self.lower();
                }
            }
            // Sold out is a fact about stock; a Redis that cannot sell is a fault. Let the buyers meet the fault.
            None => self.lower(),
        }
    }

    /// Takes in word that units came back at `epoch`, without saying how many.
    pub fn freed(&self, epoch: Epoch) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if epoch > *newest {
            *newest = epoch;
            self.remaining.store(u32::MAX, Ordering::Relaxed);
            self.raised.store(false, Ordering::Relaxed);
        }
    }

    fn lower(&self) {
        self.raised.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(generation: i64, number: i64, remaining: u32) -> StockNews {
        StockNews { epoch: Epoch::new(generation, number), remaining }
    }

    #[test]
    fn only_an_answer_with_nothing_left_raises_it() {
        let flag = Flag::default();
        flag.observe(news(1, 0, 1));
        assert!(!flag.is_raised());
        flag.observe(news(1, 0, 0));
        assert!(flag.is_raised());
    }

    #[test]
    fn a_late_answer_of_the_same_epoch_does_not_lower_it() {
        let flag = Flag::default();
        flag.observe(news(1, 0, 0));
        flag.observe(news(1, 0, 3));
        assert!(flag.is_raised());
    }

    #[test]
    fn a_late_sold_out_does_not_hide_units_that_came_back() {
        let flag = Flag::default();
        flag.observe(news(1, 0, 0));
        flag.freed(Epoch::new(1, 1));
        flag.observe(news(1, 0, 0));
        assert!(!flag.is_raised());
    }

    #[test]
    fn late_word_of_freed_units_does_not_lower_it_once_they_are_sold() {
        let flag = Flag::default();
        flag.observe(news(1, 2, 0));
        flag.freed(Epoch::new(1, 1));
        flag.freed(Epoch::new(1, 2));
        assert!(flag.is_raised());
        flag.freed(Epoch::new(1, 3));
        assert!(!flag.is_raised());
    }

    #[test]
    fn a_rebuild_outranks_every_epoch_of_the_life_before() {
        let flag = Flag::default();
        flag.observe(news(1, 7, 0));
        flag.observe(news(2, 0, 5));
        assert!(!flag.is_raised());
        flag.observe(news(1, 7, 0));
        assert!(!flag.is_raised(), "the old life must not raise it again");
        flag.observe(news(2, 0, 0));
        assert!(flag.is_raised());
    }

    #[test]
    fn a_probe_that_finds_units_or_a_fault_lowers_it() {
        let flag = Flag::default();
        flag.observe(news(1, 0, 0));
        flag.probed(None);
        assert!(!flag.is_raised());
        flag.observe(news(1, 0, 0));
        flag.probed(Some(news(1, 1, 2)));
        assert!(!flag.is_raised());
    }
}
