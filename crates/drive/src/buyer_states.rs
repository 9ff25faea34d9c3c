//! Where each buyer stands, from the first click to the last order.
//!
//! In: every answer, and every order that ended. Decided: who holds an order that somebody must see to its end, who
//! waits for units, and who has gone. Guaranteed: an order is handed out for its life once, and a buyer who waits is
//! asked in by one look at a time.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::answer::{Answer, Refusal};
use seckill::api::problem::Code;
use seckill::domain::OrderId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BuyerState {
    /// Has heard nothing that decides.
    Undecided,
    /// Was turned away at the door or outside the hours: nobody spoke of units.
    HeldBack,
    /// The last word was that too few units are left.
    WantsUnit,
    /// Was asked in and waits for the answer; did the last word before speak of units?
    Retrying {
        wants_unit: bool,
    },
    HoldsOrder(OrderId),
    /// Wants nothing more, or may not.
    Done,
}

/// The states of one crowd.
pub struct BuyerStates(Mutex<Inner>);

struct Inner {
    of: Vec<BuyerState>,
    closed: HashSet<OrderId>,
    /// Buyers who had an order before.
    served: HashSet<u32>,
    /// Where the next look for waiting buyers begins, so that everybody gets a turn.
    next: usize,
}

impl BuyerStates {
    pub fn new(buyers: usize) -> Self {
        let of = vec![BuyerState::Undecided; buyers];
        Self(Mutex::new(Inner { of, closed: HashSet::new(), served: HashSet::new(), next: 0 }))
    }

    /// Takes in an answer to a purchase. Returns an order that nobody has seen yet.
    pub fn record_answer(&self, buyer: u32, answer: &Answer) -> Option<OrderId> {
        match answer {
            Answer::Accepted(order) | Answer::Refused(Refusal { order: Some(order), .. }) => {
                self.record_order(buyer, *order)
            }
            Answer::Refused(refusal) => {
                self.record_refusal(buyer, refusal);
                None
            }
            Answer::Undecided { .. } | Answer::NotSent(_) | Answer::Unexpected(_) => None,
        }
    }

    /// The buyer holds this order. Returns it if that is new.
    pub fn record_order(&self, buyer: u32, order: OrderId) -> Option<OrderId> {
        let mut inner = self.lock();
        let closed = inner.closed.contains(&order);
        let state = &mut inner.of[buyer as usize];
        if closed {
            // Its claim goes in a moment; until then the stock takes the buyer for served.
            if matches!(state, BuyerState::Retrying { .. }) {
                *state = BuyerState::WantsUnit;
            }
            return None;
        }
        let before = std::mem::replace(state, BuyerState::HoldsOrder(order));
        (before != BuyerState::HoldsOrder(order)).then_some(order)
    }

    fn record_refusal(&self, buyer: u32, refusal: &Refusal) {
        let state = &mut self.lock().of[buyer as usize];
        // A click of a buyer who holds an order by another one decides nothing.
        if !matches!(state, BuyerState::HoldsOrder(_) | BuyerState::Done) {
            *state = match () {
                () if refusal.is(Code::SoldOut) || refusal.is(Code::NotEnoughLeft) => BuyerState::WantsUnit,
                () if refusal.is(Code::RateLimited) => BuyerState::HeldBack,
                () if refusal.is(Code::SaleNotStarted) || refusal.is(Code::SalePaused) => BuyerState::HeldBack,
                () => BuyerState::Done,
            };
        }
    }

    /// A buyer who was asked in is back, with or without a decision.
    pub fn end_retry(&self, buyer: u32) {
        let state = &mut self.lock().of[buyer as usize];
        if let BuyerState::Retrying { wants_unit } = *state {
            *state = if wants_unit { BuyerState::WantsUnit } else { BuyerState::HeldBack };
        }
    }

    /// The buyer has an order now. Whether it is not the first one.
    pub fn mark_served(&self, buyer: u32) -> bool {
        !self.lock().served.insert(buyer)
    }

    /// Whether the buyer holds an order, or had one and wants no more.
    pub fn is_decided(&self, buyer: u32) -> bool {
        matches!(self.lock().of[buyer as usize], BuyerState::HoldsOrder(_) | BuyerState::Done)
    }

    /// An order was paid.
    pub fn order_paid(&self, buyer: u32) {
        self.lock().of[buyer as usize] = BuyerState::Done;
    }

