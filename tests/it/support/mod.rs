//! What tests of several stages share.

pub mod fixtures;

pub mod contract;

pub mod flow;

pub mod http;

pub mod reconciler;

pub mod servers;

pub mod service;

pub mod shop;

pub use sandbox::wait_until;
