//! A mutex around the stock, in each node: correct with one node.
//!
//! Each node reads the stock from the store when it starts and sells from its copy under its lock, writing the rest
//! back. Within a process not two buyers meet. But a lock in the memory of one node is no lock for the other: both have
//! the whole stock in their copies, and both sell it. A longer lock, or a fairer one, changes nothing.
//!
//! The answer of the service is that no node owns a number: the stock is where all nodes decide (`lua/purchase.lua`),
//! the ledger checks it again in `UPDATE stock … WHERE version = $v AND available >= $n`, and what nodes do keep,
//! the flag of `seckill::sold_out`, may only say no.

use tokio::sync::Mutex;

use super::read_then_write::ReadThenWrite;

pub struct LocalMutex {
    copy: Mutex<i64>,
    store: ReadThenWrite,
}

impl LocalMutex {
    /// A node's own counter over the store that all nodes share.
    pub async fn over(store: ReadThenWrite) -> anyhow::Result<Self> {
        Ok(Self { copy: Mutex::new(store.left().await?), store })
    }

    pub async fn take(&self, units: i64) -> anyhow::Result<Result<(), i64>> {
        let mut copy = self.copy.lock().await;
        if *copy < units {
            return Ok(Err(*copy));
        }
        *copy -= units;
        self.store.put(*copy).await?;
        Ok(Ok(()))
    }

    pub async fn left(&self) -> anyhow::Result<i64> {
        self.store.left().await
    }
}
