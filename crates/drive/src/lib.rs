//! The load generator: virtual users in front of a running service, and the verdict on what they were promised.
//!
//! The demo, the load test and the fault drill share all of it. In reading order:
//!
//! 1. The plan: [`demand`] draws buyers and clicks from a seed; [`tokens`] signs their tokens.
//! 2. The clients: [`client`] sends HTTP, [`answer`] reads a purchase's answer, [`admin_client`] puts a sale on.
//! 3. The load: [`virtual_users`] sends the clicks of the plan; `follow_up` asks again after an answer that decided
//!    nothing; `lifecycle` pays, cancels or forgets each order; `retry` buys again when the sale shows units;
//!    `buyer_states` knows where each buyer stands.
//! 4. The measurements: [`record`] keeps every answer, [`timeline`] samples the stores, [`distribution`], [`rate`] and
//!    [`machine`] make figures of them, [`progress`] prints a line while a run goes on.
//! 5. The oracle: [`observer`] reads the stores of the service, [`stores`] does so for real ones, [`checks`] are the
//!    run's own rules, and [`verdict`] evaluates all of it by the promises of [`seckill::promises`].
//! 6. The results: [`run`] does one sale from its draft to its [`report`], [`merge`] makes one report of several sales,
//!    [`text_report`] prints it.
//!
//! Two modules serve tests and benchmarks besides: [`environment`] makes the service's settings for a sandbox, and
//! [`evalsha`] measures the purchase script alone.

pub mod demand;
pub mod tokens;

pub mod admin_client;
pub mod answer;
pub mod client;

mod buyer_states;
mod follow_up;
mod lifecycle;
mod retry;
pub mod virtual_users;

pub mod distribution;
pub mod machine;
pub mod progress;
pub mod rate;
pub mod record;
pub mod timeline;

pub mod checks;
pub mod observer;
pub mod stores;
pub mod verdict;

pub mod merge;
pub mod report;
pub mod run;
pub mod text_report;

pub mod environment;
pub mod evalsha;

#[cfg(test)]
mod tests;
