//! Two jobs on claims: what has no row is published again, what is closed is released.

use super::{Error, Reconciler};
use crate::domain::{OrderMessage, SaleId};
use crate::kafka::{Delivery, Record, message};
use crate::stock::ClaimRecord;
use crate::stock::script::ReleaseCode;

impl Reconciler {
    /// Releases claims by order id, which frees nothing that the buyer has bought since.
    pub(super) async fn release(&self, sale: SaleId, claims: &[ClaimRecord]) -> Result<u64, Error> {
        let mut released = 0;
        for held in claims {
            match self.stock.release(sale, &held.user, held.order).await? {
                ReleaseCode::Released => released += 1,
                ReleaseCode::Overfull => {
                    tracing::error!(%sale, order = %held.order, "a release would exceed the total: not done");
                }
                ReleaseCode::NotHeld | ReleaseCode::Cold => {}
            }
        }
        Ok(released)
    }

    /// Publishes accepted orders again at the generation that accepted them. The ledger takes each once.
    pub(super) async fn republish(&self, sale: SaleId, generation: i64, claims: &[ClaimRecord]) -> Result<u64, Error> {
        if claims.is_empty() {
            return Ok(0);
        }
        let messages = self.stock.messages(sale, generation, claims).await?;
        tracing::warn!(%sale, orders = messages.len(), "accepted orders without a row are published again");
        let topic: std::sync::Arc<str> = self.kafka.topic.as_str().into();
        let delivery = |order: &OrderMessage| {
            let key = order.user.as_str().as_bytes().to_vec();
            let record = Record { topic: topic.clone(), key, payload: message::encode(order), headers: Vec::new() };
            Delivery::new(record, ())
        };
        let mut deliveries: Vec<_> = messages.iter().map(delivery).collect();
        let sent = self.producer.send(&mut deliveries).await;
        let acked = self.producer.await_acks(&mut deliveries).await;
        // What failed still has its claim, and is found again by the next run.
        if let Err(error) = sent.and(acked) {
            self.producer.replace_if_broken(&self.kafka.topic, &error).await;
            return Err(Error::Kafka(error.into()));
        }
        Ok(deliveries.len() as u64)
    }
}
