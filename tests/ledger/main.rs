//! The ledger on a real PostgreSQL: whatever is delivered, in whatever order and however often, the books balance.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../support/postgres.rs"]
mod postgres;

mod generations;

mod moves;

mod races;

mod recording;

mod reserve;

mod reserve_races;

mod stock;

mod world;
