//! Step 3: the local sold-out flag, where most losers leave.
//!
//! In: a sale id, on every purchase. Decided: is it known here that no unit is left? Guaranteed: reading the flag
//! costs one atomic load; it is raised only by an answer with nothing remaining, and news that is older than what
//! is known never moves it; units that come back are seen within a second even if every message is lost.

mod doubtful;

mod flag;

mod watch;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::domain::{SaleId, StockNews};

pub use doubtful::Doubtful;
pub use flag::Flag;
pub use watch::Watch;

/// The flags of all sales on this node.
#[derive(Clone, Default)]
pub struct Flags {
    sales: Arc<RwLock<HashMap<SaleId, Arc<Flag>>>>,
}

impl Flags {
    /// The flag of a sale, lowered if nobody has asked before.
    pub fn of(&self, sale: SaleId) -> Arc<Flag> {
        let known = self.sales.read().unwrap_or_else(PoisonError::into_inner).get(&sale).cloned();
        known.unwrap_or_else(|| {
            let mut sales = self.sales.write().unwrap_or_else(PoisonError::into_inner);
            sales.entry(sale).or_default().clone()
        })
    }

    /// Takes in what an answer told about a sale.
    pub fn observe(&self, sale: SaleId, news: StockNews) {
        self.of(sale).observe(news);
    }
}
