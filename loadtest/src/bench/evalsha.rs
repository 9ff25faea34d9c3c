//! The baseline of every purchase: `redis-benchmark`, calling our own script for one purchase at a time.

use std::process::Command;

use anyhow::{Context, bail, ensure};
use seckill::domain::{Sale, SaleId, SaleState};
use seckill::stock::script::WarmCode;
use seckill::stock::{Frozen, OnSale, WarmPart, keys};
use secrecy::ExposeSecret;
use time::OffsetDateTime;

use super::ground::Ground;

const SCRIPT: &str = include_str!("../../../lua/purchase.lua");

/// More units than any run sells.
const PLENTY: u32 = 1_000_000_000;

/// Far from the numbers that the ledger gives to its own sales: these exist in Redis alone.
const FIRST_SALE: i32 = 2_000_000_000;

/// Calls of the run that finds out how many fit into the time.
const TRIAL: u32 = 5_000;

/// redis-benchmark on the Redis of a ground.
pub struct Evalsha {
    port: String,
    database: String,
    hash: String,
    next: i32,
    /// Calls in one run.
    calls: u32,
}

impl Evalsha {
    /// Loads the script, and finds out how many calls take about `seconds`.
    pub async fn new(ground: &Ground, seconds: f64) -> anyhow::Result<Self> {
        let url = ground.stage.settings.redis.url.expose_secret();
        let (_, address) = url.rsplit_once(':').context("a URL without a port")?;
        let (port, database) = address.split_once('/').unwrap_or((address, "0"));
        let version = Command::new("redis-benchmark").arg("--version").output();
        version.context("redis-benchmark cannot be run; it comes with Redis")?;
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).to_owned();
        let hash = load.query_async(&mut ground.redis.clone()).await?;
        let mut evalsha =
            Self { port: port.to_owned(), database: database.to_owned(), hash, next: FIRST_SALE, calls: TRIAL };
        let rate = evalsha.run(ground).await?;
        evalsha.calls = (rate * seconds).max(f64::from(TRIAL)) as u32;
        Ok(evalsha)
    }

    /// Purchases per second, every one accepted.
    pub async fn run(&mut self, ground: &Ground) -> anyhow::Result<f64> {
        let sale = open(ground, self.next).await?;
        self.next += 1;
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &self.port, "--dbnum", &self.database, "-c", "50", "-P", "1", "--csv"]);
        command.args(["-n", &self.calls.to_string(), "-r", "1000000000"]);
        command.args(["EVALSHA", &self.hash, "4"]).args(keys::all(sale)).arg("3600000");
        // As long as the real ones are.
        command.args(["1", "00000000-0000-8000-8000-__rand_int__", "buyer-__rand_int__", "1", "", ""]);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let text = String::from_utf8_lossy(&output.stdout);
        // A line of names, then a line of values: the command, calls per second, milliseconds.
        let rate = text.lines().nth(1).and_then(|line| line.split("\",\"").nth(1));
        let rate =
            rate.with_context(|| format!("redis-benchmark: {text}{}", String::from_utf8_lossy(&output.stderr)))?;
        let sold = ground.sold_in_redis(sale, PLENTY).await?;
        // Two random numbers may be the same now and then.
        ensure!(sold > self.calls - self.calls / 1000, "redis-benchmark bought only {sold} of {}", self.calls);
        ground.forget_keys(sale).await?;
        Ok(rate.parse()?)
    }
}

/// A sale that is open in Redis, without a ledger behind it.
async fn open(ground: &Ground, number: i32) -> anyhow::Result<SaleId> {
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
    let Frozen::Yes { home, .. } = ground.stock.freeze(sale.id, 1).await? else { bail!("{number} is taken") };
    let on_sale = OnSale { generation: 1, total: PLENTY, remaining: PLENTY };
    match ground.stock.warm(&sale, 1, &home, &on_sale, WarmPart::FRESH).await? {
        WarmCode::Warmed => Ok(sale.id),
        WarmCode::Refused => bail!("sale {number} cannot be opened"),
    }
}
