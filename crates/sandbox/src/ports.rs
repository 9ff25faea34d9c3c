//! Free loopback ports.
//!
//! Taken from below the range that the kernel gives to outgoing connections: a server that was killed must find its
//! port free again when it is restarted.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use tokio::net::TcpSocket;

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
        .find(|port| !given.contains(port) && claim(*port).is_ok())
        .context("no free port on the loopback address")?;
    given.insert(port);
    Ok(port)
}

/// Binds and does not listen. A child that another thread starts at this moment has the socket, too, until it is the
/// other program; and a server that wants to listen must not find another listener.
fn claim(port: u16) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_port_on_which_somebody_listens_is_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        assert!(claim(listener.local_addr().expect("an address").port()).is_err());
    }

    #[test]
    fn a_claim_that_lives_on_in_a_child_keeps_nobody_from_listening() {
        let port = free_port().expect("a port");
        let _in_a_child = claim(port).expect("it is free");
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    }
}
