//! One sandbox for all tests of a test binary, started by the first that asks.

use std::ffi::c_int;

use anyhow::ensure;
use tokio::sync::OnceCell;

use super::{Options, Sandbox};

static SHARED: OnceCell<Sandbox> = OnceCell::const_new();

/// The sandbox that all of this program shares, with all three servers. It is stopped, and its folder removed, when the
/// program ends. A test that kills, pauses or cuts a server starts a [`Sandbox`] of its own.
///
/// # Errors
/// Those of [`Sandbox::start`]; the next caller tries again.
pub async fn shared() -> anyhow::Result<&'static Sandbox> {
    SHARED.get_or_try_init(start).await
}

async fn start() -> anyhow::Result<Sandbox> {
    // Statics are not dropped. The kernel would end the servers, but nobody would remove their folder.
    // SAFETY: the hook is a plain function that does not unwind: every step in it answers its errors.
    ensure!(unsafe { atexit(stop) } == 0, "no room for a hook at the program's end");
    Sandbox::start(Options::default()).await
}

extern "C" fn stop() {
    if let Some(sandbox) = SHARED.get() {
        sandbox.end();
    }
}

unsafe extern "C" {
    fn atexit(hook: extern "C" fn()) -> c_int;
}
