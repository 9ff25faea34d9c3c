//! What the verdict reads besides the buyers' answers: the stores of the service under test.

use std::collections::BTreeMap;
use std::future::{Future, ready};

use seckill::domain::SaleId;
use seckill::promises::{Flow, LedgerView, RedisView};

/// Reads the stores of the service under test. `None` means that there is no access to this store, an error
/// that there should be and that it does not answer.
pub trait StoreObserver: Send + Sync {
    fn ledger(&self, sale: SaleId) -> impl Future<Output = anyhow::Result<Option<LedgerView>>> + Send;

    fn redis(&self, sale: SaleId) -> impl Future<Output = anyhow::Result<Option<RedisView>>> + Send;

    /// What is in flight. The outbox is read before Kafka.
    fn flow(&self, sale: SaleId) -> impl Future<Output = anyhow::Result<Option<Flow>>> + Send;

    /// Units that no live order holds, as the ledger knows at the moment of the call.
    fn unsold(&self, sale: SaleId) -> impl Future<Output = anyhow::Result<Option<i64>>> + Send {
        async move {
            let view = self.ledger(sale).await?;
            Ok(view.map(|ledger| ledger.available + ledger.reserve))
        }
    }

    /// Units that live orders hold in the ledger: cheap enough to ask ten times a second.
    fn sold(&self, sale: SaleId) -> impl Future<Output = anyhow::Result<Option<i64>>> + Send;

    /// Units that Redis still sells: as cheap.
    fn remaining(&self, _: SaleId) -> impl Future<Output = anyhow::Result<Option<i64>>> + Send {
        ready(Ok(None))
    }

    /// Versions of the stores that tell theirs, by name.
    fn versions(&self) -> impl Future<Output = BTreeMap<&'static str, String>> + Send {
        ready(BTreeMap::new())
    }
}

/// No access to any store: only the answers of the service are known.
pub struct NoAccess;

impl StoreObserver for NoAccess {
    async fn ledger(&self, _: SaleId) -> anyhow::Result<Option<LedgerView>> {
        Ok(None)
    }

    async fn redis(&self, _: SaleId) -> anyhow::Result<Option<RedisView>> {
        Ok(None)
    }

    async fn flow(&self, _: SaleId) -> anyhow::Result<Option<Flow>> {
        Ok(None)
    }

    async fn sold(&self, _: SaleId) -> anyhow::Result<Option<i64>> {
        Ok(None)
    }
}
