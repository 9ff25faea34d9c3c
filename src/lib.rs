//! A flash-sale (秒杀) order service: many buyers, few units, and no unit sold twice whatever fails.
//!
//! This page is the guided tour of one purchase. Read the modules in the order in which they stand here, and you follow
//! a request from the socket to its row.
//!
//! 1. [`api`]: a `POST /api/v1/sales/{id}/purchases` is read, its caller known, its body understood.
//! 2. [`admission`]: the blacklist, the buckets of user, address and node, and a challenge if the sale asks for one.
//! 3. [`sold_out`]: a flag in this process says whether anything is left. Most losers leave here, without I/O.
//! 4. [`purchasing`]: the purchase goes to the [`stock`], where one Lua script decides in Redis. It takes the units,
//!    records the claim and appends the order to the outbox, all or nothing. Purchases of one sale that arrive together
//!    go in one batch. Where Redis cannot sell, a circuit breaker opens, and the sale's reserve is sold from the ledger.
//! 5. Back in [`api`]: 202 with the order's id, or the reason why not. The order is durable already.
//! 6. [`outbox`]: the relay publishes the order to Kafka, and removes it from the outbox once Kafka has confirmed it.
//! 7. [`consumer`]: reads Kafka in batches, and commits its offsets once the ledger has said yes.
//! 8. [`ledger`]: the batch becomes rows in PostgreSQL, in one statement for each sale, under an optimistic lock. This is
//!    the last line of defence: even a Redis that had lost its memory could not make it sell a unit twice.
//! 9. [`reconcile`]: the reconciler finds what a fault has left undone, and repairs it under a distributed [`lock`]. After
//!    the opening of a sale only it fills Redis from the ledger.
//!
//! `api` calls `admission`, `sold_out` and `purchasing` in this order, and `purchasing` calls `stock` and `ledger`. The
//! stages behind Redis never import the edge; `tests/layers.rs` lists every arrow. What the whole of it promises is code,
//! too: [`promises`]. Terms are explained in `docs/glossary.md`.

// The vocabulary of all other modules.
pub mod domain;

// What is promised, as checks over a snapshot of ledger, Redis and the buyers' record.
pub mod promises;

// Steps 1 and 5. A request comes in here, and its answer goes out.
pub mod api;

// Step 2. Keeps out who may not buy, and who asks too often.
pub mod admission;

// Step 3. Answers most losers from memory.
pub mod sold_out;

// Step 4. The way of every purchase: the stock, and the reserve where Redis cannot sell.
pub mod purchasing;

// Step 4. Decides, in one atomic script.
pub mod stock;

// Runs a script by its hash, and by its text where Redis does not know the hash.
pub mod redis_script;

// The Kafka client of steps 6, 7 and 9: producer, wire format, topics, lag.
pub mod kafka;

// Step 6. From Redis to Kafka, at least once.
pub mod outbox;

// Step 7. From Kafka to the ledger, at least once.
pub mod consumer;

// Step 8. Makes rows of orders, each exactly once.
pub mod ledger;

// Step 9. From the ledger to Redis.
pub mod reconcile;

// The lock that step 9 holds, and the fence that it shows at every write.
pub mod lock;

// The operator's commands, the same by HTTP and by the command line.
pub mod operator;

// How an order is closed: ledger first, then Redis.
pub mod closing;

// Money for orders: a simulated provider, and the callback of a real one.
pub mod payment;

// Which sales exist and who is blocked: stored in PostgreSQL, with a snapshot on each node.
pub mod catalogue;

// Every setting, with its default.
pub mod config;

// The order in which a process stops.
pub mod shutdown;

// The pauses between tries.
mod backoff;

// Logs and metrics.
pub mod telemetry;

// Puts the parts together into roles.
pub mod app;

// The `seckill` command.
pub mod cli;
