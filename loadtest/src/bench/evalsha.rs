//! The baseline of `accepted` and `pipeline`: as many calls of redis-benchmark as fit into the time of a round.

use anyhow::{bail, ensure};
use drive::evalsha;
use seckill::domain::{Sale, SaleId, SaleState};
use seckill::stock::script::WarmCode;
use seckill::stock::{Frozen, OnSale, WarmPart};
use secrecy::ExposeSecret;
use time::OffsetDateTime;

use super::testbed::TestBed;

/// More units than any run sells.
const PLENTY: u32 = 1_000_000_000;

/// Far from the numbers that the ledger gives to its own sales: these exist in Redis alone.
const FIRST_SALE: i32 = 2_000_000_000;

/// Calls of the run that finds out how many fit into the time.
const TRIAL: u32 = 5_000;

/// redis-benchmark on the Redis of a test bed.
pub struct Evalsha {
    program: evalsha::Evalsha,
    next: i32,
    /// Calls in one run.
    calls: u32,
}

impl Evalsha {
    /// Loads the script, and finds out how many calls take about `seconds`.
    pub async fn new(testbed: &TestBed, seconds: f64) -> anyhow::Result<Self> {
        let url = testbed.cluster.settings.redis.url.expose_secret();
        let program = evalsha::Evalsha::load(url, &mut testbed.redis.clone()).await?;
        let mut evalsha = Self { program, next: FIRST_SALE, calls: TRIAL };
        let rate = evalsha.run(testbed).await?;
        evalsha.calls = (rate * seconds).max(f64::from(TRIAL)) as u32;
        Ok(evalsha)
    }

    /// Purchases per second, every one accepted.
    pub async fn run(&mut self, testbed: &TestBed) -> anyhow::Result<f64> {
        let sale = open(testbed, self.next).await?;
        self.next += 1;
        let rate = self.program.run(sale, self.calls).await?;
        let sold = testbed.sold_in_redis(sale, PLENTY).await?;
        // Two random numbers may be the same now and then.
        ensure!(sold > self.calls - self.calls / 1000, "redis-benchmark bought only {sold} of {}", self.calls);
        testbed.forget_keys(sale).await?;
        Ok(rate)
    }
}

/// A sale that is open in Redis, without a ledger behind it.
async fn open(testbed: &TestBed, number: i32) -> anyhow::Result<SaleId> {
    let now = OffsetDateTime::now_utc();
    let sale = Sale {
        id: SaleId::new(number)?,
        name: "a baseline".to_owned(),
        price_cents: 100,
        max_quantity: 1,
        starts_at: now - time::Duration::HOUR,
        ends_at: now + time::Duration::HOUR,
        state: SaleState::Open,
        challenge: false,
        revision: 1,
        generation: 1,
        total: PLENTY,
        reserve: 0,
    };
    let Frozen::Yes { run_id, .. } = testbed.stock.freeze(sale.id, 1).await? else { bail!("{number} is taken") };
    let on_sale = OnSale { generation: 1, total: PLENTY, remaining: PLENTY };
    match testbed.stock.warm(&sale, 1, &run_id, &on_sale, WarmPart::FRESH).await? {
        WarmCode::Warmed => Ok(sale.id),
        WarmCode::Refused => bail!("sale {number} cannot be opened"),
    }
}