    /// An order holds no units any more; `wants` another one, or goes.
    pub fn order_closed(&self, buyer: u32, order: OrderId, wants: bool) {
        let mut inner = self.lock();
        inner.closed.insert(order);
        let state = &mut inner.of[buyer as usize];
        if *state == BuyerState::HoldsOrder(order) {
            *state = if wants { BuyerState::WantsUnit } else { BuyerState::Done };
        }
    }

    /// Asks in at most so many of those who wait.
    pub fn start_retries(&self, most: usize) -> Vec<u32> {
        let mut inner = self.lock();
        let (all, from) = (inner.of.len(), inner.next);
        let mut asked = Vec::new();
        for step in 0..all {
            let buyer = (from + step) % all;
            if asked.len() == most {
                inner.next = buyer;
                break;
            }
            if matches!(inner.of[buyer], BuyerState::WantsUnit | BuyerState::HeldBack) {
                inner.of[buyer] = BuyerState::Retrying { wants_unit: inner.of[buyer] == BuyerState::WantsUnit };
                asked.extend(u32::try_from(buyer));
            }
        }
        asked
    }

    /// Buyers who would take a unit.
    pub fn waiting(&self) -> usize {
        let waits = |state: &&BuyerState| {
            matches!(state, BuyerState::WantsUnit | BuyerState::HeldBack | BuyerState::Retrying { .. })
        };
        self.lock().of.iter().filter(waits).count()
    }

    /// Those of them whose last word was that too few units are left.
    pub fn wanting(&self) -> usize {
        self.lock().of.iter().filter(|state| **state == BuyerState::WantsUnit).count()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seckill::domain::SaleId;

    fn order(n: u64) -> OrderId {
        OrderId::mint(SaleId::new(1).expect("a sale id"), 1_700_000_000, n)
    }

    fn refused(code: Code, order: Option<OrderId>) -> Answer {
        Answer::Refused(Refusal { code: code.name(), order })
    }

    #[test]
    fn an_order_is_handed_out_once_however_its_buyer_hears_of_it() {
        let states = BuyerStates::new(1);
        assert_eq!(states.record_answer(0, &refused(Code::AlreadyPurchased, Some(order(1)))), Some(order(1)));
        assert_eq!(states.record_answer(0, &Answer::Accepted(order(1))), None);
        assert_eq!(states.record_answer(0, &refused(Code::SoldOut, None)), None);
        assert_eq!((states.waiting(), states.start_retries(9)), (0, vec![]), "who holds an order waits for nothing");
    }

    #[test]
    fn a_buyer_who_cancelled_and_wants_another_one_waits_until_the_old_claim_is_gone() {
        let states = BuyerStates::new(1);
        states.record_answer(0, &Answer::Accepted(order(1)));
        assert!(!states.mark_served(0));
        states.order_closed(0, order(1), true);
        assert_eq!((states.start_retries(9), states.start_retries(9)), (vec![0], vec![]));
        assert_eq!(states.record_answer(0, &refused(Code::AlreadyPurchased, Some(order(1)))), None);
        assert_eq!((states.wanting(), states.start_retries(9)), (1, vec![0]));
        assert_eq!(states.record_answer(0, &Answer::Accepted(order(2))), Some(order(2)));
        assert!(states.mark_served(0));
        assert_eq!(states.waiting(), 0);
    }

    #[test]
    fn only_who_was_told_that_too_little_is_left_counts_as_wanting() {
        let states = BuyerStates::new(4);
        states.record_answer(0, &refused(Code::SoldOut, None));
        states.record_answer(1, &refused(Code::RateLimited, None));
        states.record_answer(2, &refused(Code::Blocked, None));
        assert_eq!((states.wanting(), states.waiting()), (1, 2));
    }

    #[test]
    fn everybody_who_waits_gets_a_turn() {
        let states = BuyerStates::new(5);
        for buyer in 0..5 {
            states.record_answer(buyer, &refused(Code::SoldOut, None));
        }
        let mut turns = Vec::new();
        for _ in 0..3 {
            for buyer in states.start_retries(2) {
                turns.push(buyer);
                states.record_answer(buyer, &refused(Code::SoldOut, None));
            }
        }
        assert_eq!(turns, [0, 1, 2, 3, 4, 0]);
    }
}
