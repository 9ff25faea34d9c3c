//! Whoever runs the sales, and what nodes know of them.

mod catalogue;

mod commands;
