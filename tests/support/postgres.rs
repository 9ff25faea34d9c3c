//! A PostgreSQL, and nothing else, for the tests that run at the same time.

use std::sync::{Arc, Weak};

use sandbox::{Options, Sandbox};
use tokio::sync::Mutex;

static RUNNING: Mutex<Weak<Sandbox>> = Mutex::const_new(Weak::new());

/// The one that runs, or a new one. It is stopped when the last test that holds it ends: a static would never be
/// dropped, and leave its folder behind.
pub async fn running() -> Arc<Sandbox> {
    let mut running = RUNNING.lock().await;
    if let Some(sandbox) = running.upgrade() {
        return sandbox;
    }
    let sandbox = Arc::new(Sandbox::start(Options::none().postgres()).await.unwrap());
    *running = Arc::downgrade(&sandbox);
    sandbox
}
