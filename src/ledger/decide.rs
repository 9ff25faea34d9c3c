//! What becomes of each message of one sale, as a pure function.
//!
//! In: the generation and the units of the stock row, the messages in their order, and what the ledger already
//! knows about each of them, all from one snapshot. Decided: create, reject or skip, one by one. Guaranteed: the
//! decisions are right together for as long as the stock row keeps its version, because everything that changes
//! which orders are live raises it. The write checks that version.

use std::collections::HashSet;

use crate::domain::{OrderId, OrderMessage, Rejection};

/// A message beside what the ledger knows about it.
#[derive(Clone, Copy, Debug)]
pub struct Fact<'a> {
    pub message: &'a OrderMessage,
    /// A row with this order id exists.
    pub known: bool,
    /// Its user holds a live order in the sale.
    pub holds_live: bool,
    /// Another row that is not superseded carries its user's request key.
    pub key_taken: bool,
}

/// What becomes of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowDecision {
    /// A row with status `created`, which takes the message's quantity.
    Create,
    /// A final row with status `rejected`. With `keyless` it leaves out the request key, whose place is taken.
    Reject { reason: Rejection, keyless: bool },
    /// A redelivery: its row exists, or comes earlier in this batch.
    Skip,
}

/// What becomes of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// One for each message, in their order.
    pub rows: Vec<RowDecision>,
    /// Units that the created orders take, at most what was available.
    pub units: i64,
}

impl Decision {
    /// How many rows have to be inserted.
    pub fn row_count(&self) -> usize {
        self.rows.iter().filter(|row| **row != RowDecision::Skip).count()
    }
}

/// A message was accepted at a generation that this ledger does not know: PostgreSQL is older than Redis. A
/// rejection would break the promise that its buyer was given, so nothing is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    pub message_generation: i64,
}

/// Decides a batch of one sale whose stock row has `generation`, and `available` units of pool `redis`.
pub fn decide(generation: i64, available: i64, facts: &[Fact<'_>]) -> Result<Decision, Ahead> {
    let mut batch = Batch { generation, left: available, ..Batch::default() };
    let rows = facts.iter().map(|fact| batch.decide_row(fact)).collect::<Result<_, _>>()?;
    Ok(Decision { rows, units: available - batch.left })
}

/// What the messages before the present one have used up.
#[derive(Default)]
struct Batch<'a> {
    generation: i64,
    left: i64,
    ids: HashSet<OrderId>,
    buyers: HashSet<&'a str>,
    keys: HashSet<(&'a str, &'a str)>,
}

