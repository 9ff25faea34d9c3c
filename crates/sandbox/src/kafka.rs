//! A private Apache Kafka, the broker built into librdkafka, or the one that the environment names.
//!
//! Apache Kafka runs as one process that is both broker and controller (KRaft). It has two listeners: one for
//! everybody, and one that advertises the proxy's port, since a Kafka client goes where the broker's metadata sends it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rustix::process::Signal;

use super::folder::Folder;
use super::mock::Mock;
use super::server::{Server, StopSignals, in_path, is_file, local, not_owned};
use super::{Proxy, ports};

const NAME: &str = "kafka";
const STOP_SIGNALS: StopSignals = StopSignals { stop: Signal::TERM, end: Signal::KILL };
/// The folder in the user's cache into which `make setup` puts Kafka.
const CACHE: &str = "seckill/kafka-4.1.0/libs";
/// Set in the pipeline: there the built-in broker is an error, not a fallback.
const REQUIRE: &str = "SECKILL_REQUIRE_KAFKA";

/// The broker of a sandbox.
pub struct Kafka {
    brokers: String,
    kind: Kind,
}

enum Kind {
    Apache(Server),
    Mock(Mock),
    Given,
}

impl Kafka {
    pub(crate) const fn given(brokers: String) -> Self {
        Self { brokers, kind: Kind::Given }
    }

    pub(crate) async fn start(folder: Arc<Folder>) -> anyhow::Result<Self> {
        match Installation::find() {
            Ok(installation) => Self::start_apache(folder, installation).await,
            Err(reason) if std::env::var_os(REQUIRE).is_some() => {
                Err(reason.context(format!("{REQUIRE} is set and Apache Kafka cannot be run")))
            }
            Err(reason) => {
                tracing::warn!("{reason:#}: using the broker built into librdkafka instead of Apache Kafka");
                let mock = Mock::start()?;
                Ok(Self { brokers: mock.brokers().to_owned(), kind: Kind::Mock(mock) })
            }
        }
    }

    async fn start_apache(folder: Arc<Folder>, installation: Installation) -> anyhow::Result<Self> {
        let (port, behind_proxy, controller) = (ports::free_port()?, ports::free_port()?, ports::free_port()?);
        let proxy = Proxy::start(local(behind_proxy))?;
        let home = folder.path().join(NAME);
        let properties = prepare(&home, port, behind_proxy, proxy.port(), controller)?;
        let command_factory = move || installation.command(&home, &properties);
        let server = Server::new(NAME, folder, port, proxy, STOP_SIGNALS, command_factory);
        let kafka = Self { brokers: format!("127.0.0.1:{port}"), kind: Kind::Apache(server) };
        kafka.restart().await?;
        Ok(kafka)
    }

    /// Where it is reached directly.
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// Where it is reached through the proxy; its metadata keep a client there.
    pub fn proxied_brokers(&self) -> anyhow::Result<String> {
        Ok(format!("127.0.0.1:{}", self.proxy()?.port()))
    }

    /// What it is, as the report names it.
    pub const fn name(&self) -> &'static str {
        match self.kind {
            Kind::Apache(_) | Kind::Given => "apache-kafka",
            Kind::Mock(_) => "librdkafka-mock",
        }
    }

    /// The way to it that can be cut.
    pub fn proxy(&self) -> anyhow::Result<&Proxy> {
        Ok(self.owned()?.proxy())
    }

    /// `SIGKILL`. What was acknowledged stays.
    pub fn kill(&self) -> anyhow::Result<()> {
        match &self.kind {
            Kind::Mock(mock) => mock.down(),
            _ => self.owned()?.kill(),
        }
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
        match &self.kind {
            Kind::Mock(mock) => mock.down(),
            _ => self.owned()?.stop().await,
        }
    }

    /// Starts it again (killing it first if it runs) on the same ports and data; returns when it answers.
    pub async fn restart(&self) -> anyhow::Result<()> {
        match &self.kind {
            Kind::Mock(mock) => mock.up(),
            _ => self.owned()?.start(|| probe(self.brokers.clone())).await,
        }
    }

    /// Its process, when it is ours.
    pub fn pid(&self) -> Option<u32> {
        match &self.kind {
            Kind::Apache(server) => server.pid(),
            Kind::Mock(_) | Kind::Given => None,
        }
    }

    /// Creates a topic where clients cannot do it themselves: in the built-in broker.
    pub fn create_topic(&self, name: &str, partitions: i32) -> anyhow::Result<()> {
        match &self.kind {
            Kind::Mock(mock) => mock.create_topic(name, partitions),
            Kind::Apache(_) | Kind::Given => Ok(()),
        }
    }

    pub(crate) fn end(&self) {
        if let Kind::Apache(server) = &self.kind {
            server.end();
        }
    }

    pub(crate) const fn is_given(&self) -> bool {
        matches!(self.kind, Kind::Given)
    }

    fn owned(&self) -> anyhow::Result<&Server> {
        match &self.kind {
            Kind::Apache(server) => Ok(server),
            Kind::Mock(_) => Err(anyhow!("the built-in broker is a part of this process: it can only be killed")),
            Kind::Given => Err(not_owned(NAME)),
        }
    }
}

