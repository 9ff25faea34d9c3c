//! Step 9 on real servers.

mod auditor;

mod opening;

mod rebuild;

mod repairs;
