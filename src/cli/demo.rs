//! `seckill demo`: the whole system on one machine, and the verdict on it.

pub use crate::demo::Demo;
