//! The state of each buyer, from the first click to the last order.
//!
//! In: every answer, and every order that ended. Decided: whose order has to be followed, who waits for units, and who
//! is done. Guaranteed: an order is handed out once to be followed, and a buyer has at most one retry at a time.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::answer::{Answer, Refusal};
use seckill::api::problem::Code;
use seckill::domain::OrderId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BuyerState {
    /// No answer has decided anything.
    Undecided,
    /// Refused by the rate limit, or because the sale is not open: nothing was said about units.
    HeldBack,
    /// The last answer was that too few units are left.
    WantsUnit,
    /// A retry is running; `wants_unit`: the state before it was [`BuyerState::WantsUnit`].
    Retrying {
        wants_unit: bool,
    },
    HoldsOrder(OrderId),
    /// Wants no more, or may not buy.
    Done,
}

/// The states of all buyers of one sale.
pub struct BuyerStates(Mutex<Inner>);

struct Inner {
    states: Vec<BuyerState>,
    closed: HashSet<OrderId>,
    /// Buyers who had an order before.
    served: HashSet<u32>,
    /// Where the next search for waiting buyers begins, so that everybody gets a turn.
    next: usize,
}

impl BuyerStates {
    pub fn new(buyers: usize) -> Self {
        let states = vec![BuyerState::Undecided; buyers];
        Self(Mutex::new(Inner { states, closed: HashSet::new(), served: HashSet::new(), next: 0 }))
    }

    /// Records an answer to a purchase. Returns its order if that is new.
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
        let state = &mut inner.states[buyer as usize];
        if closed {
            // Its claim is released in a moment; until then the stock still counts the buyer as served.
            if matches!(state, BuyerState::Retrying { .. }) {
                *state = BuyerState::WantsUnit;
            }
            return None;
        }
        let before = std::mem::replace(state, BuyerState::HoldsOrder(order));
        (before != BuyerState::HoldsOrder(order)).then_some(order)
    }

    fn record_refusal(&self, buyer: u32, refusal: &Refusal) {
        let state = &mut self.lock().states[buyer as usize];
        // A refused click changes nothing for a buyer whose other click got an order.
        if !matches!(state, BuyerState::HoldsOrder(_) | BuyerState::Done) {
            let is_one_of = |codes: &[Code]| codes.iter().any(|code| refusal.is(*code));
            *state = if is_one_of(&[Code::SoldOut, Code::NotEnoughLeft]) {
                BuyerState::WantsUnit
            } else if is_one_of(&[Code::RateLimited, Code::SaleNotStarted, Code::SalePaused]) {
                BuyerState::HeldBack
            } else {
                BuyerState::Done
            };
        }
    }

    /// A retry ended, with or without a decision.
    pub fn end_retry(&self, buyer: u32) {
        let state = &mut self.lock().states[buyer as usize];
        if let BuyerState::Retrying { wants_unit } = *state {
            *state = if wants_unit { BuyerState::WantsUnit } else { BuyerState::HeldBack };
        }
    }

    /// The buyer has an order now. Returns whether it had one before.
    pub fn mark_served(&self, buyer: u32) -> bool {
        !self.lock().served.insert(buyer)
    }

    /// Whether the buyer holds an order, or had one and wants no more.
    pub fn is_decided(&self, buyer: u32) -> bool {
        matches!(self.lock().states[buyer as usize], BuyerState::HoldsOrder(_) | BuyerState::Done)
    }

    /// An order was paid.
    pub fn order_paid(&self, buyer: u32) {
        self.lock().states[buyer as usize] = BuyerState::Done;
    }

    /// An order was closed and its units are free; the buyer `wants` another one, or is done.
    pub fn order_closed(&self, buyer: u32, order: OrderId, wants: bool) {
        let mut inner = self.lock();
        inner.closed.insert(order);
        let state = &mut inner.states[buyer as usize];
        if *state == BuyerState::HoldsOrder(order) {
            *state = if wants { BuyerState::WantsUnit } else { BuyerState::Done };
        }
    }

    /// Picks at most so many of the buyers who wait, for a retry each.
    pub fn start_retries(&self, most: usize) -> Vec<u32> {
        let mut inner = self.lock();
        let (all, from) = (inner.states.len(), inner.next);
        let mut picked = Vec::new();
        for step in 0..all {
            let buyer = (from + step) % all;
            if picked.len() == most {
                inner.next = buyer;
                break;
            }
            if matches!(inner.states[buyer], BuyerState::WantsUnit | BuyerState::HeldBack) {
                inner.states[buyer] = BuyerState::Retrying { wants_unit: inner.states[buyer] == BuyerState::WantsUnit };
                picked.extend(u32::try_from(buyer));
            }
        }
        picked
    }

    /// Buyers who would take a unit.
    pub fn waiting(&self) -> usize {
        let waits = |state: &&BuyerState| {
            matches!(state, BuyerState::WantsUnit | BuyerState::HeldBack | BuyerState::Retrying { .. })
        };
        self.lock().states.iter().filter(waits).count()
    }

    /// Those of them who were told that too few units are left.
    pub fn wanting(&self) -> usize {
        self.lock().states.iter().filter(|state| **state == BuyerState::WantsUnit).count()
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
    fn an_order_is_handed_out_once_whichever_answer_names_it() {
        let states = BuyerStates::new(1);
        assert_eq!(states.record_answer(0, &refused(Code::AlreadyPurchased, Some(order(1)))), Some(order(1)));
        assert_eq!(states.record_answer(0, &Answer::Accepted(order(1))), None);
        assert_eq!(states.record_answer(0, &refused(Code::SoldOut, None)), None);
        assert_eq!((states.waiting(), states.start_retries(9)), (0, vec![]), "a buyer with an order waits for nothing");
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
    fn only_buyers_who_were_told_that_too_little_is_left_count_as_wanting() {
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