/// A Java and the jars of Kafka.
struct Installation {
    java: PathBuf,
    libs: PathBuf,
}

impl Installation {
    fn find() -> anyhow::Result<Self> {
        let java = match std::env::var_os("JAVA_HOME") {
            Some(home) => Some(Path::new(&home).join("bin/java")).filter(|java| is_file(java)),
            None => None,
        };
        let java = java.or_else(|| in_path("java")).context("Java is not installed")?;
        let libs = match std::env::var_os("KAFKA_HOME") {
            Some(home) => Path::new(&home).join("libs"),
            None => cache()?.join(CACHE),
        };
        let jars = fs::read_dir(&libs).with_context(|| format!("there is no Kafka in {}", libs.display()))?;
        let is_core = |name: &str| name.starts_with("kafka_") && name.ends_with(".jar");
        let found = jars.flatten().any(|jar| jar.file_name().to_str().is_some_and(is_core));
        ensure!(found, "there is no Kafka in {}", libs.display());
        Ok(Self { java, libs })
    }

    fn command(&self, home: &Path, properties: &Path) -> Command {
        let mut command = Command::new(&self.java);
        // The server is small and short-lived: the first compiler alone starts it in 3 s instead of 5.
        command.args(["-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]);
        command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
        command.arg("-cp").arg(self.libs.join("*")).arg("kafka.Kafka").arg(properties).current_dir(home);
        command
    }
}

fn cache() -> anyhow::Result<PathBuf> {
    match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
        (Some(cache), _) if !cache.is_empty() => Ok(cache.into()),
        (_, Some(home)) => Ok(Path::new(&home).join(".cache")),
        _ => bail!("neither XDG_CACHE_HOME nor HOME is set"),
    }
}

/// Writes the properties, and the identity that a formatted log folder carries: formatting it with Kafka's own tool
/// would start a second Java.
fn prepare(home: &Path, port: u16, behind_proxy: u16, proxy: u16, controller: u16) -> anyhow::Result<PathBuf> {
    let data = home.join("data");
    fs::create_dir_all(&data)?;
    fs::write(
        data.join("meta.properties"),
        "version=1\ncluster.id=c2Vja2lsbC1zYW5kYm94IQ\nnode.id=1\ndirectory.id=c2Vja2lsbC1mb2xkZXItMQ\n",
    )?;
    let properties = home.join("server.properties");
    let text = format!(
        "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAIN://127.0.0.1:{port},PROXIED://127.0.0.1:{behind_proxy},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAIN://127.0.0.1:{port},PROXIED://127.0.0.1:{proxy}
listener.security.protocol.map=PLAIN:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAIN
log.dirs={data}
auto.create.topics.enable=false
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
num.network.threads=2
num.io.threads=4
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
",
        data = data.display()
    );
    fs::write(&properties, text)?;
    Ok(properties)
}

/// Succeeds once the broker counts itself in, that is, serves requests.
async fn probe(brokers: String) -> anyhow::Result<()> {
    let ask = move || -> anyhow::Result<()> {
        let client: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &brokers)
            // Refused connections are expected here and not logged.
            .set("log.connection.close", "false")
            .set_log_level(rdkafka::config::RDKafkaLogLevel::Emerg)
            .create()?;
        let metadata = client.fetch_metadata(None, Duration::from_secs(1))?;
        ensure!(!metadata.brokers().is_empty(), "the broker is not in its own metadata yet");
        Ok(())
    };
    tokio::task::spawn_blocking(ask).await?
}
