//! What the polling thread hands to the writer: orders to write, messages for the dead letters, and the offsets to
//! commit once both are done.

use std::collections::BTreeMap;

use rdkafka::Message;
use rdkafka::message::BorrowedMessage;

use crate::domain::OrderMessage;
use crate::kafka::message;

/// Offsets to commit: per partition, the first one that is not done.
pub(super) type Offsets = BTreeMap<i32, i64>;

/// A message as it came, kept until it is a row or a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Raw {
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) key: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

/// Messages of several partitions, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) orders: Vec<OrderMessage>,
    /// Where each order came from, in the same order.
    pub(super) origins: Vec<Raw>,
    /// Messages that are not orders, each with the reason.
    pub(super) poison: Vec<(Raw, String)>,
    pub(super) offsets: Offsets,
    /// The assignment under which it was read. Its offsets mean nothing to a later one.
    pub(super) assignment: u64,
}

impl Batch {
    pub(super) fn of(assignment: u64) -> Self {
        Self { assignment, ..Self::default() }
    }

    pub(super) fn add(&mut self, message: &BorrowedMessage<'_>) {
        let raw = Raw {
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().unwrap_or_default().to_vec(),
            payload: message.payload().unwrap_or_default().to_vec(),
        };
        self.push(raw);
    }

    pub(super) fn push(&mut self, raw: Raw) {
        self.offsets.insert(raw.partition, raw.offset + 1);
        match message::decode(&raw.payload) {
            Ok(order) => {
                self.orders.push(order);
                self.origins.push(raw);
            }
            Err(reason) => self.poison.push((raw, reason.to_string())),
        }
    }

    /// Messages, good and bad.
    pub(super) fn len(&self) -> usize {
        self.orders.len() + self.poison.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Moves orders that can never become rows to the poison.
    pub(super) fn reject_where(&mut self, invalid: impl Fn(&OrderMessage) -> bool, reason: &str) {
        let pairs = std::mem::take(&mut self.orders).into_iter().zip(std::mem::take(&mut self.origins));
        for (order, raw) in pairs {
            if invalid(&order) {
                self.poison.push((raw, reason.to_owned()));
            } else {
                self.orders.push(order);
                self.origins.push(raw);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{OrderId, SaleId};

    fn raw(partition: i32, offset: i64, sale: i32) -> Raw {
        let sale = SaleId::new(sale).expect("a sale id");
        let order = OrderMessage {
            id: OrderId::mint(sale, 0, 1),
            sale,
            user: "ada".parse().expect("a user id"),
            quantity: 1,
            generation: 1,
            accepted_ms: 0,
            request: None,
        };
        Raw { partition, offset, key: b"ada".to_vec(), payload: message::encode(&order) }
    }

    #[test]
    fn offsets_point_behind_the_last_message_of_each_partition_poison_included() {
        let mut batch = Batch::of(1);
        batch.push(raw(0, 4, 7));
        batch.push(raw(1, 9, 7));
        batch.push(Raw { payload: b"garbage".to_vec(), ..raw(0, 5, 7) });
        assert_eq!(batch.offsets, Offsets::from([(0, 6), (1, 10)]));
        assert_eq!((batch.orders.len(), batch.poison.len()), (2, 1));
    }

    #[test]
    fn rejecting_a_sale_takes_its_orders_and_no_others() {
        let mut batch = Batch::of(1);
        for (offset, sale) in [(0, 7), (1, 8), (2, 7), (3, 9)] {
            batch.push(raw(0, offset, sale));
        }
        batch.reject_where(|order| order.sale.get() == 7, "no such sale");
        let left: Vec<_> = batch.origins.iter().map(|raw| raw.offset).collect();
        assert_eq!(left, [1, 3]);
        assert_eq!(batch.orders.iter().map(|order| order.sale.get()).collect::<Vec<_>>(), [8, 9]);
        assert_eq!(batch.poison.iter().map(|(raw, _)| raw.offset).collect::<Vec<_>>(), [0, 2]);
    }
}
