//! What Redis holds of a sale, for the reconciler: every claim with its age, and what it takes to publish it again.

use std::collections::HashMap;

use super::codec::{decode_claim, decode_request};
use super::{Error, Stock, keys};
use crate::domain::{OrderId, OrderMessage, RequestKey, SaleId, UserId};

/// The sale as it stands in Redis, selling or not.
#[derive(Clone, Debug)]
pub struct Holdings {
    pub generation: i64,
    /// Units that this Redis knows to have been given to it.
    pub total: u32,
    /// The clock of Redis, milliseconds since the Unix epoch.
    pub now_ms: i64,
    pub claims: Vec<ClaimRecord>,
}

/// A claim.
#[derive(Clone, Debug)]
pub struct ClaimRecord {
    pub user: UserId,
    pub order: OrderId,
    pub quantity: u32,
    pub accepted_ms: i64,
}

/// Fields of the sale, seconds and microseconds, claims.
type Reply = (Vec<Option<String>>, (i64, i64), HashMap<String, String>);

impl Stock {
    /// Everything that Redis holds of a sale, read atomically. `None`: nothing that ever sold.
    pub async fn holdings(&self, sale: SaleId) -> Result<Option<Holdings>, Error> {
        let reply: Reply = redis::pipe()
            .atomic()
            .cmd("HMGET")
            .arg(keys::sale(sale))
            .arg(&["remaining", "generation", "total"])
            .cmd("TIME")
            .hgetall(keys::claims(sale))
            .query_async(&mut self.redis.clone())
            .await?;
        let (fields, (seconds, micros), claims) = reply;
        let field = |at: usize| fields.get(at).and_then(Option::as_deref);
        if field(0).is_none() {
            return Ok(None);
        }
        let broken = || Error::Reply(format!("the hash of sale {sale}: {fields:?}"));
        let claims = claims.into_iter().map(|(user, claim)| {
            let record = decode_claim(&user, &claim);
            record.ok_or_else(|| Error::Reply(format!("claim of {user}: {claim}")))
        });
        Ok(Some(Holdings {
            generation: field(1).and_then(|text| text.parse().ok()).ok_or_else(broken)?,
            total: field(2).and_then(|text| text.parse().ok()).ok_or_else(broken)?,
            now_ms: seconds * 1000 + micros / 1000,
            claims: claims.collect::<Result<_, _>>()?,
        }))
    }

    /// These claims as the messages that they were accepted as, to be published again.
    pub async fn messages(
        &self,
        sale: SaleId,
        generation: i64,
        claims: &[ClaimRecord],
    ) -> Result<Vec<OrderMessage>, Error> {
        let command = redis::cmd("HGETALL").arg(keys::requests(sale)).to_owned();
        let requests: HashMap<String, String> = command.query_async(&mut self.redis.clone()).await?;
        let by_order: HashMap<OrderId, RequestKey> =
            requests.iter().filter_map(|(field, value)| decode_request(field, value)).collect();
        let message = |claim: &ClaimRecord| OrderMessage {
            id: claim.order,
            sale,
            user: claim.user.clone(),
            quantity: claim.quantity,
            generation,
            accepted_ms: claim.accepted_ms,
            request: by_order.get(&claim.order).cloned(),
        };
        Ok(claims.iter().map(message).collect())
    }

    /// Entries that Kafka has not confirmed.
    pub async fn outbox_length(&self, sale: SaleId) -> Result<u64, Error> {
        Ok(redis::cmd("XLEN").arg(keys::outbox(sale)).query_async(&mut self.redis.clone()).await?)
    }
}
