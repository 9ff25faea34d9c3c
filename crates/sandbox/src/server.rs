//! What the private servers have in common: a program, a log, a port that stays, and the faults that can be injected.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use rustix::process::Signal;

use super::folder::Folder;
use super::process::Process;
use super::{Proxy, ports};

/// How long a server may take to answer after its start. The machine may be busy with other things.
const START_WITHIN: Duration = Duration::from_secs(90);
/// How long an orderly stop may take before it becomes a kill.
const STOP_WITHIN: Duration = Duration::from_secs(20);
/// The grace period of a server that is ended for good.
const GRACE_PERIOD: Duration = Duration::from_secs(3);
/// One attempt to reach a server.
const PROBE_WITHIN: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(25);

/// The signals that stop a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StopSignals {
    /// Stops it in good order.
    pub(crate) stop: Signal,
    /// Ends it at once, and leaves nothing in the system; also what it gets when this program is gone.
    pub(crate) end: Signal,
}

/// A program of ours that can be started again on the same port and data.
pub(crate) struct Server {
    name: &'static str,
    folder: Arc<Folder>,
    command_factory: Box<dyn Fn() -> Command + Send + Sync>,
    stop_signals: StopSignals,
    port: u16,
    proxy: Proxy,
    process: Mutex<Option<Process>>,
}

impl Server {
    /// Starts nothing yet. The factory builds the same command line at every start.
    pub(crate) fn new(
        name: &'static str,
        folder: Arc<Folder>,
        port: u16,
        proxy: Proxy,
        stop_signals: StopSignals,
        command_factory: impl Fn() -> Command + Send + Sync + 'static,
    ) -> Self {
        Self {
            name,
            folder,
            command_factory: Box::new(command_factory),
            stop_signals,
            port,
            proxy,
            process: Mutex::new(None),
        }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    pub(crate) const fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    /// Kills what still runs, starts it (again) and waits until `probe` succeeds.
    pub(crate) async fn start<P, F>(&self, probe: P) -> anyhow::Result<()>
    where
        P: Fn() -> F,
        F: Future<Output = anyhow::Result<()>>,
    {
        self.kill()?;
        let process = Process::spawn_until(self.name, (self.command_factory)(), &self.log(), self.stop_signals.end)?;
        self.folder.note(process.pid())?;
        *self.process() = Some(process);
        let start = Instant::now();
        loop {
            let outcome =
                tokio::time::timeout(PROBE_WITHIN, probe()).await.unwrap_or_else(|_| Err(anyhow!("no answer")));
            let Err(error) = outcome else { return Ok(()) };
            if !self.is_running() || start.elapsed() > START_WITHIN {
                return Err(error.context(format!(
                    "{} does not come up; its log ends with:\n{}",
                    self.name,
                    self.log_tail()
                )));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    pub(crate) fn kill(&self) -> anyhow::Result<()> {
        self.process().as_ref().map_or(Ok(()), Process::kill)
    }

    pub(crate) fn pause(&self) -> anyhow::Result<()> {
        self.process().as_ref().with_context(|| format!("{} was never started", self.name))?.pause()
    }

    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        self.process().as_ref().with_context(|| format!("{} was never started", self.name))?.resume()
    }

    /// Ends it in good order and waits for that.
    pub(crate) async fn stop(&self) -> anyhow::Result<()> {
        let start = Instant::now();
        if let Some(process) = self.process().as_ref() {
            process.ask(self.stop_signals.stop)?;
        }
        while self.is_running() {
            if start.elapsed() > STOP_WITHIN {
                bail!("{} does not stop; its log ends with:\n{}", self.name, self.log_tail());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Ends it at once and leaves nothing.
    pub(crate) fn end(&self) {
        if let Some(process) = self.process().as_ref() {
            process.end(self.stop_signals.end, GRACE_PERIOD);
        }
    }

    fn is_running(&self) -> bool {
        self.process().as_ref().is_some_and(Process::is_running)
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(Process::pid)
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join(format!("{}.log", self.name))
    }

    fn log_tail(&self) -> String {
        self.process().as_ref().map(Process::log_tail).unwrap_or_default()
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// A loopback address.
pub(crate) const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// A free port and a proxy in front of it.
pub(crate) fn port_and_proxy() -> anyhow::Result<(u16, Proxy)> {
    let port = ports::free_port()?;
    Ok((port, Proxy::start(local(port))?))
}

/// Looks a program up in `PATH`.
pub(crate) fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_file(file))
}

pub(crate) fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file())
}

/// The error of every fault on a server that was given by its address.
pub(crate) fn not_owned(name: &str) -> anyhow::Error {
    anyhow!("{name} was given by the environment: the sandbox injects no faults into it")
}
