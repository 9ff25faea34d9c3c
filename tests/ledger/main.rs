//! The ledger on a real PostgreSQL: whatever is delivered, in whatever order and however often, the books balance.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../support/postgres.rs"]
mod postgres;

mod generations;

mod moves;

mod races;

mod recording;

mod stock;

mod world;
