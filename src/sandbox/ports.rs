//! Free loopback ports.
//!
//! Taken from below the range that the kernel gives to outgoing connections: a server that was killed must find its
//! port free again when it is restarted.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use anyhow::Context;

const RANGE: Range<u16> = 15_000..32_000;
const ATTEMPTS: usize = 1000;

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A loopback port on which nobody listens, and that this program has not given out before.
///
/// # Errors
/// When a thousand attempts find none.
pub fn free_port() -> anyhow::Result<u16> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let port = (0..ATTEMPTS)
        .map(|_| rand::random_range(RANGE))
        .find(|port| !given.contains(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .context("no free port on the loopback address")?;
    given.insert(port);
    Ok(port)
}
