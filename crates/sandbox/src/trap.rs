//! A trap on the way to a server: it holds one connection at an exact point of its conversation.
//!
//! In: what to wait for, in the words of the protocol. Guaranteed: the first request that fits is caught, and no other;
//! either the server does not get it whole ([`Moment::Before`]), or it acts on it and nobody is told
//! ([`Moment::After`]). Whoever sent it stands still there until it is let go. A process that is killed while it is held
//! died exactly there, and the program that dies is the program that ships: nothing in it knows of the trap.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::oneshot;

/// What remains in sight of what has passed: longer than any of the words that are looked for.
const MEMORY: usize = 160;
/// A Redis script is known by so many bytes of its text: the comment that it begins with.
const OPENING: usize = 64;
/// COMMIT as a simple query.
const COMMIT: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";
/// How sqlx names the statements that it prepares.
const PREPARED: &[u8] = b"sqlx_s_";

/// A request that a connection can be held at.
#[derive(Clone, Copy, Debug)]
pub enum Spot {
    /// A command of Redis, by its name.
    Command(&'static str),
    /// A call of this Redis script, by its hash or by its text.
    Script(&'static str),
    /// A statement of PostgreSQL that contains these words. Seen on connections made after the trap was set.
    Statement(&'static str),
    /// The COMMIT that follows such a statement.
    CommitOf(&'static str),
}

/// On which side of the server's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The server has not got the request whole, so it does nothing.
    Before,
    /// The server has done it, and its answer is held back.
    After,
}

/// The place for the one trap of a proxy.
#[derive(Debug, Default)]
pub(crate) struct Snare {
    trap: Mutex<Option<Trap>>,
    /// How many traps were set.
    count: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Trap {
    number: u64,
    spot: Spot,
    pub(crate) moment: Moment,
    caught: oneshot::Sender<Held>,
}

/// A trap that was set. Dropping it takes it away.
#[derive(Debug)]
pub struct Set(oneshot::Receiver<Held>);

/// A connection that is held. Dropping it closes the connection.
#[derive(Debug)]
pub struct Held(oneshot::Sender<()>);

impl Set {
    /// Waits until a connection is held.
    ///
    /// # Errors
    /// When none is within that time.
    pub async fn held(self, within: Duration) -> anyhow::Result<Held> {
        let held = tokio::time::timeout(within, self.0).await;
        held.context("nobody came to that point").and_then(|held| held.context("another trap was set"))
    }
}

impl Held {
    /// Lets the conversation go on where it was held.
    pub fn let_go(self) {
        // Nobody is there any more if the connection was closed meanwhile.
        let _ = self.0.send(());
    }
}

impl Snare {
    pub(crate) fn set(&self, spot: Spot, moment: Moment) -> Set {
        let (caught, set) = oneshot::channel();
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        self.put(Trap { number, spot, moment, caught });
        Set(set)
    }

    pub(crate) fn put(&self, trap: Trap) {
        *self.trap.lock().unwrap_or_else(PoisonError::into_inner) = Some(trap);
    }

    /// The trap, if `passing` is what it waits for.
    pub(crate) fn spring(&self, watcher: &mut Watcher, passing: &[u8]) -> Option<Trap> {
        let mut set = self.trap.lock().unwrap_or_else(PoisonError::into_inner);
        let trap = set.as_ref().filter(|trap| !trap.caught.is_closed())?;
        if watcher.of != trap.number {
            // What was said before is no part of what this trap waits for.
            *watcher = Watcher { of: trap.number, ..Watcher::default() };
        }
        if watcher.sees(trap.spot, passing) { set.take() } else { None }
    }
}

impl Trap {
    /// Tells who set the trap, and stands still until let go. False: the connection is to be closed.
    pub(crate) async fn hold(self) -> bool {
        let (go, gone) = oneshot::channel();
        self.caught.send(Held(go)).is_ok() && gone.await.is_ok()
    }

    /// Whether the answer says that nothing was done, and the client will ask in other words.
    pub(crate) fn is_put_off(&self, answer: &[u8]) -> bool {
        matches!(self.spot, Spot::Script(_)) && answer.starts_with(b"-NOSCRIPT")
    }
}

/// What one connection has said, as far as a trap needs to remember it.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    /// The number of the trap that it watches for.
    of: u64,
    window: Vec<u8>,
    /// Names under which the statement in question is prepared on this connection.
    names: Vec<Vec<u8>>,
    in_transaction: bool,
}

impl Watcher {
    fn sees(&mut self, spot: Spot, passing: &[u8]) -> bool {
        let known = self.window.len().saturating_sub(MEMORY);
        self.window.drain(..known);
        self.window.extend_from_slice(passing);
        match spot {
            Spot::Command(name) => self.has(name.as_bytes()),
            Spot::Script(text) => {
                let opening = text.as_bytes();
                self.has(redis::Script::new(text).get_hash().as_bytes())
                    || self.has(&opening[..opening.len().min(OPENING)])
            }
            Spot::Statement(words) => self.runs(words),
            Spot::CommitOf(words) => {
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

/// The answer that a pipe withholds, if it is to withhold one.
#[derive(Debug, Default)]
pub(crate) struct Withheld(Mutex<Option<Trap>>);

impl Withheld {
    pub(crate) fn next_answer(&self, trap: Trap) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(trap);
    }

    pub(crate) fn take(&self) -> Option<Trap> {
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
        let spot = Spot::Statement("UPDATE stock");
        assert!(!watcher.sees(spot, PARSE));
        assert!(!watcher.sees(spot, b"B\0\0\0\x20\0sqlx_s_70\0\0\0"));
        assert!(watcher.sees(spot, b"B\0\0\0\x20\0sqlx_s_7\0\0\0"));
    }

    #[test]
    fn a_commit_counts_after_its_statement_alone() {
        let mut watcher = Watcher::default();
        let spot = Spot::CommitOf("UPDATE stock");
        assert!(!watcher.sees(spot, COMMIT));
        assert!(!watcher.sees(spot, &[0; MEMORY]));
        assert!(!watcher.sees(spot, PARSE));
        assert!(!watcher.sees(spot, b"B\0\0\0\x20\0sqlx_s_7\0\0\0"));
        assert!(watcher.sees(spot, COMMIT));
    }

    #[test]
    fn what_was_said_before_a_trap_does_not_spring_it() {
        let (snare, mut watcher) = (Snare::default(), Watcher::default());
        let _first = snare.set(Spot::Command("XACK"), Moment::Before);
        assert!(snare.spring(&mut watcher, b"XREADGROUP").is_none());
        let _second = snare.set(Spot::Command("XREADGROUP"), Moment::Before);
        assert!(snare.spring(&mut watcher, b"PING").is_none());
        assert!(snare.spring(&mut watcher, b"XREADGROUP").is_some());
    }

    #[test]
    fn words_are_seen_across_two_reads() {
        let mut watcher = Watcher::default();
        let spot = Spot::Command("XREADGROUP");
        assert!(!watcher.sees(spot, b"*9\r\n$10\r\nXREAD"));
        assert!(watcher.sees(spot, b"GROUP\r\n"));
    }
}
