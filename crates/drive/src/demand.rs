//! The plan: who buys what, and when. The same seed draws the same plan.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Context;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::client::Caller;
use super::tokens::Tokens;
use seckill::domain::UserId;

/// How the buyers' first clicks spread over the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Thickest at the start, as in a real sale: half of the buyers come in the first quarter.
    Rush,
    /// At one rate.
    Steady,
}

/// The buyers of a sale and their behaviour.
#[derive(Clone, Debug)]
pub struct Demand {
    pub buyers: u32,
    /// From the start of the sale to the last first click.
    pub window: Duration,
    pub shape: Shape,
    /// Share of buyers that click 2–5 times at once.
    pub hasty: f64,
    /// Share of buyers that also click up to `lead` before the start.
    pub early: f64,
    pub lead: Duration,
    /// Share of buyers that send an Idempotency-Key.
    pub keyed: f64,
    /// A buyer wants 1 to this many units.
    pub max_quantity: u32,
    /// What buyers do after their purchase. `None`: nothing, as if all of them forgot to pay.
    pub post_purchase: Option<PostPurchase>,
    /// Scripts among the buyers.
    pub bots: Option<Bots>,
    pub seed: u64,
}

/// Few users who send very many purchases, evenly over the window.
#[derive(Clone, Copy, Debug)]
pub struct Bots {
    pub users: u32,
    /// Purchases of each.
    pub clicks: u32,
    /// How many addresses they share.
    pub addresses: u32,
    /// How many of them are on the blacklist.
    pub blocked: u32,
}

/// What buyers do after their purchase: most pay, a few cancel, a few forget, and buyers without a unit retry when the
/// sale shows units.
#[derive(Clone, Copy, Debug)]
pub struct PostPurchase {
    /// Share of buyers that cancel instead of paying.
    pub cancel: f64,
    /// Share of buyers that neither pay nor cancel, so that their orders expire.
    pub forget: f64,
    /// Share of those two that want a unit again once their order is closed.
    pub regret: f64,
    /// Longest time that a buyer takes to pay or cancel.
    pub decide_within: Duration,
    /// Time in which the service wants an order paid.
    pub pay_within: Duration,
    /// From the last click or the last payment: how long the users wait for units and for their orders to become final.
    pub timeout: Duration,
}

impl PostPurchase {
    /// For a service that wants its orders paid within this time.
    pub fn paid_within(pay_within: Duration) -> Self {
        Self {
            cancel: 0.05,
            forget: 0.05,
            regret: 0.5,
            decide_within: Duration::from_secs(1),
            pay_within,
            timeout: Duration::from_secs(20) + pay_within * 2,
        }
    }
}

/// What a buyer does with the first order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    Pay,
    Cancel,
    Forget,
}

/// What one buyer does after the purchase.
#[derive(Clone, Copy, Debug)]
pub struct BuyerProfile {
    pub intent: Intent,
    /// From the answer to paying or cancelling.
    pub think_time: Duration,
    /// Wants a unit again after an order that was closed.
    pub wants_another: bool,
}

impl Default for Demand {
    fn default() -> Self {
        Self {
            buyers: 5000,
            window: Duration::from_secs(4),
            shape: Shape::Rush,
            hasty: 0.1,
            early: 0.05,
            lead: Duration::from_secs(1),
            keyed: 0.1,
            max_quantity: 1,
            post_purchase: None,
            bots: None,
            seed: 1,
        }
    }
}

/// One buyer: an identity, an address, and one purchase.
#[derive(Clone, Debug)]
pub struct Buyer {
    pub user: UserId,
    pub caller: Caller,
    /// The Idempotency-Key, if this buyer sends one.
    pub key: Option<String>,
    pub quantity: u32,
    /// The body of this buyer's purchases.
    pub body: Bytes,
    pub profile: BuyerProfile,
}

/// One click of one buyer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Click {
    /// Relative to the start of the sale, in microseconds; negative before it.
    pub at_us: i64,
    /// Index of the buyer.
    pub buyer: u32,
    /// Which click of this buyer it is: clicks of one buyer go to different nodes.
    pub nth: u32,
}

/// The buyers and all their clicks, in order of time.
#[derive(Clone, Debug)]
pub struct Plan {
    pub buyers: Vec<Buyer>,
    pub clicks: Vec<Click>,
}

