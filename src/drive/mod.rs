//! Buyers and the verdict: a crowd in front of a running service, and the judgement on what it was told.
//!
//! [`demand`] draws a plan of clicks, [`buyers`] acts it out through [`client`], [`record`] keeps every answer, and
//! [`verdict`] holds the answers against the ledger and Redis by the checks of [`crate::promises`]. The demo, the
//! load test and the fault drill share all of it.

pub mod answer;

pub mod buyers;

pub mod client;

pub mod demand;

pub mod distribution;

pub mod machine;

pub mod progress;

pub mod record;

pub mod timeline;

pub mod tokens;

pub mod report;

pub mod verdict;

pub mod witness;

#[cfg(test)]
mod tests;

pub mod operator;

pub mod scene;

pub mod stores;

pub mod show;
