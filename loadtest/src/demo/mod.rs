//! `loadtest demo`: a whole flash sale on one machine, and a check of every promise. Nothing has to run beforehand.
//!
//! It starts private servers in a temporary folder and each role of the service in its own process. Buyers, each with
//! an address of its own, purchase over real HTTP. Once everything has settled, the demo checks every promise. It
//! succeeds only if all of them hold.

mod cluster;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;

pub use cluster::{Cluster, ClusterSpec, Program, default_limits, relaxed_limits};

use drive::client::{Client, Limits};
use drive::demand::{Demand, PostPurchase};
use drive::report::{Report, Setup, Verdict};
use drive::run::Run;
use drive::stores::Stores;
use drive::text_report::TextReport;
use drive::tokens::Tokens;
use drive::virtual_users::Pacing;
use seckill::config::Settings;

/// How often `--stay` checks the parts: one that was killed by hand is down for this long at most.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// Options of the demo.
#[derive(Clone, Debug, Args)]
pub struct Demo {
    /// Units on sale.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    stock: u32,
    /// Buyers who want them.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    buyers: u32,
    /// HTTP nodes.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    nodes: u8,
    /// Also write the report as JSON to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Keep everything running afterwards, until Ctrl-C.
    #[arg(long)]
    stay: bool,
}

impl Demo {
    /// # Errors
    /// When something does not come up, or the verdict is not "pass".
    pub async fn run(self) -> anyhow::Result<()> {
        // Ctrl-C must still stop the servers and remove their folder, which is what dropping the cluster does.
        let (mut cluster, tokens, report) = tokio::select! {
            finished = self.sell() => finished?,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        };
        if self.stay {
            // A person who buys by hand needs longer than the simulated buyers.
            cluster.pay_within(Duration::from_secs(15 * 60)).await?;
            stay(&mut cluster, &tokens).await?;
        }
        ensure!(report.verdict == Verdict::Pass, "the verdict is not pass");
        Ok(())
    }

    async fn sell(&self) -> anyhow::Result<(Cluster, Tokens, Report)> {
        say("loadtest demo: a whole flash sale on this machine\n")?;
        let began = Instant::now();
        let pay_within = time_to_pay(self.stock, self.buyers);
        let configure = |settings| with_time_to_pay(relaxed_limits(settings), pay_within);
        let cluster =
            Cluster::configured(&Program::this()?, ClusterSpec::standard(self.nodes.into()), configure).await?;
        let (broker, seconds) = (cluster.broker(), began.elapsed().as_secs_f64());
        say(format_args!("  servers   Redis (appendfsync {}), PostgreSQL, {broker}", cluster.redis_fsync()))?;
        if cluster.broker_is_a_mock() {
            say("            Java or Kafka is missing: the in-memory mock broker of librdkafka runs instead")?;
        }
        say(format_args!("            up in {seconds:.1} s, in {}", cluster.sandbox.folder().display()))?;
        say(format_args!(
            "  service   {} nodes, a relay, a consumer and a reconciler, each in its own process",
            self.nodes
        ))?;
        let post_purchase = Some(PostPurchase::paid_within(pay_within));
        let demand = Demand { buyers: self.buyers, post_purchase, ..Demand::default() };
        say(format_args!(
            "  sale      {} units, {} buyers within {} s; orders must be paid within {} s",
            self.stock,
            self.buyers,
            demand.window.as_secs(),
            pay_within.as_secs()
        ))?;
        let tokens = Tokens::new(&cluster.settings.auth.jwt_secret)?;
        let pacing = Pacing::default();
        let limits = Limits { connections: pacing.in_flight, ..Limits::default() };
        let report = rush(&cluster, &tokens, demand, self.stock, pacing, limits).await?;
        say(TextReport(&report))?;
        write(self.report.as_deref(), &report)?;
        Ok((cluster, tokens, report))
    }
}

/// How long the buyers of a sale get to pay: short, so that unpaid orders expire while one watches, and long enough for
/// the other buyers to pay on a small machine that is busy with the load. New buyers arrive for four seconds only, so
/// the units of expired orders go to buyers who retry.
pub fn time_to_pay(stock: u32, buyers: u32) -> Duration {
    Duration::from_secs(5 + (u64::from(stock) + u64::from(buyers)) / 2000)
}

/// Settings of a service that wants its orders paid within this time.
pub fn with_time_to_pay(mut settings: Settings, time: Duration) -> Settings {
    settings.orders.pay_within_s = time.as_secs();
    settings
}

/// Runs buyers against a cluster, and checks every promise.
pub async fn rush(
    cluster: &Cluster,
    tokens: &Tokens,
    demand: Demand,
    stock: u32,
    pacing: Pacing,
    limits: Limits,
) -> anyhow::Result<Report> {
    let observer = Stores::connect(&cluster.settings).await?;
    let setup = Setup {
        broker: cluster.broker().to_owned(),
        redis_fsync: cluster.redis_fsync().to_owned(),
        nodes: cluster.urls.len(),
        stock,
    };
    let client = Client::new(&cluster.urls, limits)?;
    let run = Run::new(Arc::new(client), tokens, &observer, demand, setup, pacing);
    let finished = Box::pin(run.execute_with_progress()).await?;
    cluster.check()?;
    Ok(finished.report)
}

/// Writes the report as JSON, if a file is given.
pub fn write(file: Option<&Path>, report: &Report) -> anyhow::Result<()> {
    let Some(file) = file else { return Ok(()) };
    let mut json = serde_json::to_string_pretty(report)?;
    json.push('\n');
    std::fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))
}

/// Prints to standard output.
pub fn say(text: impl std::fmt::Display) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{text}")?)
}

/// Keeps the service up for a person who buys, operates or kills by hand, until Ctrl-C.
async fn stay(cluster: &mut Cluster, tokens: &Tokens) -> anyhow::Result<()> {
    say("\nThe service keeps running; press Ctrl-C to stop it")?;
    for url in &cluster.urls {
        say(format_args!("  {url}/docs"))?;
    }
    for part in cluster.names() {
        say(format_args!("  {part:<19} process {}", cluster.part(&part)?.pid()))?;
    }
    say(format_args!("  a buyer's token     {}", tokens.sign(&"visitor".parse()?, false)?))?;
    say(format_args!("  an operator's token {}", tokens.sign(&"operator".parse()?, true)?))?;
    say(format_args!("  logs in             {}", cluster.sandbox.folder().display()))?;
    let mut stop = pin!(tokio::signal::ctrl_c());
    let mut checks = tokio::time::interval(CHECK_INTERVAL);
    loop {
        tokio::select! {
            stopped = &mut stop => return stopped.context("waiting for Ctrl-C"),
            _ = checks.tick() => for name in cluster.names() {
                if let Some(status) = cluster.part(&name)?.exit_status() {
                    cluster.restart(&name)?;
                    let pid = cluster.part(&name)?.pid();
                    say(format_args!("  {name} has ended ({status}); restarted as process {pid}"))?;
                }
            }
        }
    }
}