impl Plan {
    /// Draws the plan. All tokens are signed here, so that nothing is signed while latency is measured.
    pub fn draw(demand: &Demand, tokens: &Tokens) -> anyhow::Result<Self> {
        let mut rng = StdRng::seed_from_u64(demand.seed);
        let mut buyers = Vec::with_capacity(demand.buyers as usize);
        let mut clicks = Vec::with_capacity(demand.buyers as usize * 2);
        let window = demand.window.as_secs_f64();
        for number in 0..demand.buyers {
            buyers.push(Buyer::new(number, demand, tokens, &mut rng)?);
            let mut nth = 0;
            let mut click = |at_us| {
                clicks.push(Click { at_us, buyer: number, nth });
                nth += 1;
            };
            let early = rng.random_bool(demand.early);
            if early {
                click(-(micros(rng.random::<f64>() * demand.lead.as_secs_f64())).max(1));
            }
            let share: f64 = match demand.shape {
                // Buyers who clicked before the start click again within the first hundredth of the window.
                _ if early => rng.random::<f64>() * 0.01,
                Shape::Rush => rng.random::<f64>().powi(2),
                Shape::Steady => (f64::from(number) + rng.random::<f64>()) / f64::from(demand.buyers),
            };
            let at = micros(share * window);
            let times = if rng.random_bool(demand.hasty) { rng.random_range(2..=5) } else { 1 };
            for _ in 0..times {
                click(at);
            }
        }
        if let Some(bots) = demand.bots {
            for bot in 0..bots.users {
                let number = demand.buyers + bot;
                buyers.push(Buyer::bot(bot, &bots, demand, tokens, &mut rng)?);
                let at = |nth: u32| (f64::from(nth) + rng.random::<f64>()) / f64::from(bots.clicks) * window;
                let times: Vec<_> = (0..bots.clicks).map(at).collect();
                let click = |(at, nth)| Click { at_us: micros(at), buyer: number, nth };
                clicks.extend(times.into_iter().zip(0..).map(click));
            }
        }
        clicks.sort_by_key(|click| (click.at_us, click.buyer, click.nth));
        Ok(Self { buyers, clicks })
    }

    /// The users who are to be on the blacklist: the first of the bots.
    pub fn blocked(&self, demand: &Demand) -> impl Iterator<Item = &UserId> {
        let blocked = demand.bots.map_or(0, |bots| bots.blocked.min(bots.users));
        let bots = self.buyers.iter().skip(demand.buyers as usize);
        bots.take(blocked as usize).map(|buyer| &buyer.user)
    }

    /// Units that all buyers together want.
    pub fn units(&self) -> u64 {
        self.buyers.iter().map(|buyer| u64::from(buyer.quantity)).sum()
    }
}

impl Buyer {
    fn new(number: u32, demand: &Demand, tokens: &Tokens, rng: &mut StdRng) -> anyhow::Result<Self> {
        let name = format!("buyer-{}-{number}", demand.seed);
        let user: UserId = name.parse().context("a buyer's name")?;
        let key = rng.random_bool(demand.keyed).then(|| format!("key-{number}"));
        let quantity = rng.random_range(1..=demand.max_quantity.max(1));
        // 10.0.0.0/8 holds 16 million addresses of their own.
        let address = Ipv4Addr::from(0x0a00_0001 + number % 0x00ff_fffe);
        let caller = Caller {
            authorization: Some(tokens.header(&user, false)?),
            forwarded_for: Some(HeaderValue::from_str(&address.to_string())?),
            idempotency_key: key.as_deref().map(HeaderValue::from_str).transpose()?,
            purchase_token: None,
        };
        Ok(Self { user, caller, key, quantity, body: body_for(quantity), profile: BuyerProfile::draw(demand, rng) })
    }
}

impl Buyer {
    fn bot(nth: u32, bots: &Bots, demand: &Demand, tokens: &Tokens, rng: &mut StdRng) -> anyhow::Result<Self> {
        let user: UserId = format!("bot-{}-{nth}", demand.seed).parse().context("a bot's name")?;
        // 172.16.0.0/12: no other buyer has one of these.
        let address = Ipv4Addr::from(0xac10_0001 + nth % bots.addresses.max(1));
        let caller = Caller {
            authorization: Some(tokens.header(&user, false)?),
            forwarded_for: Some(HeaderValue::from_str(&address.to_string())?),
            ..Caller::default()
        };
        Ok(Self { user, caller, key: None, quantity: 1, body: body_for(1), profile: BuyerProfile::draw(demand, rng) })
    }
}

/// The body of a purchase of so many units.
pub fn body_for(quantity: u32) -> Bytes {
    Bytes::from(format!(r#"{{"quantity":{quantity}}}"#))
}

impl BuyerProfile {
    fn draw(demand: &Demand, rng: &mut StdRng) -> Self {
        let Some(post_purchase) = demand.post_purchase else {
            return Self { intent: Intent::Forget, think_time: Duration::ZERO, wants_another: false };
        };
        let intent = match rng.random::<f64>() {
            share if share < post_purchase.cancel => Intent::Cancel,
            share if share < post_purchase.cancel + post_purchase.forget => Intent::Forget,
            _ => Intent::Pay,
        };
        let think_time = post_purchase.decide_within.mul_f64(rng.random());
        Self { intent, think_time, wants_another: rng.random_bool(post_purchase.regret) }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "seconds of a sale fit into microseconds many times over")]
fn micros(seconds: f64) -> i64 {
    (seconds * 1e6) as i64
}
