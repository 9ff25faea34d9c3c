//! The operator's commands, and what nodes know of the sales.

mod catalogue;

mod commands;
