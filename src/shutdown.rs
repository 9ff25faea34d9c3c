//! How the process stops: in one order, so that nothing that was promised is cut off.
//!
//! 1. SIGTERM or SIGINT (or a part that ended by itself): readiness off. Then the drain wait, in which the node still
//!    answers, so that a balancer can notice and send nobody else.
//! 2. [`Part::Http`]: stop accepting; requests under way are answered.
//! 3. [`Part::Jobs`]: sweepers, pollers, the reconciler.
//! 4. [`Part::Relay`]: it ends after the delivery reports of what it published.
//! 5. [`Part::Consumer`]: it ends after the commits of what it wrote.
//! 6. [`Stop::run`] returns; pools are closed by their owners.
//!
//! Each part is stopped only after the one before has ended. A stop in the middle of something does no harm (every
//! step is safe to repeat); the order only saves the next process the repetition. A part that does not end within
//! its timeout is left behind, and a second signal ends the wait at once.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The parts of a process, in the order in which they stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Http,
    Jobs,
    Relay,
    Consumer,
}

impl Part {
    pub const ORDER: [Self; 4] = [Self::Http, Self::Jobs, Self::Relay, Self::Consumer];
}

/// How a stop went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Every part ended by itself.
    Cleanly,
    /// At least one part did not end in time, and was left behind.
    Late,
    /// A second signal came: whatever was still running was left behind.
    AtOnce,
}

/// The stop of one process. Clones share it.
#[derive(Clone, Default)]
pub struct Stop(Arc<Inner>);

#[derive(Default)]
struct Inner {
    ready: AtomicBool,
    requested: CancellationToken,
    parts: [Running; Part::ORDER.len()],
}

#[derive(Default)]
struct Running {
    token: CancellationToken,
    tasks: TaskTracker,
}

impl Stop {
    /// Not ready until [`Stop::set_ready`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the node wants requests: what `/readyz` answers.
    pub fn is_ready(&self) -> bool {
        self.0.ready.load(Ordering::Acquire)
    }

    /// Says that everything is up. Has no effect once the stop has begun.
    pub fn set_ready(&self) {
        self.0.ready.store(true, Ordering::Release);
        // Looked at after the store: a stop that began in between must win.
        if self.0.requested.is_cancelled() {
            self.0.ready.store(false, Ordering::Release);
        }
    }

    /// Cancelled when it is `part`'s turn to stop.
    pub fn token(&self, part: Part) -> CancellationToken {
        self.running(part).token.clone()
    }

    /// Runs `task` as a piece of `part`: the stop waits for it. A task that ends before it was told to, panics
    /// included, takes the whole process down in order: half a service that looks whole is worse than none.
    pub fn spawn<F>(&self, part: Part, task: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let ended = Ended { stop: self.clone(), part };
        self.running(part).tasks.spawn(async move {
            let _ended = ended;
            task.await;
        })
    }

    /// Begins the stop from inside.
    pub fn request(&self) {
        self.0.requested.cancel();
    }

    /// Waits for the first of `signals` (or [`Stop::request`]), then stops the parts in order. `drain`: how long
    /// readiness is off before the node stops accepting. `part_timeout`: how long each part may take to end.
    pub async fn run(&self, mut signals: mpsc::Receiver<()>, drain: Duration, part_timeout: Duration) -> Stopped {
        tokio::select! {
            () = next(&mut signals) => {}
            () = self.0.requested.cancelled() => {}
        }
        self.request();
        tokio::select! {
            biased;
            () = next(&mut signals) => {
                // Stopped as well, so that a task that still runs releases what it holds.
                self.0.parts.iter().for_each(|part| part.token.cancel());
                Stopped::AtOnce
            }
            stopped = self.in_order(drain, part_timeout) => stopped,
        }
    }

    async fn in_order(&self, drain: Duration, part_timeout: Duration) -> Stopped {
        self.0.ready.store(false, Ordering::Release);
        tracing::info!(?drain, "stopping: no longer ready");
        tokio::time::sleep(drain).await;
        let mut stopped = Stopped::Cleanly;
        for part in Part::ORDER {
            let running = self.running(part);
            running.token.cancel();
            running.tasks.close();
            if tokio::time::timeout(part_timeout, running.tasks.wait()).await.is_err() {
                tracing::warn!(?part, ?part_timeout, "a part of the process did not end in time and is left behind");
                stopped = Stopped::Late;
            }
        }
        stopped
    }

    fn running(&self, part: Part) -> &Running {
        &self.0.parts[part as usize]
    }
}

/// Notices the end of a task also when it panics.
struct Ended {
    stop: Stop,
    part: Part,
}

impl Drop for Ended {
    fn drop(&mut self) {
        if !self.stop.running(self.part).token.is_cancelled() {
            tracing::error!(part = ?self.part, "a part of the process ended without being told to: the process stops");
            self.stop.request();
        }
    }
}

