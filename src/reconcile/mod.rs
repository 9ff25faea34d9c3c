//! Step 9: from the ledger to Redis.

pub mod opening;
