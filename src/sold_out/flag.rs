//! The flag of one sale and the order in which news moves it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::domain::{Epoch, StockNews};

/// Stands for a number of units that nobody has told. No sale has so many.
const UNKNOWN: u32 = u32::MAX;

/// Whether one sale is known to have nothing left, and since which epoch.
#[derive(Debug)]
pub struct Flag {
    raised: AtomicBool,
    remaining: AtomicU32,
    newest: Mutex<Epoch>,
}

impl Default for Flag {
    fn default() -> Self {
        Self { raised: AtomicBool::new(false), remaining: AtomicU32::new(UNKNOWN), newest: Mutex::default() }
    }
}

impl Flag {
    /// True if, by the newest news, no unit is left.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// Units left by the newest news; may lag by a second. `None` while nobody knows: before the first news, after
    /// units came back, and while Redis cannot sell.
    pub fn remaining(&self) -> Option<u32> {
        Some(self.remaining.load(Ordering::Relaxed)).filter(|units| *units != UNKNOWN)
    }

    /// Takes in the news of an answer. Within one epoch units only go away, so there the flag only rises; a newer
    /// epoch decides anew; an older one is a late answer and says nothing.
    pub fn observe(&self, news: StockNews) {
        self.take(&mut self.newest(), news);
    }

    /// Takes in a probe. One that found units lowers the flag whatever its epoch: a Redis that came back with an older
    /// state has units that no later news would ever bring up. Where another answer overtook the probe this is wrong,
    /// for one purchase: its answer raises the flag again.
    pub fn probed(&self, news: Option<StockNews>) {
        let mut newest = self.newest();
        match news {
            Some(news) => {
                self.take(&mut newest, news);
                if news.remaining > 0 {
                    self.set(false, news.remaining);
                }
            }
            // Sold out is a fact about stock; a Redis that cannot sell is a fault. Let the buyers meet the fault.
            None => self.set(false, UNKNOWN),
        }
    }

    /// Takes in word that units came back at `epoch`, without saying how many.
    pub fn freed(&self, epoch: Epoch) {
        let mut newest = self.newest();
        if epoch > *newest {
            *newest = epoch;
            self.set(false, UNKNOWN);
        }
    }

    fn take(&self, newest: &mut Epoch, news: StockNews) {
        if news.epoch < *newest {
            return;
        }
        let same_epoch = news.epoch == *newest;
        *newest = news.epoch;
        if same_epoch {
            // What is unknown is larger than any number.
            let least = news.remaining.min(self.remaining.load(Ordering::Relaxed));
            self.set(news.remaining == 0 || self.is_raised(), least);
        } else {
            self.set(news.remaining == 0, news.remaining);
        }
    }

    /// Only while `newest` is held: readers may see the one without the other, writers must not.
    fn set(&self, raised: bool, remaining: u32) {
        self.remaining.store(remaining, Ordering::Relaxed);
        self.raised.store(raised, Ordering::Relaxed);
    }

    fn newest(&self) -> MutexGuard<'_, Epoch> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn what_nobody_has_told_is_unknown_and_never_a_number() {
        let flag = Flag::default();
        assert_eq!(flag.remaining(), None, "before the first news");
        flag.observe(news(1, 0, 4));
        flag.observe(news(1, 0, 6));
        assert_eq!(flag.remaining(), Some(4), "the later one of two answers is the smaller one");
        flag.observe(news(1, 0, 0));
        flag.freed(Epoch::new(1, 1));
        assert_eq!(flag.remaining(), None, "units came back, nobody said how many");
        flag.probed(Some(news(1, 1, 2)));
        assert_eq!(flag.remaining(), Some(2));
        flag.probed(None);
        assert_eq!(flag.remaining(), None, "a Redis that cannot sell has no number");
        flag.observe(news(1, 1, 0));
        flag.probed(Some(news(1, 1, 3)));
        assert_eq!((flag.is_raised(), flag.remaining()), (false, Some(3)), "lowered, and not with nothing left");
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
