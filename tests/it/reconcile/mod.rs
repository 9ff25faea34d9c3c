//! Step 9 on real servers.

mod reconciler;

mod opening;

mod rebuild;

mod repairs;
