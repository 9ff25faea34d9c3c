//! One call of `purchase.lua`: a batch of purchases in, an answer for each out.

use redis::FromRedisValue;
use time::OffsetDateTime;

use super::script::{PURCHASE, PurchaseCode};
use super::{Error, Stock, keys};
use crate::domain::{Accepted, OrderId, Outcome, Purchase, Refusal, SaleId, StockUpdate, StockVersion};

/// Most purchases that go into one call: the script holds Redis for the whole of it.
pub const MAX_BATCH: usize = 256;

/// What one call of the script answered.
#[derive(Clone, Debug)]
pub struct Answers {
    /// `None`: this Redis cannot prove that it may sell.
    pub update: Option<StockUpdate>,
    /// One for each purchase, in order.
    pub outcomes: Vec<Outcome>,
}

impl Stock {
    /// Runs the script once. An error that may have come after the writes says so by [`Error::wrote_nothing`].
    ///
    /// At most [`MAX_BATCH`] purchases; none is a probe.
    pub async fn purchase_batch(&self, sale: SaleId, batch: &[Purchase]) -> Result<Answers, Error> {
        let mut call = PURCHASE.call(&keys::all(sale));
        call.arg(self.retention.as_millis() as u64);
        for purchase in batch {
            let (key, fingerprint) =
                purchase.request.as_ref().map_or(("", ""), |request| (&request.key, &request.fingerprint));
            call.arg(purchase.generation)
                .arg(purchase.order.to_string())
                .arg(purchase.user.as_str())
                .arg(purchase.quantity)
                .arg(key)
                .arg(fingerprint);
        }
        let reply: Vec<redis::Value> = call.run(&mut self.redis.clone()).await?;
        decode(&reply, batch).ok_or_else(|| Error::Reply(format!("purchase: {reply:?}")))
    }

    /// Reads version and units of a sale without buying. `None`: this Redis cannot prove that it may sell.
    pub async fn probe(&self, sale: SaleId) -> Result<Option<StockUpdate>, Error> {
        Ok(self.purchase_batch(sale, &[]).await?.update)
    }
}

/// Header first, then a pair for each purchase.
const HEADER: usize = 4;

fn decode(reply: &[redis::Value], batch: &[Purchase]) -> Option<Answers> {
    if reply.len() != HEADER + 2 * batch.len() {
        return None;
    }
    let number = |at: usize| i64::from_redis_value_ref(&reply[at]).ok();
    let selling = number(0)? == 1;
    let update =
        StockUpdate { version: StockVersion::new(number(1)?, number(2)?), remaining: u32::try_from(number(3)?).ok()? };
    let pairs = reply[HEADER..].chunks_exact(2).zip(batch);
    let outcomes = pairs.map(|(pair, purchase)| {
        let code = PurchaseCode::from_code(i64::from_redis_value_ref(&pair[0]).ok()?)?;
        outcome(code, detail(&pair[1])?, purchase)
    });
    Some(Answers { update: selling.then_some(update), outcomes: outcomes.collect::<Option<_>>()? })
}

fn detail(value: &redis::Value) -> Option<&str> {
    match value {
        redis::Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

fn outcome(code: PurchaseCode, detail: &str, purchase: &Purchase) -> Option<Outcome> {
    let accepted = |order, quantity, replayed| Outcome::Accepted(Accepted { order, quantity, replayed });
    let refused = Outcome::Refused;
    let outcome = match code {
        PurchaseCode::Cold => Outcome::Cold,
        PurchaseCode::Accepted => accepted(purchase.order, purchase.quantity, false),
        PurchaseCode::Replayed => {
            let (order, units) = detail.split_once('|')?;
            accepted(order.parse::<OrderId>().ok()?, units.parse().ok()?, true)
        }
        PurchaseCode::Retried => accepted(purchase.order, detail.parse().ok()?, true),
        PurchaseCode::Already => refused(Refusal::AlreadyPurchased { order: detail.parse().ok()? }),
        PurchaseCode::SoldOut => refused(Refusal::SoldOut),
        PurchaseCode::NotEnough => refused(Refusal::NotEnoughLeft { remaining: detail.parse().ok()? }),
        PurchaseCode::NotStarted => refused(Refusal::NotStarted { starts_at: from_ms(detail.parse().ok()?)? }),
        PurchaseCode::Ended => refused(Refusal::Ended),
        PurchaseCode::Paused => refused(Refusal::Paused),
        PurchaseCode::TooMany => refused(Refusal::TooMany { max_quantity: detail.parse().ok()? }),
        PurchaseCode::KeyReused => refused(Refusal::KeyReused),
    };
    Some(outcome)
}

fn from_ms(ms: i64) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).ok()
}
