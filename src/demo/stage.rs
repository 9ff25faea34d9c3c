//! The stage: private servers, and the service's roles on them, each a process of its own.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hyper::body::Bytes;
use hyper::{Method, Uri};
use tokio::time::sleep;

use crate::config::Settings;
use crate::drive::client::{Caller, Client, Limits};
use crate::ledger::{self, Ledger};
use crate::outbox;
use crate::sandbox::{Options, Process, Sandbox};

/// How long a node may take to become ready.
const PATIENCE: Duration = Duration::from_secs(30);

/// The broker that a sandbox runs for want of Java or of Kafka.
const STAND_IN: &str = "librdkafka-mock";

/// How the roles of the service are started.
pub struct Program {
    pub path: PathBuf,
    /// What stands before the role on the command line.
    pub before: Vec<String>,
}

impl Program {
    /// This very program, which knows the roles.
    pub fn this() -> anyhow::Result<Self> {
        Ok(Self { path: std::env::current_exe().context("this program's path")?, before: Vec::new() })
    }
}

/// Everything that runs. Dropping it stops it.
pub struct Stage {
    // Before the sandbox: the roles end first, then the servers that they use.
    processes: Vec<Process>,
    pub sandbox: Sandbox,
    pub settings: Settings,
    /// Base URLs of the nodes.
    pub urls: Vec<String>,
}

impl Stage {
    /// Starts servers and roles, and returns when every node is ready.
    ///
    /// # Errors
    /// When something does not come up; the message ends with the tail of its log.
    pub async fn set(program: &Program, nodes: usize) -> anyhow::Result<Self> {
        let sandbox = Sandbox::start(Options::default()).await.context("the private servers")?;
        let settings = open_doors(sandbox.settings("demo").await?);
        let ledger = Ledger::connect(&settings.postgres, Duration::from_secs(settings.orders.pay_within_s)).await?;
        ledger::migrate(ledger.pool()).await.context("the schema")?;
        if sandbox.broker_kind() != STAND_IN {
            // The stand-in takes no such orders; its topics came with the settings.
            outbox::topics::ensure(&settings.kafka).await.context("the topics")?;
        }
        let mut stage = Self { processes: Vec::new(), sandbox, settings, urls: Vec::new() };
        for node in 0..nodes.max(1) {
            let mut settings = stage.settings.clone();
            settings.http.bind = (Ipv4Addr::LOCALHOST, free_port()?).into();
            stage.start(program, "serve", &format!("node-{node}"), &settings)?;
            stage.urls.push(format!("http://{}", settings.http.bind));
        }
        for role in ["relay", "consume", "reconcile"] {
            let settings = stage.settings.clone();
            stage.start(program, role, role, &settings)?;
        }
        stage.wait_until_ready().await?;
        Ok(stage)
    }

    fn start(&mut self, program: &Program, role: &str, name: &str, settings: &Settings) -> anyhow::Result<()> {
        let args: Vec<&str> = program.before.iter().map(String::as_str).chain([role]).collect();
        self.processes.push(self.sandbox.spawn(name, &program.path, &args, settings)?);
        Ok(())
    }

    async fn wait_until_ready(&self) -> anyhow::Result<()> {
        let client = Client::new(&self.urls, Limits::default())?;
        let path = Uri::from_static("/readyz");
        let deadline = Instant::now() + PATIENCE;
        for node in 0..client.nodes() {
            loop {
                let asked = client.send(node, Method::GET, &path, &Caller::default(), Bytes::new()).await;
                if asked.as_ref().is_ok_and(|reply| reply.status == 200) {
                    break;
                }
                self.check()?;
                if Instant::now() > deadline {
                    bail!("node {node} does not become ready: {asked:?}\n{}", self.processes[node].log_tail());
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

    /// Whether it is not Kafka, for want of Java or of Kafka.
    pub fn broker_is_a_stand_in(&self) -> bool {
        self.broker() == STAND_IN
    }

    /// How Redis syncs its append-only file. A Redis that was there before is not asked.
    pub fn redis_fsync(&self) -> &'static str {
        if self.sandbox.redis().pid().is_some() { "always" } else { "unknown" }
    }

    /// Fails if a role has ended.
    pub fn check(&self) -> anyhow::Result<()> {
        match self.processes.iter().find(|process| !process.is_running()) {
            Some(ended) => bail!("{} has ended:\n{}", ended.name(), ended.log_tail()),
            None => Ok(()),
        }
    }
}

/// The buyers' addresses are believed, and nobody is held back who clicks like a person.
fn open_doors(mut settings: Settings) -> Settings {
    settings.http.trusted_proxies = vec![Ipv4Addr::LOCALHOST.into()];
    settings.http.workers = 1;
    settings.admission.node_per_second = 1_000_000;
    settings.admission.node_burst = 1_000_000;
    settings.admission.user_burst = settings.admission.user_burst.max(20);
    settings.admission.max_tracked = settings.admission.max_tracked.max(1_000_000);
    settings.telemetry.filter = "warn".to_owned();
    settings
}

/// A port that is free now. The node that gets it binds it a moment later.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
