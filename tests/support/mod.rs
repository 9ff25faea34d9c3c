//! Small helpers that tests share.
#![allow(dead_code, reason = "each test binary uses some of them")]

pub mod http;

pub mod service;

pub mod shop;

pub use sandbox::wait_until;
