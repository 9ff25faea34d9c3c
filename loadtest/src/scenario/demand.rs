//! The buyers of a sale, as the load generator takes them.

use std::time::Duration;

use drive::demand::{Demand, PostPurchase};

use super::Sale;

/// The demand for a sale of a scenario.
///
/// # Errors
/// When its seconds are not a duration.
pub fn demand(sale: &Sale, seed: u64, pay_within: Option<Duration>) -> anyhow::Result<Demand> {
    let usual = PostPurchase::paid_within(pay_within.unwrap_or_default());
    let post_purchase = PostPurchase {
        cancel: sale.afterwards.cancel,
        // The end of a forgotten order can only be waited for where it is known to come.
        forget: if pay_within.is_some() { sale.afterwards.forget } else { 0.0 },
        regret: sale.afterwards.regret,
        ..usual
    };
    Ok(Demand {
        buyers: sale.buyers,
        window: Duration::try_from_secs_f64(sale.seconds)?,
        shape: sale.shape.into(),
        hasty: sale.hasty,
        early: sale.early,
        lead: Duration::from_secs(1),
        keyed: sale.keyed,
        max_quantity: sale.max_quantity,
        post_purchase: Some(post_purchase),
        bots: sale.bots.map(Into::into),
        seed,
    })
}
