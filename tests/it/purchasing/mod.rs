//! Redis is away: the breaker and the reserve.

mod breaker;

mod reserve;
