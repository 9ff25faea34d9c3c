//! Sales and buyers for the benchmarks.

use std::time::Duration;

use anyhow::bail;
use drive::environment::SandboxSettings;
use sandbox::Sandbox;
use seckill::catalogue::NewSale;
use seckill::domain::{OrderId, OrderMessage, Purchase, Sale, SaleId, SaleState};
use seckill::stock::script::WarmCode;
use seckill::stock::{Frozen, OnSale, Stock, WarmPart, keys};
use seckill::{app, config, kafka, ledger};
use time::OffsetDateTime;

/// More units than any round sells.
pub const PLENTY: u32 = 1_000_000_000;

const HOUR: Duration = Duration::from_secs(3600);

/// Settings with schema and topics in place, and with limits that are never reached.
pub async fn settings(sandbox: &Sandbox, name: &str) -> anyhow::Result<config::Settings> {
    let mut settings = sandbox.settings(name).await?;
    ledger::migrate(app::ledger(&settings).await?.pool()).await?;
    kafka::topics::ensure(&settings.kafka).await?;
    let limits = &mut settings.admission;
    for limit in [
        &mut limits.node_per_second,
        &mut limits.node_burst,
        &mut limits.address_per_second,
        &mut limits.address_burst,
        &mut limits.user_per_second,
        &mut limits.user_burst,
    ] {
        *limit = 100_000_000;
    }
    Ok(settings)
}

/// A sale that is open now.
pub fn new_sale(total: u32) -> NewSale {
    let now = OffsetDateTime::now_utc();
    NewSale {
        name: "a sale".to_owned(),
        price_cents: 9_900,
        max_quantity: 2,
        starts_at: now - HOUR,
        ends_at: now + HOUR,
        challenge: false,
        total,
        reserve: Some(0),
    }
}

/// A sale that is open in Redis, without a ledger behind it.
pub async fn open_in_redis(stock: &Stock, number: i32) -> anyhow::Result<SaleId> {
    let NewSale { name, price_cents, max_quantity, starts_at, ends_at, challenge, total, .. } = new_sale(PLENTY);
    let (id, state) = (SaleId::new(number)?, SaleState::Open);
    let sale = Sale {
        id,
        name,
        price_cents,
        max_quantity,
        starts_at,
        ends_at,
        state,
        challenge,
        revision: 1,
        generation: 1,
        total,
        reserve: 0,
    };
    let Frozen::Yes { run_id, .. } = stock.freeze(id, 1).await? else { bail!("somebody else opens sale {id}") };
    let on_sale = OnSale { generation: 1, total, remaining: total };
    match stock.warm(&sale, 1, &run_id, &on_sale, WarmPart::FRESH).await? {
        WarmCode::Warmed => Ok(id),
        WarmCode::Refused => bail!("sale {id} cannot be opened"),
    }
}

/// Forgets all that Redis holds of a sale.
pub async fn remove_from_redis(redis: &mut redis::aio::MultiplexedConnection, sale: SaleId) -> anyhow::Result<()> {
    Ok(redis::cmd("UNLINK").arg(&keys::all(sale)).exec_async(redis).await?)
}

/// The `n`-th purchase of a sale, each by another buyer.
pub fn purchase(sale: SaleId, n: u64) -> Purchase {
    let order = order(sale, n);
    Purchase { order: order.id, user: order.user, quantity: 1, generation: 1, request: None }
}

/// The `n`-th order of a sale, as it travels.
pub fn order(sale: SaleId, n: u64) -> OrderMessage {
    // Spread like random numbers.
    let random = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let now = OffsetDateTime::now_utc();
    OrderMessage {
        id: OrderId::mint(sale, u32::try_from(now.unix_timestamp()).unwrap_or(0), random),
        sale,
        user: format!("buyer-{n}").parse().unwrap_or_else(|_| unreachable!("letters and digits")),
        quantity: 1,
        generation: 1,
        accepted_ms: 1_700_000_000_000,
        request: None,
    }
}

pub fn orders(sale: SaleId, count: usize) -> Vec<OrderMessage> {
    (0..count as u64).map(|n| order(sale, n)).collect()
}
