//! A private Redis, or the one that the environment names.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::Signal;

use super::folder::Folder;
use super::server::{Server, StopSignals, in_path, local, not_owned, port_and_proxy};
use super::{Proxy, ports};

const NAME: &str = "redis";
const STOP_SIGNALS: StopSignals = StopSignals { stop: Signal::TERM, end: Signal::KILL };
/// Numbered databases: each service that shares this server gets its own.
const DATABASES: u32 = 1024;

/// What Redis keeps when its process or machine dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsync {
    /// Every write is on disk before it is answered.
    #[default]
    Always,
    /// A second of writes may be lost with the machine.
    EverySecond,
    /// Nothing is kept.
    Off,
}

impl Fsync {
    /// As the report names it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::EverySecond => "everysec",
            Self::Off => "off",
        }
    }
}

/// How the private Redis is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RedisOptions {
    pub fsync: Fsync,
    /// A cluster of one node that holds every slot: it refuses what a real cluster would.
    pub cluster: bool,
}

/// The Redis of a sandbox.
pub struct Redis {
    url: String,
    options: RedisOptions,
    server: Option<Server>,
    /// A second proxy, for clients that must stay connected while the first proxy is cut.
    second_proxy: Option<Proxy>,
}

impl Redis {
    pub(crate) fn given(url: String) -> Self {
        Self { url, options: RedisOptions::default(), server: None, second_proxy: None }
    }

    pub(crate) async fn start(folder: Arc<Folder>, options: RedisOptions) -> anyhow::Result<Self> {
        let program =
            in_path("redis-server").context("redis-server (7 or newer) is not installed: run `make setup`")?;
        let (port, proxy) = port_and_proxy()?;
        let data = folder.path().join(NAME);
        std::fs::create_dir(&data)?;
        let cluster_port = ports::free_port()?;
        let command_factory = move || command(&program, &data, port, options, cluster_port);
        let server = Server::new(NAME, folder, port, proxy, STOP_SIGNALS, command_factory);
        let second_proxy = Some(Proxy::start(local(port))?);
        let redis = Self { url: format!("redis://127.0.0.1:{port}"), options, server: Some(server), second_proxy };
        redis.restart().await?;
        Ok(redis)
    }

    /// Where it is reached directly.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where it is reached through the proxy.
    pub fn proxied_url(&self) -> anyhow::Result<String> {
        Ok(format!("redis://127.0.0.1:{}", self.proxy()?.port()))
    }

    pub const fn fsync(&self) -> Fsync {
        self.options.fsync
    }

    /// The way to it that can be cut.
    pub fn proxy(&self) -> anyhow::Result<&Proxy> {
        Ok(self.owned()?.proxy())
    }

    /// The other way to it that can be cut.
    pub fn second_proxy(&self) -> anyhow::Result<&Proxy> {
        self.second_proxy.as_ref().ok_or_else(|| not_owned(NAME))
    }

    /// `SIGKILL`. What was written stays as far as [`Fsync`] says.
    pub fn kill(&self) -> anyhow::Result<()> {
        self.owned()?.kill()
    }

    /// `SIGSTOP`: it accepts connections and answers nothing.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.owned()?.pause()
    }

    pub fn resume(&self) -> anyhow::Result<()> {
        self.owned()?.resume()
    }

    /// An orderly stop.
    pub async fn stop(&self) -> anyhow::Result<()> {
        self.owned()?.stop().await
    }

    /// Starts it again (killing it first if it runs) on the same port and data; returns when it answers.
    pub async fn restart(&self) -> anyhow::Result<()> {
        self.owned()?.start(|| probe(&self.url, self.options.cluster)).await
    }

    /// Its process, when it is ours.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().and_then(Server::pid)
    }

    /// The address of a numbered database of its own for the `index`-th service. A cluster has only one, and on a
    /// given server the numbers are not ours to give out.
    pub(crate) fn database_url(&self, index: u32) -> anyhow::Result<String> {
        if self.server.is_none() || self.options.cluster {
            return Ok(self.url.clone());
        }
        ensure!(index < DATABASES, "more than {DATABASES} services share one private Redis");
        Ok(format!("{}/{index}", self.url))
    }

    pub(crate) fn end(&self) {
        if let Some(server) = &self.server {
            server.end();
        }
    }

    pub(crate) fn owned(&self) -> anyhow::Result<&Server> {
        self.server.as_ref().ok_or_else(|| not_owned(NAME))
    }
}

fn command(program: &Path, data: &Path, port: u16, options: RedisOptions, cluster_port: u16) -> Command {
    let port = port.to_string();
    let databases = DATABASES.to_string();
    let mut command = Command::new(program);
    command.current_dir(data).arg("--dir").arg(data);
    command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--maxmemory-policy", "noeviction"]);
    match options.fsync {
        Fsync::Off => command.args(["--appendonly", "no"]),
        kept => command.args(["--appendonly", "yes", "--appendfsync", kept.as_str()]),
    };
    // A rewrite of the file would fork in the middle of a measurement.
    command.args(["--auto-aof-rewrite-percentage", "0"]);
    if options.cluster {
        command.args(["--cluster-enabled", "yes", "--cluster-port", &cluster_port.to_string()]);
    } else {
        command.args(["--databases", &databases]);
    }
    command
}

/// Succeeds once the data are loaded, and in a cluster once every slot is served.
async fn probe(url: &str, cluster: bool) -> anyhow::Result<()> {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(1)));
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    redis::cmd("PING").exec_async(&mut connection).await?;
    if cluster {
        let info = || redis::cmd("CLUSTER").arg("INFO").to_owned();
        let state: String = info().query_async(&mut connection).await?;
        if state.contains("cluster_slots_assigned:0\r") {
            let slots = redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(0).arg(16_383).to_owned();
            slots.exec_async(&mut connection).await?;
        }
        let state: String = info().query_async(&mut connection).await?;
        ensure!(state.contains("cluster_state:ok"), "the cluster is not ready: {state}");
    }
    Ok(())
}
