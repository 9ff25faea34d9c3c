//! The lock on a real Redis and a real PostgreSQL: contention, lost answers, outages, pauses, and what they leave.

mod acquire;

mod fencing;

mod paused;

mod release;

mod scripts;

mod watchdog;

mod world;
