//! A flash-sale (秒杀) order service. This page is the guided tour of one purchase.

pub mod domain;

pub mod promises;

pub mod api;

pub mod admission;

pub mod sold_out;

pub mod stock;

pub mod lua;

pub mod outbox;

pub mod consumer;

pub mod ledger;

pub mod reconcile;

/// The lock that the jobs of step 9 hold, one for each sale. Never on the way of a purchase.
pub mod lock;

pub mod operator;

pub mod catalogue;

pub mod config;

pub mod shutdown;

pub mod telemetry;

pub mod app;

pub mod cli;

#[cfg(feature = "demo")]
pub mod sandbox;

#[cfg(feature = "demo")]
pub mod drive;

#[cfg(feature = "demo")]
pub mod demo;
