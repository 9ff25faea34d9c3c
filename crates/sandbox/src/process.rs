//! A child process that can be killed, paused, resumed and waited for, with its log in a file.
//!
//! Used for the private servers and for the service's own roles (`serve`, `relay`, `consume`, …) where a test or the
//! demo runs them as processes of their own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::{spawner, tree};

/// How often the state of a child is polled.
const POLL: Duration = Duration::from_millis(10);
/// How long the kernel may take to remove a killed process.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);
/// How many bytes of the log an error message shows.
const TAIL: usize = 2000;

/// A running (or ended) child. Dropping it kills it and everything it started.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    log: PathBuf,
    child: Mutex<Child>,
}

impl Process {
    /// Starts `command` with standard output and error appended to `log`. The child dies with this program.
    ///
    /// # Errors
    /// When the log cannot be opened or the program cannot be executed.
    pub fn spawn(name: &str, command: Command, log: &Path) -> anyhow::Result<Self> {
        Self::spawn_until(name, command, log, Signal::KILL)
    }

    /// As [`Process::spawn`], with the signal that the child gets when this program is gone.
    pub(crate) fn spawn_until(
        name: &str,
        mut command: Command,
        log: &Path,
        stop_signal: Signal,
    ) -> anyhow::Result<Self> {
        let out = File::options().create(true).append(true).open(log);
        let out = out.with_context(|| format!("cannot open the log {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let program = command.get_program().to_owned();
        let child =
            spawner::spawn(command, stop_signal).with_context(|| format!("cannot start {name} ({program:?})"))?;
        Ok(Self { name: name.to_owned(), pid: child.id(), log: log.to_owned(), child: Mutex::new(child) })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Where the child's standard output and error go.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of the log, for an error message.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(TAIL)..]).trim().to_owned()
    }

    /// How the child ended, or `None` while it runs (or is paused).
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.child().try_wait().ok().flatten()
    }

    pub fn is_running(&self) -> bool {
        self.exit_status().is_none()
    }

    /// Kills the child and all it started with `SIGKILL` and waits until it is gone. Killing a dead one is harmless.
    pub fn kill(&self) -> anyhow::Result<()> {
        let mut child = self.child();
        if child.try_wait()?.is_none() {
            let family = tree::kill(self.pid);
            child.wait()?;
            // A killed process holds its port and memory until the kernel has got round to it.
            let start = Instant::now();
            while !family.iter().all(|pid| tree::is_gone(*pid)) && start.elapsed() < REMOVAL_TIMEOUT {
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }

    /// Stops the child and all it started (`SIGSTOP`): connections stay open, nothing answers.
    ///
    /// # Errors
    /// When the child has ended.
    pub fn pause(&self) -> anyhow::Result<()> {
        let _child = self.alive()?;
        tree::stop(self.pid);
        Ok(())
    }

    /// Lets a paused child go on.
    ///
    /// # Errors
    /// When the child has ended.
    pub fn resume(&self) -> anyhow::Result<()> {
        let _child = self.alive()?;
        tree::resume(self.pid);
        Ok(())
    }

    /// Asks the child to end in good order (`SIGTERM`). Does not wait.
    pub fn terminate(&self) -> anyhow::Result<()> {
        self.ask(Signal::TERM)
    }

    /// Waits until the child has ended by itself.
    ///
    /// # Errors
    /// When it still runs after `within`.
    pub async fn wait(&self, within: Duration) -> anyhow::Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.exit_status() {
                return Ok(status);
            }
            if start.elapsed() >= within {
                bail!("{} still runs after {within:?}; its log ends with:\n{}", self.name, self.log_tail());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Sends one signal to the child alone, if it still runs.
    pub(crate) fn ask(&self, signal: Signal) -> anyhow::Result<()> {
        let mut child = self.child();
        if child.try_wait()?.is_none()
            && let Some(pid) = Pid::from_raw(self.pid.cast_signed())
        {
            kill_process(pid, signal)?;
        }
        Ok(())
    }

    /// Ends the child with `signal`, which also wakes it when it is paused; kills it when that takes longer than `within`.
    pub(crate) fn end(&self, signal: Signal, within: Duration) {
        let start = Instant::now();
        // Failing to signal means that it has ended.
        let _ = self.ask(signal);
        tree::resume(self.pid);
        while self.is_running() && start.elapsed() < within {
            std::thread::sleep(POLL);
        }
        let _ = self.kill();
    }

    fn alive(&self) -> anyhow::Result<MutexGuard<'_, Child>> {
        let mut child = self.child();
        match child.try_wait()? {
            None => Ok(child),
            Some(status) => bail!("{} has ended ({status}); its log ends with:\n{}", self.name, self.log_tail()),
        }
    }

    /// Holding the child keeps its process id from being given to somebody else: it is not reaped meanwhile.
    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing is left to be done about a child that cannot be killed.
        let _ = self.kill();
    }
}