impl<'a> Batch<'a> {
    fn decide_row(&mut self, fact: &Fact<'a>) -> Result<RowDecision, Ahead> {
        let message = fact.message;
        if fact.known || !self.ids.insert(message.id) {
            return Ok(RowDecision::Skip);
        }
        if message.generation > self.generation {
            return Err(Ahead { message_generation: message.generation });
        }
        if message.generation < self.generation {
            return Ok(RowDecision::Reject { reason: Rejection::Superseded, keyless: false });
        }
        let user = message.user.as_str();
        // Whatever becomes of this message, its row takes the key's place for those that follow.
        let key_taken = match &message.request {
            Some(request) => !self.keys.insert((user, &request.key)) || fact.key_taken,
            None => false,
        };
        let quantity = i64::from(message.quantity);
        Ok(if key_taken || fact.holds_live || self.buyers.contains(user) {
            RowDecision::Reject { reason: Rejection::AlreadyPurchased, keyless: key_taken }
        } else if quantity > self.left {
            // An order is whole or not at all; a smaller one behind it may still fit.
            RowDecision::Reject { reason: Rejection::SoldOut, keyless: false }
        } else {
            self.left -= quantity;
            self.buyers.insert(user);
            RowDecision::Create
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::{RequestKey, SaleId};

    const SOLD_OUT: RowDecision = RowDecision::Reject { reason: Rejection::SoldOut, keyless: false };
    const ALREADY: RowDecision = RowDecision::Reject { reason: Rejection::AlreadyPurchased, keyless: false };
    const ALREADY_KEYLESS: RowDecision = RowDecision::Reject { reason: Rejection::AlreadyPurchased, keyless: true };
    const SUPERSEDED: RowDecision = RowDecision::Reject { reason: Rejection::Superseded, keyless: false };

    fn message(number: u64, user: &str, quantity: u32, generation: i64, key: Option<&str>) -> OrderMessage {
        let sale = SaleId::new(1).expect("a sale id");
        let request = key.map(|key| RequestKey { key: key.to_owned(), fingerprint: "f".to_owned() });
        OrderMessage {
            id: OrderId::mint(sale, 0, number),
            sale,
            user: user.parse().expect("a user id"),
            quantity,
            generation,
            accepted_ms: 0,
            request,
        }
    }

    fn fresh(message: &OrderMessage) -> Fact<'_> {
        Fact { message, known: false, holds_live: false, key_taken: false }
    }

    fn rows(available: i64, messages: &[OrderMessage]) -> Vec<RowDecision> {
        let facts: Vec<_> = messages.iter().map(fresh).collect();
        decide(1, available, &facts).expect("nothing is ahead").rows
    }

    #[test]
    fn a_large_order_that_does_not_fit_leaves_room_for_a_smaller_one() {
        let batch = [message(1, "ada", 1, 1, None), message(2, "bob", 3, 1, None), message(3, "cyd", 2, 1, None)];
        assert_eq!(rows(3, &batch), [RowDecision::Create, SOLD_OUT, RowDecision::Create]);
    }

    #[test]
    fn the_same_order_twice_in_a_batch_is_one_row() {
        let twice = message(1, "ada", 1, 1, None);
        assert_eq!(rows(9, &[twice.clone(), twice]), [RowDecision::Create, RowDecision::Skip]);
    }

    #[test]
    fn the_second_order_of_a_user_is_already_purchased_even_when_nothing_is_left() {
        let batch = [message(1, "ada", 1, 1, None), message(2, "ada", 1, 1, None)];
        assert_eq!(rows(1, &batch), [RowDecision::Create, ALREADY]);
    }

    #[test]
    fn a_buyer_who_was_rejected_for_want_of_units_has_no_place_to_lose() {
        let batch = [message(1, "ada", 5, 1, None), message(2, "ada", 1, 1, None)];
        assert_eq!(rows(2, &batch), [SOLD_OUT, RowDecision::Create]);
    }

    #[test]
    fn a_taken_request_key_is_left_out_of_the_second_row() {
        let batch = [message(1, "ada", 1, 1, Some("k")), message(2, "ada", 1, 1, Some("k"))];
        assert_eq!(rows(9, &batch), [RowDecision::Create, ALREADY_KEYLESS]);

        let closed_before = message(3, "bob", 1, 1, Some("k"));
        let fact = Fact { key_taken: true, ..fresh(&closed_before) };
        assert_eq!(decide(1, 9, &[fact]).map(|decision| decision.rows), Ok(vec![ALREADY_KEYLESS]));
    }

    #[test]
    fn an_older_generation_is_superseded_and_takes_neither_units_nor_places() {
        let batch = [message(1, "ada", 1, 0, Some("k")), message(2, "ada", 1, 1, Some("k"))];
        assert_eq!(rows(1, &batch), [SUPERSEDED, RowDecision::Create]);
    }

    #[test]
    fn a_newer_generation_stops_the_whole_batch_unless_its_row_exists() {
        let batch = [message(1, "ada", 1, 1, None), message(2, "bob", 1, 2, None)];
        let mut facts: Vec<_> = batch.iter().map(fresh).collect();
        assert_eq!(decide(1, 9, &facts), Err(Ahead { message_generation: 2 }));
        facts[1].known = true;
        assert_eq!(decide(1, 9, &facts).map(|decision| decision.units), Ok(1));
    }

    /// Few ids, users and keys, so that they collide.
    fn any_fact() -> impl Strategy<Value = (OrderMessage, bool, bool, bool)> {
        let key = proptest::option::of(prop_oneof![Just("k"), Just("l")]);
        let user = prop_oneof![Just("ada"), Just("bob"), Just("cyd"), Just("dan")];
        let flags = (proptest::bool::weighted(0.1), proptest::bool::weighted(0.1), proptest::bool::weighted(0.1));
        (0..12_u64, user, 1..5_u32, 0..2_i64, key, flags).prop_map(|(id, user, quantity, generation, key, f)| {
            (message(id, user, quantity, generation, key), f.0, f.1, f.2)
        })
    }

    proptest! {
        #[test]
        fn no_batch_oversells_or_gives_a_user_two_orders(
            facts in proptest::collection::vec(any_fact(), 0..24), available in 0..12_i64,
        ) {
            let fact = |(message, known, holds_live, key_taken)| Fact { message, known, holds_live, key_taken };
            let facts: Vec<_> = facts.iter().map(|(m, k, h, t)| fact((m, *k, *h, *t))).collect();
            let decision = decide(1, available, &facts).expect("nothing is ahead");
            prop_assert_eq!(decision.rows.len(), facts.len());

            let (mut left, mut rows, mut keys, mut buyers) = (available, HashSet::new(), HashSet::new(), HashSet::new());
            for (fact, decided) in facts.iter().zip(&decision.rows) {
                let message = fact.message;
                let quantity = i64::from(message.quantity);
                // One row per id that had none.
                let has_row = fact.known || rows.contains(&message.id);
                prop_assert_eq!(has_row, *decided == RowDecision::Skip);
                if has_row {
                    continue;
                }
                rows.insert(message.id);
                match decided {
                    RowDecision::Create => {
                        prop_assert!(message.generation == 1 && !fact.holds_live && buyers.insert(&message.user));
                        left -= quantity;
                    }
                    // Only if it truly did not fit into what was left at its turn.
                    RowDecision::Reject { reason: Rejection::SoldOut, .. } => prop_assert!(quantity > left),
                    _ => {}
                }
                // No two rows that the unique index on request keys would refuse.
                let unindexed = matches!(
                    decided,
                    RowDecision::Reject { keyless: true, .. } | RowDecision::Reject { reason: Rejection::Superseded, .. }
                );
                if let (Some(request), false) = (&message.request, unindexed) {
                    prop_assert!(!fact.key_taken && keys.insert((&message.user, &request.key)));
                }
            }
            prop_assert!(left >= 0);
            prop_assert_eq!(decision.units, available - left);
            prop_assert_eq!(decision.row_count(), rows.len());
        }
    }
}
