//! A cluster for tests: private servers, and the roles of the service on them, each in its own process.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hyper::body::Bytes;
use hyper::{Method, Uri};
use tokio::time::sleep;

use drive::client::{Caller, Client, Limits};
use drive::environment::{SandboxSettings, env_for};
use sandbox::{Options, Process, Sandbox, free_port};
use seckill::config::Settings;
use seckill::kafka;
use seckill::ledger::{self, Ledger};

/// How long a node may take to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// The broker that a sandbox runs when Java or Kafka is missing.
const MOCK_BROKER: &str = "librdkafka-mock";

/// How the roles of the service are started.
#[derive(Clone, Debug)]
pub struct Program {
    pub path: PathBuf,
    /// The arguments before the role on the command line.
    pub leading_args: Vec<String>,
}

impl Program {
    /// This very program, which runs a role of the service as `loadtest role …`.
    pub fn this() -> anyhow::Result<Self> {
        Ok(Self {
            path: std::env::current_exe().context("this program's path")?,
            leading_args: vec!["role".to_owned()],
        })
    }
}

/// Which roles run, and with which settings.
#[derive(Clone, Copy, Debug)]
pub struct ClusterSpec {
    /// HTTP nodes, named `node-0`, `node-1`, …
    pub nodes: usize,
    /// The other roles, each named like itself.
    pub roles: &'static [&'static str],
    /// Makes the settings of a part from those of all. Also called for the cluster's own connections, as `cluster`.
    pub tune: fn(&Sandbox, &str, Settings) -> Settings,
}

impl ClusterSpec {
    /// The given number of nodes, and one process of every other role.
    pub const fn standard(nodes: usize) -> Self {
        Self { nodes, roles: &["relay", "consume", "reconcile"], tune: |_, _, settings| settings }
    }
}

/// A running role of the service, and what is needed to restart it.
struct Part {
    process: Process,
    role: String,
    settings: Settings,
}

/// The running servers and roles. Dropping it stops them.
pub struct Cluster {
    // Before the sandbox: the roles end first, then the servers that they use.
    parts: Vec<Part>,
    program: Program,
    spec: ClusterSpec,
    pub sandbox: Sandbox,
    pub settings: Settings,
    /// Base URLs of the nodes.
    pub urls: Vec<String>,
}

impl Cluster {
    /// Starts the servers and the roles of a spec, and returns when every node is ready.
    ///
    /// # Errors
    /// When something does not come up; the message ends with the tail of its log.
    pub async fn with(program: &Program, spec: ClusterSpec) -> anyhow::Result<Self> {
        Self::configured(program, spec, relaxed_limits).await
    }

    /// As [`Cluster::with`], with settings that `configure` makes from the sandbox's. Returns when every node is ready.
    ///
    /// # Errors
    /// When something does not come up; the message ends with the tail of its log.
    pub async fn configured(
        program: &Program,
        spec: ClusterSpec,
        configure: impl FnOnce(Settings) -> Settings,
    ) -> anyhow::Result<Self> {
        let sandbox = Sandbox::start(Options::default()).await.context("the private servers")?;
        let settings = (spec.tune)(&sandbox, "cluster", configure(sandbox.settings("demo").await?));
        let ledger = Ledger::connect(&settings.postgres, Duration::from_secs(settings.orders.pay_within_s)).await?;
        ledger::migrate(ledger.pool()).await.context("the schema")?;
        if sandbox.broker_kind() != MOCK_BROKER {
            // The mock cannot create topics on request; its topics came with the settings.
            kafka::topics::ensure(&settings.kafka).await.context("the topics")?;
        }
        let mut cluster =
            Self { parts: Vec::new(), program: program.clone(), spec, sandbox, settings, urls: Vec::new() };
        for node in 0..spec.nodes.max(1) {
            let mut settings = cluster.settings.clone();
            settings.http.bind = (Ipv4Addr::LOCALHOST, free_port()?).into();
            cluster.urls.push(format!("http://{}", settings.http.bind));
            cluster.start(&format!("node-{node}"), "serve", settings)?;
        }
        for role in spec.roles {
            cluster.add(role, role)?;
        }
        cluster.wait_until_ready().await?;
        Ok(cluster)
    }

    /// Adds one more process of a role. Does not wait for it.
    ///
    /// # Errors
    /// When the program cannot be executed.
    pub fn add(&mut self, name: &str, role: &str) -> anyhow::Result<()> {
        self.start(name, role, self.settings.clone())
    }

    /// Kills a part and forgets it.
    ///
    /// # Errors
    /// When there is no such part.
    pub fn remove(&mut self, name: &str) -> anyhow::Result<()> {
        let at = self.parts.iter().position(|part| part.process.name() == name);
        self.parts.remove(at.with_context(|| format!("no part is called {name}"))?).process.kill()
    }

    /// Starts a part again, with the settings it had; kills it first if it runs. Does not wait for it.
    ///
    /// # Errors
    /// When there is no such part, or it cannot be executed.
    pub fn restart(&mut self, name: &str) -> anyhow::Result<()> {
        self.restart_as(name, &self.program.clone())
    }

