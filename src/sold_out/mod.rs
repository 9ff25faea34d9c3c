//! Step 3: the local sold-out flag, where most losers leave.
//!
//! In: a sale id, on every purchase. Decided: is it known here that no unit is left? Guaranteed: reading the flag
//! costs two atomic loads and a look-up, writes nothing that other cores read, and waits for nobody; it is raised only
//! by an answer with nothing remaining; late answers and messages change nothing, and a probe that finds units always
//! lowers it; units that come back are seen within a second even if every message is lost.

mod flag;

mod unconfirmed;

mod watch;

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::domain::SaleId;

pub use flag::Flag;
pub use unconfirmed::UnconfirmedBuyers;
pub use watch::Watch;

/// The flags of all sales on this node.
#[derive(Clone, Default)]
pub struct Flags {
    /// Replaced as a whole when a sale is met for the first time.
    sales: Arc<ArcSwap<HashMap<SaleId, Arc<Flag>>>>,
}

impl Flags {
    /// The flag of a sale; a new one is lowered.
    pub fn of(&self, sale: SaleId) -> Arc<Flag> {
        if let Some(known) = self.sales.load().get(&sale) {
            return Arc::clone(known);
        }
        let new = Arc::new(Flag::default());
        self.sales.rcu(|sales| {
            let mut sales = HashMap::clone(sales);
            // Another thread may have come first: its flag is the one.
            sales.entry(sale).or_insert_with(|| Arc::clone(&new));
            sales
        });
        self.sales.load().get(&sale).map_or(new, Arc::clone)
    }

    /// Whether it is known here that nothing is left of a sale.
    pub fn is_raised(&self, sale: SaleId) -> bool {
        self.sales.load().get(&sale).is_some_and(|flag| flag.is_raised())
    }
}
