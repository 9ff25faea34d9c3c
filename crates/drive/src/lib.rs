//! Buyers and the verdict: a crowd in front of a running service, and the judgement on what it was told.
//!
//! [`demand`] draws a plan of clicks, [`buyers`] acts it out through [`client`], `life` and `waiting` are what comes
//! after a purchase, [`record`] keeps every answer, and [`verdict`] holds the answers against the ledger and Redis by
//! the checks of [`seckill::promises`]. The demo, the load test and the fault drill share all of it.

pub mod answer;

mod asking;

pub mod buyers;

pub mod checks;

pub mod client;

pub mod demand;

pub mod distribution;

pub mod environment;

pub mod evalsha;

pub mod joint;

mod life;

pub mod machine;

pub mod operator;

mod places;

pub mod progress;

pub mod record;

pub mod report;

pub mod scene;

pub mod show;

pub mod stores;

pub mod timeline;

pub mod tokens;

pub mod verdict;

mod waiting;

pub mod witness;

#[cfg(test)]
mod tests;
