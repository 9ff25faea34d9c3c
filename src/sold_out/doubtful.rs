//! Users whose last purchase on this node ended without an answer.
//!
//! Such a user may hold an order and not know it. "Sold out" would be a lie to them, so they pass the flag and are
//! answered by the stock itself.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::domain::{SaleId, UserId};

/// Users that are remembered at most; the oldest give way. 16 bytes each.
const CAPACITY: usize = 65_536;

/// A bounded set of (sale, user). Asking costs one atomic load while it is empty.
#[derive(Default)]
pub struct Doubtful {
    // By hash: a collision lets somebody past the flag to the stock, which is always right.
    hasher: RandomState,
    size: AtomicUsize,
    members: Mutex<(HashSet<u64>, VecDeque<u64>)>,
}

impl Doubtful {
    pub fn contains(&self, sale: SaleId, user: &UserId) -> bool {
        self.size.load(Ordering::Relaxed) > 0
            && self.members.lock().unwrap_or_else(PoisonError::into_inner).0.contains(&self.hash(sale, user))
    }

    pub fn add(&self, sale: SaleId, user: &UserId) {
        let member = self.hash(sale, user);
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let (set, by_age) = &mut *members;
        if set.insert(member) {
            by_age.push_back(member);
        }
        if by_age.len() > CAPACITY
            && let Some(oldest) = by_age.pop_front()
        {
            set.remove(&oldest);
        }
        self.size.store(set.len(), Ordering::Relaxed);
    }

    fn hash(&self, sale: SaleId, user: &UserId) -> u64 {
        self.hasher.hash_one((sale, user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_remembers_the_latest_and_never_more_than_its_capacity() {
        let doubtful = Doubtful::default();
        let sale = SaleId::new(1).expect("a sale id");
        let user = |n: usize| format!("u{n}").parse::<UserId>().expect("a user id");
        assert!(!doubtful.contains(sale, &user(0)));
        for n in 0..=CAPACITY {
            doubtful.add(sale, &user(n));
        }
        assert!(!doubtful.contains(sale, &user(0)), "the oldest has given way");
        assert!(doubtful.contains(sale, &user(CAPACITY)));
        assert_eq!(doubtful.size.load(Ordering::Relaxed), CAPACITY);
    }
}
