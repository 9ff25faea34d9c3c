//! Reads: one buyer's claim, and a whole sale for the promises.

use std::collections::HashMap;

use redis::FromRedisValue;

use super::codec::{decode_claim, run_id};
use super::{Error, Stock, keys};
use crate::domain::{OrderId, SaleId, UserId};
use crate::promises::{ClaimFact, RedisView};

/// A buyer's claim as far as this Redis can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    Held {
        order: OrderId,
        /// Units.
        quantity: u32,
    },
    None,
    /// No claim is found, and this Redis cannot prove that it would know of one.
    Cold,
}

impl Stock {
    /// The claim of a buyer. `generation` is the ledger's, as the catalogue knows it.
    pub async fn claim(&self, sale: SaleId, user: &UserId, generation: i64) -> Result<Claim, Error> {
        let reply: (String, Vec<Option<String>>, Option<String>) = redis::pipe()
            .atomic()
            .cmd("INFO")
            .arg("server")
            .cmd("HMGET")
            .arg(keys::sale(sale))
            .arg(&["remaining", "generation", "home", "frozen"])
            .cmd("HGET")
            .arg(keys::claims(sale))
            .arg(user.as_str())
            .query_async(&mut self.redis.clone())
            .await?;
        let (info, sale, claim) = reply;
        if let Some(claim) = claim {
            let record = decode_claim(user.as_str(), &claim);
            let record = record.ok_or_else(|| Error::Reply(format!("claim of {user}: {claim}")))?;
            return Ok(Claim::Held { order: record.order, quantity: record.quantity });
        }
        let field = |at: usize| sale.get(at).and_then(Option::as_deref);
        let home = field(2).is_some_and(|home| run_id(&info) == Some(home));
        let proven =
            field(0).is_some() && field(1) == Some(generation.to_string().as_str()) && field(3) == Some("0") && home;
        Ok(if proven { Claim::None } else { Claim::Cold })
    }

    /// The whole sale, read atomically. `None`: this Redis holds nothing that could sell.
    pub async fn view(&self, sale: SaleId) -> Result<Option<RedisView>, Error> {
        let reply: (String, HashMap<String, String>, HashMap<String, String>, u64) = redis::pipe()
            .atomic()
            .cmd("INFO")
            .arg("server")
            .hgetall(keys::sale(sale))
            .hgetall(keys::claims(sale))
            .cmd("XLEN")
            .arg(keys::outbox(sale))
            .query_async(&mut self.redis.clone())
            .await?;
        let (info, fields, claims, outbox) = reply;
        if !fields.contains_key("remaining") {
            return Ok(None);
        }
        let number = |name: &str| fields.get(name).and_then(|value| value.parse::<i64>().ok());
        let broken = || Error::Reply(format!("the hash of sale {sale}: {fields:?}"));
        let home = fields.get("home").map(String::as_str);
        let claims = claims.into_iter().map(|(user, claim)| {
            let broken = || Error::Reply(format!("claim of {user}: {claim}"));
            let record = decode_claim(&user, &claim).ok_or_else(broken)?;
            Ok::<_, Error>(ClaimFact { user: record.user, order: record.order, quantity: record.quantity })
        });
        Ok(Some(RedisView {
            selling: number("frozen") == Some(0) && home.is_some() && home == run_id(&info),
            generation: number("generation").ok_or_else(broken)?,
            total: number("total").ok_or_else(broken)?,
            remaining: number("remaining").ok_or_else(broken)?,
            claims: claims.collect::<Result<_, _>>()?,
            outbox,
        }))
    }

    /// Section `section` of INFO, for start-up checks.
    pub async fn info(&self, section: &str) -> Result<HashMap<String, String>, Error> {
        let text: redis::Value = redis::cmd("INFO").arg(section).query_async(&mut self.redis.clone()).await?;
        let text = String::from_redis_value(text).map_err(redis::RedisError::from)?;
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Ok(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }
}
