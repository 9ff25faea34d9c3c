//! Which sales exist, what they are, and who may not buy: the truth in PostgreSQL, a fresh copy on each node.
//!
//! In: what operators decide. Guaranteed: `get` and `is_blocked` answer from memory, without a lock and without a
//! copy, from one snapshot that is at most a second behind while PostgreSQL answers. When it does not, the node
//! keeps selling from the copy it has; that the copy is old is said once, and once again when it is over.

mod blacklist;

mod error;

mod poll;

mod sales;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use sqlx::PgPool;
use tokio::sync::{Mutex, Notify};

pub use error::Error;
pub(crate) use sales::read;
pub use sales::{NewSale, SaleChange};

use crate::domain::{Sale, SaleId, UserId};
use crate::telemetry::Outage;

/// A handle on the catalogue; clones share one copy.
#[derive(Clone)]
pub struct Catalogue {
    shared: Arc<Shared>,
}

struct Shared {
    pool: PgPool,
    /// How long a sale stays in the copy after its end, as long as its keys stay in Redis.
    retention: Duration,
    snapshot: ArcSwap<Snapshot>,
    /// One refresh at a time, or a slow old read would overwrite a newer one.
    refreshing: Mutex<()>,
    refresh: Notify,
    outage: Outage,
}

/// What a node knows, replaced as a whole.
#[derive(Default)]
struct Snapshot {
    sales: HashMap<SaleId, Arc<Sale>>,
    /// The same sales by id, for listing.
    listed: Vec<Arc<Sale>>,
    blocked: HashSet<UserId>,
}

impl Catalogue {
    /// Reads the first copy; fails if PostgreSQL does not answer. `retention` is how long a sale is still known
    /// after its end, by PostgreSQL's clock: beyond it only the ledger remembers.
    pub async fn load(pool: PgPool, retention: Duration) -> Result<Self, Error> {
        // PostgreSQL's intervals count microseconds; whole seconds will do.
        let retention = Duration::from_secs(retention.as_secs());
        let shared = Shared {
            pool,
            retention,
            snapshot: ArcSwap::default(),
            refreshing: Mutex::default(),
            refresh: Notify::new(),
            outage: Outage::default(),
        };
        let catalogue = Self { shared: Arc::new(shared) };
        catalogue.refresh().await?;
        Ok(catalogue)
    }

    /// The sale, if it is not past retention.
    pub fn get(&self, sale: SaleId) -> Option<Arc<Sale>> {
        self.shared.snapshot.load().sales.get(&sale).cloned()
    }

    /// Every sale that is not past retention, in the order of their ids.
    pub fn all(&self) -> Vec<Arc<Sale>> {
        self.shared.snapshot.load().listed.clone()
    }

    pub fn is_blocked(&self, user: &UserId) -> bool {
        self.shared.snapshot.load().blocked.contains(user)
    }
}
