//! The ledger on a real PostgreSQL: whatever is delivered, in whatever order and however often, the books balance.

mod generations;

mod races;

mod recording;

mod reserve;

mod reserve_races;

mod stock;

mod transitions;

mod world;
