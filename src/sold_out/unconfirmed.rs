//! Users whose last purchase on this node ended without an answer.
//!
//! Such a user may hold an order and not know it. "Sold out" would be a lie to them, so they pass the flag and are
//! answered by the stock itself, until it has answered them.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::domain::{SaleId, UserId};

/// Users that are remembered at most; the oldest give way. 32 bytes each.
const CAPACITY: usize = 65_536;

/// A bounded set of (sale, user). Asking costs one atomic load while it is empty.
#[derive(Default)]
pub struct UnconfirmedBuyers {
    // By hash: a collision lets somebody past the flag to the stock, which is always right.
    hasher: RandomState,
    size: AtomicUsize,
    members: Mutex<Members>,
}

/// Each member with the number of its latest entry; and the entries by age, overtaken ones included.
#[derive(Default)]
struct Members {
    latest: HashMap<u64, u64>,
    by_age: VecDeque<(u64, u64)>,
    entries: u64,
}

impl UnconfirmedBuyers {
    pub fn contains(&self, sale: SaleId, user: &UserId) -> bool {
        self.size.load(Ordering::Relaxed) > 0 && self.members().latest.contains_key(&self.hash(sale, user))
    }

    pub fn add(&self, sale: SaleId, user: &UserId) {
        let member = self.hash(sale, user);
        let mut members = self.members();
        members.entries += 1;
        let entry = members.entries;
        members.latest.insert(member, entry);
        members.by_age.push_back((member, entry));
        if members.by_age.len() > CAPACITY
            && let Some((oldest, entry)) = members.by_age.pop_front()
            && members.latest.get(&oldest) == Some(&entry)
        {
            members.latest.remove(&oldest);
        }
        self.size.store(members.latest.len(), Ordering::Relaxed);
    }

    /// The stock has answered this user.
    pub fn remove(&self, sale: SaleId, user: &UserId) {
        if self.size.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut members = self.members();
        members.latest.remove(&self.hash(sale, user));
        self.size.store(members.latest.len(), Ordering::Relaxed);
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
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
        let unconfirmed = UnconfirmedBuyers::default();
        let sale = SaleId::new(1).expect("a sale id");
        let user = |n: usize| format!("u{n}").parse::<UserId>().expect("a user id");
        assert!(!unconfirmed.contains(sale, &user(0)));
        for n in 0..=CAPACITY {
            unconfirmed.add(sale, &user(n));
        }
        assert!(!unconfirmed.contains(sale, &user(0)), "the oldest has given way");
        assert!(unconfirmed.contains(sale, &user(CAPACITY)));
        assert_eq!(unconfirmed.size.load(Ordering::Relaxed), CAPACITY);
    }

    #[test]
    fn who_was_answered_is_forgotten_and_may_come_into_doubt_again() {
        let unconfirmed = UnconfirmedBuyers::default();
        let sale = SaleId::new(1).expect("a sale id");
        let user = |n: usize| format!("u{n}").parse::<UserId>().expect("a user id");
        unconfirmed.add(sale, &user(0));
        unconfirmed.remove(sale, &user(0));
        assert!(!unconfirmed.contains(sale, &user(0)));
        assert_eq!(unconfirmed.size.load(Ordering::Relaxed), 0);
        unconfirmed.add(sale, &user(0));
        // The entry of the first doubt is the oldest; that it goes says nothing of the second.
        for n in 1..CAPACITY {
            unconfirmed.add(sale, &user(n));
        }
        assert!(unconfirmed.contains(sale, &user(0)));
        unconfirmed.add(sale, &user(CAPACITY));
        assert!(!unconfirmed.contains(sale, &user(0)));
    }
}