/// SIGTERM and SIGINT, one message each. Has to be called inside the runtime; from then on neither kills the process.
pub fn signals() -> io::Result<mpsc::Receiver<()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (send, receive) = mpsc::channel(2);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            // Full: two are waiting already, and nobody asks for a third. Closed: nobody listens any more.
            if let Err(mpsc::error::TrySendError::Closed(())) = send.try_send(()) {
                return;
            }
        }
    });
    Ok(receive)
}

/// The next signal; never, when there can be none any more.
async fn next(signals: &mut mpsc::Receiver<()>) {
    if signals.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// A part that notes when it was told to stop and when it ended, with other tasks given a turn in between.
    fn watched(stop: &Stop, part: Part, log: &Arc<Mutex<Vec<String>>>) {
        let (token, log) = (stop.token(part), Arc::clone(log));
        stop.spawn(part, async move {
            token.cancelled().await;
            log.lock().expect("no panic").push(format!("{part:?} told"));
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            log.lock().expect("no panic").push(format!("{part:?} ended"));
        });
    }

    /// Waits for `condition`; one that never comes true is a failed test, not a hung one.
    async fn until(condition: impl Fn() -> bool) {
        let comes_true = async {
            while !condition() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), comes_true).await.expect("the condition comes true");
    }

    #[tokio::test]
    async fn each_part_is_told_only_after_the_one_before_has_ended() {
        let stop = Stop::new();
        let log = Arc::default();
        for part in Part::ORDER.into_iter().rev() {
            watched(&stop, part, &log);
        }
        let (signal, signals) = mpsc::channel(2);
        signal.send(()).await.expect("a receiver");
        assert_eq!(stop.run(signals, Duration::ZERO, LONG).await, Stopped::Cleanly);
        let expected: Vec<_> =
            Part::ORDER.iter().flat_map(|part| [format!("{part:?} told"), format!("{part:?} ended")]).collect();
        assert_eq!(*log.lock().expect("no panic"), expected);
    }

    #[tokio::test]
    async fn readiness_goes_off_before_anything_stops_and_a_second_signal_ends_the_wait_at_once() {
        let stop = Stop::new();
        assert!(!stop.is_ready(), "not ready before it says so");
        stop.set_ready();
        let (signal, signals) = mpsc::channel(2);
        let running = tokio::spawn({
            let stop = stop.clone();
            async move { stop.run(signals, LONG, LONG).await }
        });
        signal.send(()).await.expect("a receiver");
        until(|| !stop.is_ready()).await;
        assert!(!stop.token(Part::Http).is_cancelled(), "the node still answers while it drains");
        stop.set_ready();
        assert!(!stop.is_ready(), "a stop that has begun is not taken back");

        signal.send(()).await.expect("a receiver");
        assert_eq!(running.await.expect("no panic"), Stopped::AtOnce);
        assert!(Part::ORDER.into_iter().all(|part| stop.token(part).is_cancelled()));
    }

    #[tokio::test]
    async fn a_part_that_does_not_end_is_left_behind_and_the_others_still_end_in_order() {
        let stop = Stop::new();
        let log = Arc::default();
        let stuck = stop.spawn(Part::Http, std::future::pending());
        watched(&stop, Part::Consumer, &log);
        stop.request();
        let (_signal, signals) = mpsc::channel(2);
        assert_eq!(stop.run(signals, Duration::ZERO, Duration::from_millis(20)).await, Stopped::Late);
        assert_eq!(*log.lock().expect("no panic"), ["Consumer told", "Consumer ended"]);
        stuck.abort();
    }

    #[tokio::test]
    async fn a_part_that_ends_or_panics_by_itself_stops_the_whole_process() {
        for panics in [false, true] {
            let stop = Stop::new();
            let log = Arc::default();
            watched(&stop, Part::Http, &log);
            stop.spawn(Part::Relay, async move { assert!(!panics, "a bug") });
            let (_signal, signals) = mpsc::channel(2);
            assert_eq!(stop.run(signals, Duration::ZERO, LONG).await, Stopped::Cleanly);
            assert_eq!(*log.lock().expect("no panic"), ["Http told", "Http ended"]);
        }
    }

    #[tokio::test]
    async fn a_process_that_can_get_no_signal_is_stopped_by_request() {
        let stop = Stop::new();
        let (_, signals) = mpsc::channel(1);
        stop.request();
        assert_eq!(stop.run(signals, Duration::ZERO, LONG).await, Stopped::Cleanly);
    }

    #[tokio::test]
    async fn both_signals_of_the_system_are_heard() {
        use rustix::process::{Signal, getpid, kill_process};
        let mut signals = signals().expect("handlers");
        for signal in [Signal::TERM, Signal::INT] {
            kill_process(getpid(), signal).expect("a signal to ourselves");
            assert_eq!(signals.recv().await, Some(()));
        }
    }
}
