//! A breakpoint on the wire: it pauses one connection at an exact point of its conversation with a server.
//!
//! The first request that matches is paused, and no other. With [`Timing::Before`] the server does not get the whole
//! request. With [`Timing::After`] the server acts on it, and its response is held back. The client waits until the
//! connection is resumed. A process that is killed meanwhile has died exactly there: the program under test needs no
//! hook for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::oneshot;

/// What remains in sight of what has passed: longer than any of the words that are searched for.
const MEMORY: usize = 160;
/// A Redis script is known by so many bytes of its text: the comment that it begins with.
const OPENING: usize = 64;
/// COMMIT as a simple query.
const COMMIT: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";
/// How sqlx names the statements that it prepares.
const PREPARED: &[u8] = b"sqlx_s_";

/// A request at which a connection can be paused.
#[derive(Clone, Copy, Debug)]
pub enum BreakAt {
    /// A command of Redis, by its name.
    Command(&'static str),
    /// A call of this Redis script, by its hash or by its text.
    Script(&'static str),
    /// A statement of PostgreSQL that contains these words. Seen on connections made after the breakpoint was set.
    Statement(&'static str),
    /// The COMMIT that follows such a statement.
    CommitOf(&'static str),
}

/// On which side of the server's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// The server has not got the request whole, so it does nothing.
    Before,
    /// The server has done it, and its answer is held back.
    After,
}

/// The one breakpoint that a proxy can have.
#[derive(Debug, Default)]
pub(crate) struct BreakpointSlot {
    armed: Mutex<Option<ArmedBreakpoint>>,
    /// How many breakpoints were set.
    count: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct ArmedBreakpoint {
    number: u64,
    at: BreakAt,
    pub(crate) timing: Timing,
    hit_sender: oneshot::Sender<PausedConnection>,
}

/// A breakpoint that was set. Dropping it removes it.
#[derive(Debug)]
pub struct Breakpoint(oneshot::Receiver<PausedConnection>);

/// A paused connection. Dropping it closes the connection.
#[derive(Debug)]
pub struct PausedConnection(oneshot::Sender<()>);

impl Breakpoint {
    /// Waits until a connection hits it.
    ///
    /// # Errors
    /// When none is within that time.
    pub async fn hit(self, within: Duration) -> anyhow::Result<PausedConnection> {
        let paused = tokio::time::timeout(within, self.0).await;
        paused
            .context("no connection hit the breakpoint")
            .and_then(|paused| paused.context("another breakpoint replaced it"))
    }
}

impl PausedConnection {
    /// Lets the conversation go on from here.
    pub fn resume(self) {
        // Nobody is there any more if the connection was closed meanwhile.
        let _ = self.0.send(());
    }
}

impl BreakpointSlot {
    pub(crate) fn set(&self, at: BreakAt, timing: Timing) -> Breakpoint {
        let (hit_sender, hit) = oneshot::channel();
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        self.put(ArmedBreakpoint { number, at, timing, hit_sender });
        Breakpoint(hit)
    }

    pub(crate) fn put(&self, breakpoint: ArmedBreakpoint) {
        *self.armed.lock().unwrap_or_else(PoisonError::into_inner) = Some(breakpoint);
    }

    /// The breakpoint, if `passing` is what it waits for.
    pub(crate) fn match_request(&self, watcher: &mut Watcher, passing: &[u8]) -> Option<ArmedBreakpoint> {
        let mut set = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let breakpoint = set.as_ref().filter(|breakpoint| !breakpoint.hit_sender.is_closed())?;
        if watcher.of != breakpoint.number {
            // What was said before is no part of what this breakpoint waits for.
            *watcher = Watcher { of: breakpoint.number, ..Watcher::default() };
        }
        if watcher.sees(breakpoint.at, passing) { set.take() } else { None }
    }
}

impl ArmedBreakpoint {
    /// Reports the hit, and waits until the connection is resumed. False: the connection is to be closed.
    pub(crate) async fn pause(self) -> bool {
        let (go, gone) = oneshot::channel();
        self.hit_sender.send(PausedConnection(go)).is_ok() && gone.await.is_ok()
    }

    /// Whether the response says that the script is not loaded: the client retries with its text.
    pub(crate) fn is_retried(&self, answer: &[u8]) -> bool {
        matches!(self.at, BreakAt::Script(_)) && answer.starts_with(b"-NOSCRIPT")
    }
}

/// What one connection has said, as far as a breakpoint needs to remember it.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    /// The number of the breakpoint that it watches for.
    of: u64,
    window: Vec<u8>,
    /// Names under which the statement in question is prepared on this connection.
    names: Vec<Vec<u8>>,
    in_transaction: bool,
}

impl Watcher {
    fn sees(&mut self, at: BreakAt, passing: &[u8]) -> bool {
        let known = self.window.len().saturating_sub(MEMORY);
        self.window.drain(..known);
        self.window.extend_from_slice(passing);
        match at {
            BreakAt::Command(name) => self.has(name.as_bytes()),
            BreakAt::Script(text) => {
                let opening = text.as_bytes();
                self.has(redis::Script::new(text).get_hash().as_bytes())
                    || self.has(&opening[..opening.len().min(OPENING)])
            }
            BreakAt::Statement(words) => self.runs(words),
            BreakAt::CommitOf(words) => {
                self.in_transaction |= self.runs(words);
                self.in_transaction && self.has(COMMIT)
            }
        }
    }

    fn has(&self, words: &[u8]) -> bool {
        find(&self.window, words).is_some()
    }

    /// Whether a statement with these words is executed. It is prepared once, with its text, and then bound by name.
    fn runs(&mut self, words: &str) -> bool {
        if let Some(text) = find(&self.window, words.as_bytes()) {
            let before = &self.window[..text];
            let name = (0..before.len()).rev().find(|at| before[*at..].starts_with(PREPARED));
            let name = name.and_then(|at| before[at..].split_inclusive(|byte| *byte == 0).next());
            self.names.extend(name.map(<[u8]>::to_vec));
        }
        let bound = |name: &Vec<u8>| {
            // Bind: a letter, four bytes of length, a portal without a name, the statement.
            let at = find(&self.window, name)?;
            (at >= 6 && self.window[at - 6] == b'B' && self.window[at - 1] == 0).then_some(())
        };
        self.names.iter().find_map(bound).is_some()
    }
}

/// The last place of `words` in `bytes`: the newest that was said.
fn find(bytes: &[u8], words: &[u8]) -> Option<usize> {
    bytes.windows(words.len()).rposition(|window| window == words)
}

/// The breakpoint at the next response of one connection, if there is one.
#[derive(Debug, Default)]
pub(crate) struct PendingBreakpoint(Mutex<Option<ArmedBreakpoint>>);

impl PendingBreakpoint {
    pub(crate) fn set(&self, breakpoint: ArmedBreakpoint) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(breakpoint);
    }

    pub(crate) fn take(&self) -> Option<ArmedBreakpoint> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARSE: &[u8] = b"P\0\0\x01\0sqlx_s_7\0UPDATE stock SET a = $1\0\0\0";

    #[test]
    fn a_statement_is_seen_when_it_is_bound_and_not_when_it_is_prepared() {
        let mut watcher = Watcher::default();
        let at = BreakAt::Statement("UPDATE stock");
        assert!(!watcher.sees(at, PARSE));
        assert!(!watcher.sees(at, b"B\0\0\0\x20\0sqlx_s_70\0\0\0"));
        assert!(watcher.sees(at, b"B\0\0\0\x20\0sqlx_s_7\0\0\0"));
    }

    #[test]
    fn a_commit_counts_after_its_statement_alone() {
        let mut watcher = Watcher::default();
        let at = BreakAt::CommitOf("UPDATE stock");
        assert!(!watcher.sees(at, COMMIT));
        assert!(!watcher.sees(at, &[0; MEMORY]));
        assert!(!watcher.sees(at, PARSE));
        assert!(!watcher.sees(at, b"B\0\0\0\x20\0sqlx_s_7\0\0\0"));
        assert!(watcher.sees(at, COMMIT));
    }

    #[test]
    fn what_was_said_before_a_breakpoint_does_not_hit_it() {
        let (slot, mut watcher) = (BreakpointSlot::default(), Watcher::default());
        let _first = slot.set(BreakAt::Command("XACK"), Timing::Before);
        assert!(slot.match_request(&mut watcher, b"XREADGROUP").is_none());
        let _second = slot.set(BreakAt::Command("XREADGROUP"), Timing::Before);
        assert!(slot.match_request(&mut watcher, b"PING").is_none());
        assert!(slot.match_request(&mut watcher, b"XREADGROUP").is_some());
    }

    #[test]
    fn words_are_seen_across_two_reads() {
        let mut watcher = Watcher::default();
        let at = BreakAt::Command("XREADGROUP");
        assert!(!watcher.sees(at, b"*9\r\n$10\r\nXREAD"));
        assert!(watcher.sees(at, b"GROUP\r\n"));
    }
}
