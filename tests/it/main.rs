//! The service on real servers, in the order of its stages. All tests share one Redis, one PostgreSQL and one Kafka, each
//! with a database and topics of its own; a test that kills, pauses or cuts a server starts its own.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

mod api;

mod stock;

mod outbox;

mod consumer;

mod ledger;

mod reconcile;

mod lock;

mod purchasing;

mod orders;

mod operator;

mod pipeline;

mod faults;
