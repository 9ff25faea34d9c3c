//! How the copy on this node is kept fresh.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::sales::{SaleRow, sale_columns};
use super::{Catalogue, Error, Snapshot};

/// How long the poller waits for an answer. Longer than the server's own limits, so it only ever ends a wait for a
/// server that is silent.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(10);

/// Least time between two rounds. Every request of a flash sale may ask for a refresh; PostgreSQL is to see ten times a
/// second at most.
const FLOOR: Duration = Duration::from_millis(100);

const SALES: &str = concat!(
    "SELECT ",
    sale_columns!(),
    " FROM sales JOIN stock ON stock.sale_id = sales.id
     WHERE sales.ends_at + $1 > clock_timestamp() ORDER BY sales.id"
);

impl Catalogue {
    /// Reads PostgreSQL now and replaces the copy. On failure the copy stays as it was.
    pub async fn refresh(&self) -> Result<(), Error> {
        let _one_at_a_time = self.shared.refreshing.lock().await;
        let rows: Vec<SaleRow> = sqlx::query_as(SALES).bind(self.shared.retention).fetch_all(&self.shared.pool).await?;
        let blocked: Vec<String> =
            sqlx::query_scalar("SELECT user_id FROM blacklist").fetch_all(&self.shared.pool).await?;

        let listed: Vec<_> = rows.into_iter().map(|row| Arc::new(row.0)).collect();
        let sales: HashMap<_, _> = listed.iter().map(|sale| (sale.id, Arc::clone(sale))).collect();
        // A name that is no user id was put in by hand and can block nobody.
        let blocked: HashSet<_> = blocked.iter().filter_map(|user| user.parse().ok()).collect();
        self.shared.snapshot.store(Arc::new(Snapshot { sales, listed, blocked }));
        Ok(())
    }

    /// Asks the poller to refresh now. Never waits; several requests before it wakes are one, and rounds keep a
    /// distance of a tenth of a second however many there are.
    pub fn request_refresh(&self) {
        self.shared.refresh.notify_one();
    }

    /// Refreshes each `period`, and when asked to, until `stop`.
    pub async fn run(&self, period: Duration, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(period) => {}
                () = self.shared.refresh.notified() => {}
            }
            // Plain reads, no transaction: cutting them off leaves nothing behind.
            let round = async {
                self.run_once().await;
                tokio::time::sleep(FLOOR).await;
            };
            if stop.run_until_cancelled(round).await.is_none() {
                return;
            }
        }
    }

    /// One round of `run`: refreshes, and says so when that begins to fail or to succeed again.
    pub async fn run_once(&self) {
        let outage = &self.shared.outage;
        let fault = match tokio::time::timeout(REFRESH_TIMEOUT, self.refresh()).await {
            Ok(Ok(())) => return outage.recovered(|| info!("the catalogue is fresh again")),
            Ok(Err(fault)) => fault.to_string(),
            Err(_) => format!("no answer within {REFRESH_TIMEOUT:?}"),
        };
        outage.failed(fault.as_str(), |fault| {
            warn!(fault, "the catalogue is not refreshed; going on with the old copy: check PostgreSQL");
        });
    }

    /// A change made through this node is seen on it at once. The change is made, whether or not it can be read
    /// back now: if not, the poller will.
    pub(crate) async fn show_own_change(&self) {
        if self.refresh().await.is_err() {
            self.request_refresh();
        }
    }
}
