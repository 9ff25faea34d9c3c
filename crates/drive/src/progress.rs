//! The progress line: rewritten in place on a terminal, one line a second elsewhere.

use std::convert::Infallible;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use super::rate::per_second;
use super::record::Tally;

/// Prints `tally` until dropped. Never fails: a closed stderr means that nobody wants progress.
pub async fn print(tally: &Tally) -> Infallible {
    let terminal = io::stderr().is_terminal();
    let mut ticks = interval(if terminal { Duration::from_millis(100) } else { Duration::from_secs(1) });
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let _newline = terminal.then_some(Newline);
    let mut before: Option<(Instant, u64)> = None;
    loop {
        ticks.tick().await;
        let (now, requests) = (Instant::now(), tally.requests.load(Relaxed));
        let rate = before.map_or(0, |(then, sent)| per_second(requests - sent, now - then));
        before = Some((now, requests));
        let since_start = tally.start.get().and_then(|start| now.checked_duration_since(*start));
        let line = line(tally, rate, since_start);
        let mut out = io::stderr().lock();
        let _ = if terminal { write!(out, "\r\x1b[2K{line}") } else { writeln!(out, "{line}") };
        let _ = out.flush();
    }
}

fn line(tally: &Tally, rate: u64, since_start: Option<Duration>) -> String {
    let clock = since_start.map_or_else(|| "  before".to_owned(), |passed| format!("{:>7.1}s", passed.as_secs_f64()));
    format!(
        "{clock}  {:>7} of {} clicks  {rate:>6}/s  accepted {:>6}  refused {:>6}  unconfirmed {:>4}  ended {:>6}",
        tally.requests.load(Relaxed),
        tally.clicks.load(Relaxed),
        tally.accepted.load(Relaxed),
        tally.refused.load(Relaxed),
        tally.unconfirmed.load(Relaxed),
        tally.ended.load(Relaxed),
    )
}

/// Keeps the last progress line on the terminal.
struct Newline;

impl Drop for Newline {
    fn drop(&mut self) {
        let _ = writeln!(io::stderr());
    }
}
