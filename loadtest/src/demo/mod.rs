//! `loadtest demo`: a whole flash sale on one machine with nothing running beforehand, and the verdict on it.
//!
//! Private servers come up in a temporary folder, the roles of the service run on them as processes of their own,
//! buyers with addresses of their own come over real HTTP, and when things have settled every promise is checked.
//! Succeeds only if no promise is broken.

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

/// How long a part that was killed by hand is away.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// A flash sale on this machine.
#[derive(Clone, Debug, Args)]
pub struct Demo {
    /// Units on sale.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    stock: u32,
    /// Buyers who come for them.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    buyers: u32,
    /// HTTP nodes.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    nodes: u8,
    /// Also writes the report as JSON to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Keeps everything running afterwards, until Ctrl-C.
    #[arg(long)]
    stay: bool,
}

impl Demo {
    /// # Errors
    /// When something does not come up, or the verdict is not "pass".
    pub async fn run(self) -> anyhow::Result<()> {
        // Ctrl-C must still stop the servers and remove their folder, which is what dropping the cluster does.
        let (mut cluster, tokens, report) = tokio::select! {
            played = self.play() => played?,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        };
        if self.stay {
            // Who buys by hand needs longer than the crowd.
            cluster.pay_within(Duration::from_secs(15 * 60)).await?;
            stay(&mut cluster, &tokens).await?;
        }
        ensure!(report.verdict == Verdict::Pass, "the demo did not keep its promises");
        Ok(())
    }

    async fn play(&self) -> anyhow::Result<(Cluster, Tokens, Report)> {
        say("loadtest demo: a whole flash sale on this machine\n")?;
        let began = Instant::now();
        let pay_within = time_to_pay(self.stock, self.buyers);
        let configure = |settings| with_time_to_pay(relaxed_limits(settings), pay_within);
        let cluster =
            Cluster::configured(&Program::this()?, ClusterSpec::standard(self.nodes.into()), configure).await?;
        let (broker, seconds) = (cluster.broker(), began.elapsed().as_secs_f64());
        say(format_args!("  servers   Redis (appendfsync {}), PostgreSQL, {broker}", cluster.redis_fsync()))?;
        if cluster.broker_is_a_stand_in() {
            say("            no Java or no Kafka was found: the broker inside librdkafka stands in, in memory only")?;
        }
        say(format_args!("            up in {seconds:.1} s, in {}", cluster.sandbox.folder().display()))?;
        say(format_args!(
            "  service   {} nodes, a relay, a consumer and an auditor, each a process of its own",
            self.nodes
        ))?;
        let post_purchase = Some(PostPurchase::paid_within(pay_within));
        let demand = Demand { buyers: self.buyers, post_purchase, ..Demand::default() };
        say(format_args!(
            "  sale      {} units, {} buyers within {} s, to be paid within {} s",
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

/// How long a crowd of so many buyers gets to pay for a stock of so many units: short, so that forgotten orders expire
/// while one looks on, and long enough for all the others to pay on a small machine that is busy with the crowd. The
/// newcomers of the demo come for four seconds: what is forgotten is left to those who come again.
pub fn time_to_pay(stock: u32, buyers: u32) -> Duration {
    Duration::from_secs(5 + (u64::from(stock) + u64::from(buyers)) / 2000)
}

/// Settings of a service that wants its orders paid within this time.
pub fn with_time_to_pay(mut settings: Settings, time: Duration) -> Settings {
    settings.orders.pay_within_s = time.as_secs();
    settings
}

/// Lets buyers loose on a cluster, and judges.
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

/// For whoever buys, operates or kills by hand, until Ctrl-C.
async fn stay(cluster: &mut Cluster, tokens: &Tokens) -> anyhow::Result<()> {
    say("\nStill serving; Ctrl-C ends it")?;
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
    let mut looks = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            stopped = &mut stop => return stopped.context("waiting for Ctrl-C"),
            _ = looks.tick() => for name in cluster.names() {
                if let Some(status) = cluster.part(&name)?.exit_status() {
                    cluster.restart(&name)?;
                    say(format_args!("  {name} has ended ({status}); again as process {}", cluster.part(&name)?.pid()))?;
                }
            }
        }
    }
}