    /// As [`Cluster::restart`], this once as another program.
    ///
    /// # Errors
    /// When there is no such part, or it cannot be executed.
    pub fn restart_as(&mut self, name: &str, program: &Program) -> anyhow::Result<()> {
        let part = self.parts.iter().position(|part| part.process.name() == name);
        let at = part.with_context(|| format!("no part is called {name}"))?;
        self.parts[at].process.kill()?;
        self.parts[at].process = self.spawn(name, program, &self.parts[at].role, &self.parts[at].settings)?;
        Ok(())
    }

    /// Gives new orders this time to be paid. Restarts the roles that write orders gracefully, and returns when every
    /// node is ready.
    ///
    /// # Errors
    /// When one of them does not end or does not come up.
    pub async fn pay_within(&mut self, time: Duration) -> anyhow::Result<()> {
        for at in 0..self.parts.len() {
            let part = &mut self.parts[at];
            if !["serve", "consume"].contains(&part.role.as_str()) {
                continue;
            }
            part.settings.orders.pay_within_s = time.as_secs();
            part.process.terminate()?;
            part.process.wait(READY_TIMEOUT).await?;
            let part = &self.parts[at];
            let process = self.spawn(part.process.name(), &self.program, &part.role, &part.settings)?;
            self.parts[at].process = process;
        }
        self.wait_until_ready().await
    }

    /// How the roles are started.
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// The process of a part, which can be killed, paused and resumed.
    ///
    /// # Errors
    /// When there is no such part.
    pub fn part(&self, name: &str) -> anyhow::Result<&Process> {
        let part = self.parts.iter().find(|part| part.process.name() == name);
        Ok(&part.with_context(|| format!("no part is called {name}"))?.process)
    }

    /// The names of all parts, nodes first.
    pub fn names(&self) -> Vec<String> {
        self.parts.iter().map(|part| part.process.name().to_owned()).collect()
    }

    fn start(&mut self, name: &str, role: &str, settings: Settings) -> anyhow::Result<()> {
        let settings = (self.spec.tune)(&self.sandbox, name, settings);
        let process = self.spawn(name, &self.program, role, &settings)?;
        self.parts.push(Part { process, role: role.to_owned(), settings });
        Ok(())
    }

    fn spawn(&self, name: &str, program: &Program, role: &str, settings: &Settings) -> anyhow::Result<Process> {
        let args: Vec<&str> = program.leading_args.iter().map(String::as_str).chain([role]).collect();
        self.sandbox.spawn(name, &program.path, &args, env_for(settings))
    }

    /// Returns when every node is ready.
    ///
    /// # Errors
    /// When a part has ended, or a node does not become ready; the message ends with the tail of its log.
    pub async fn wait_until_ready(&self) -> anyhow::Result<()> {
        let client = Client::new(&self.urls, Limits::default())?;
        let path = Uri::from_static("/readyz");
        let deadline = Instant::now() + READY_TIMEOUT;
        for node in 0..client.nodes() {
            loop {
                let asked = client.send(node, Method::GET, &path, &Caller::default(), Bytes::new()).await;
                if asked.as_ref().is_ok_and(|reply| reply.status == 200) {
                    break;
                }
                self.check()?;
                if Instant::now() > deadline {
                    bail!("node {node} does not become ready: {asked:?}\n{}", self.parts[node].process.log_tail());
                }
                sleep(Duration::from_millis(50)).await;
            }
        }
        self.check()
    }

    /// Which broker carries the orders.
    pub fn broker(&self) -> &'static str {
        self.sandbox.broker_kind()
    }

    /// Whether it is the mock, because Java or Kafka is missing.
    pub fn broker_is_a_mock(&self) -> bool {
        self.broker() == MOCK_BROKER
    }

    /// How Redis syncs its append-only file; unknown for a Redis that ran before.
    pub fn redis_fsync(&self) -> &'static str {
        if self.sandbox.redis().pid().is_some() { "always" } else { "unknown" }
    }

    /// Fails if a role has ended.
    pub fn check(&self) -> anyhow::Result<()> {
        match self.parts.iter().map(|part| &part.process).find(|process| !process.is_running()) {
            Some(ended) => bail!("{} has ended:\n{}", ended.name(), ended.log_tail()),
            None => Ok(()),
        }
    }
}

/// Settings that believe the buyers' addresses and keep every limit at its default.
pub fn default_limits(mut settings: Settings) -> Settings {
    settings.http.trusted_proxies = vec![Ipv4Addr::LOCALHOST.into()];
    settings.http.workers = 1;
    settings.telemetry.filter = "warn".to_owned();
    settings
}

/// As [`default_limits`], but the limits hold back nobody who clicks like a person.
pub fn relaxed_limits(settings: Settings) -> Settings {
    let mut settings = default_limits(settings);
    settings.admission.node_per_second = 1_000_000;
    settings.admission.node_burst = 1_000_000;
    // A buyer of several sales clicks several times in each, and retries when units show.
    settings.admission.user_per_second = settings.admission.user_per_second.max(20);
    settings.admission.user_burst = settings.admission.user_burst.max(40);
    settings.admission.max_tracked = settings.admission.max_tracked.max(1_000_000);
    settings
}
