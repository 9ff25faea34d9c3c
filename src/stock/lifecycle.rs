//! The writes that are not purchases: freeze, warm, state, added stock, release. All are safe to repeat.

use redis::AsyncCommands;
use time::OffsetDateTime;

use super::script::{FREEZE, FreezeCode, RELEASE, ReleaseCode, SALE, STOCK, SaleCode, StockCode, WARM, WarmCode};
use super::{Error, Stock, keys};
use crate::domain::{OrderId, Sale, SaleId, SaleState, UserId};

/// The run id of a Redis process: another process has another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunId(String);

impl RunId {
    /// The process with this run id.
    pub fn of(run_id: &str) -> Self {
        Self(run_id.to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What `freeze` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frozen {
    /// Nothing sells until a `warm` with the same token.
    Yes { run_id: RunId, generation: i64 },
    /// A holder with a greater token was here.
    Stale,
}

/// What a sale needs to sell, read from the ledger in the transaction that raised its generation.
#[derive(Clone, Debug)]
pub struct OnSale {
    pub generation: i64,
    /// Units that the ledger has given to Redis.
    pub total: u32,
    /// Of these, units without a live order.
    pub remaining: u32,
}

/// One part of the claims and requests to be restored.
#[derive(Clone, Copy, Debug)]
pub struct WarmPart<'a> {
    pub first: bool,
    pub last: bool,
    pub claims: &'a [(UserId, String)],
    pub requests: &'a [(String, String)],
}

impl WarmPart<'static> {
    /// A sale that nobody has bought from.
    pub const FRESH: Self = Self { first: true, last: true, claims: &[], requests: &[] };
}

impl Stock {
    pub async fn freeze(&self, sale: SaleId, token: i64) -> Result<Frozen, Error> {
        let mut call = FREEZE.call(&[keys::sale(sale)]);
        call.arg(token).arg(self.retention_ms());
        let (code, run_id, generation): (i64, String, i64) = call.run(&mut self.redis.clone()).await?;
        match FreezeCode::from_code(code) {
            Some(FreezeCode::Frozen) => Ok(Frozen::Yes { run_id: RunId(run_id), generation }),
            Some(FreezeCode::Stale) => Ok(Frozen::Stale),
            None => Err(Error::Reply(format!("freeze: {code}"))),
        }
    }

    /// The greatest fencing token that has frozen the sale here; 0 if none has.
    pub async fn fence(&self, sale: SaleId) -> Result<i64, Error> {
        let stored: Option<i64> = self.redis.clone().hget(keys::sale(sale), "fence").await?;
        Ok(stored.unwrap_or(0))
    }

    /// Writes one part. [`WarmCode::Refused`]: start again from `freeze`.
    pub async fn warm(
        &self,
        sale: &Sale,
        token: i64,
        run_id: &RunId,
        on_sale: &OnSale,
        part: WarmPart<'_>,
    ) -> Result<WarmCode, Error> {
        let mut call = WARM.call(&keys::all(sale.id));
        call.arg(token).arg(&run_id.0).arg(u8::from(part.first)).arg(u8::from(part.last));
        call.arg(on_sale.generation).arg(on_sale.total).arg(on_sale.remaining);
        call.arg(SaleState::as_str(sale.state)).arg(sale.max_quantity);
        call.arg(ms(sale.starts_at)).arg(ms(sale.ends_at)).arg(sale.revision);
        call.arg(self.retention_ms()).arg(keys::RELAY_GROUP).arg(part.claims.len());
        for (user, claim) in part.claims {
            call.arg(user.as_str()).arg(claim);
        }
        for (key, request) in part.requests {
            call.arg(key).arg(request);
        }
        let (code,): (i64,) = call.run(&mut self.redis.clone()).await?;
        WarmCode::from_code(code).ok_or_else(|| Error::Reply(format!("warm: {code}")))
    }

    /// Raises the total to what the ledger has given to Redis. Never lowers it.
    pub async fn set_total(&self, sale: SaleId, generation: i64, redis_total: u32) -> Result<StockCode, Error> {
        let mut call = STOCK.call(&[keys::sale(sale)]);
        call.arg(generation).arg(redis_total).arg(keys::STOCK_UPDATES_CHANNEL).arg(sale.to_string());
        let (code, _, _): (i64, i64, i64) = call.run(&mut self.redis.clone()).await?;
        StockCode::from_code(code).ok_or_else(|| Error::Reply(format!("stock: {code}")))
    }

    /// Tells Redis the sale's state and opening hours, unless it knows newer ones.
    pub async fn set_sale(&self, sale: &Sale) -> Result<SaleCode, Error> {
        let mut call = SALE.call(&keys::all(sale.id));
        call.arg(sale.revision).arg(SaleState::as_str(sale.state));
        call.arg(ms(sale.starts_at)).arg(ms(sale.ends_at)).arg(self.retention_ms());
        let (code,): (i64,) = call.run(&mut self.redis.clone()).await?;
        SaleCode::from_code(code).ok_or_else(|| Error::Reply(format!("sale: {code}")))
    }

    /// Gives back the units of an order that the ledger has closed.
    pub async fn release(&self, sale: SaleId, user: &UserId, order: OrderId) -> Result<ReleaseCode, Error> {
        let mut call = RELEASE.call(&[keys::sale(sale), keys::claims(sale)]);
        call.arg(user.as_str()).arg(order.to_string()).arg(keys::STOCK_UPDATES_CHANNEL).arg(sale.to_string());
        let (code, _, _): (i64, i64, i64) = call.run(&mut self.redis.clone()).await?;
        ReleaseCode::from_code(code).ok_or_else(|| Error::Reply(format!("release: {code}")))
    }

    fn retention_ms(&self) -> u64 {
        self.retention.as_millis() as u64
    }
}

fn ms(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}
