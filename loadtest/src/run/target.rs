//! The target of a run: a private service, or one that runs elsewhere.

use std::sync::Arc;
use std::time::Duration;

use crate::demo::{Cluster, ClusterSpec, Program, default_limits, relaxed_limits, time_to_pay, with_time_to_pay};
use anyhow::Context;
use clap::Args;
use drive::client::Client;
use drive::report::{Report, Setup};
use drive::stores::Stores;
use drive::tokens::Tokens;
use seckill::config::Settings;
use tokio_util::sync::CancellationToken;

use super::execute::{Service, execute};
use crate::scenario::overrides::Overrides;
use crate::scenario::{Limits, Scenario};

#[derive(Debug, Args)]
pub struct Target {
    /// Start private servers and the service on them, and stop them afterwards.
    #[arg(long, conflicts_with = "url", required_unless_present_any = ["url", "strategy"])]
    sandbox: bool,
    /// HTTP nodes of the private service.
    #[arg(long, default_value_t = 2, requires = "sandbox")]
    nodes: usize,
    /// Base URL of a node of a running service, such as http://127.0.0.1:8080; repeat it for each node.
    #[arg(long)]
    url: Vec<String>,
    /// The service's key for tokens, which signs those of the buyers and the operator.
    #[arg(long, env = "SECKILL__AUTH__JWT_SECRET", hide_env_values = true)]
    secret: Option<String>,
    /// The service's PostgreSQL, to read orders. Needs --redis and --kafka: with only some of the stores the run would
    /// check less than the service's own audit does.
    #[arg(long, value_name = "URL", requires_all = ["redis", "kafka"])]
    postgres: Option<String>,
    /// The service's Redis, to read claims.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// The service's Kafka brokers, to read the lag. Topic and group come from SECKILL__KAFKA__…
    #[arg(long, value_name = "HOST:PORT")]
    kafka: Option<String>,
    /// Seconds in which orders of the running service must be paid (its orders.pay_within_s). Without it no buyer
    /// leaves an order unpaid, because the run would not know when to expect its expiry.
    #[arg(long, value_name = "SECONDS", conflicts_with = "sandbox")]
    pay_within_s: Option<u64>,
}

impl Target {
    /// Runs the scenario and returns its report; `stop` stops the buyers early.
    ///
    /// # Errors
    /// When the service does not come up, cannot be reached, or opens no sale.
    pub async fn run(
        &self,
        scenario: &Scenario,
        overrides: &Overrides,
        stop: &CancellationToken,
    ) -> anyhow::Result<Report> {
        if self.sandbox {
            Box::pin(self.on_sandbox(scenario, overrides, stop)).await
        } else {
            Box::pin(self.at_urls(scenario, overrides, stop)).await
        }
    }

    async fn on_sandbox(
        &self,
        scenario: &Scenario,
        overrides: &Overrides,
        stop: &CancellationToken,
    ) -> anyhow::Result<Report> {
        let program = Program::this()?;
        let pay_within = time_to_pay(
            scenario.sales.iter().map(|sale| sale.stock).sum(),
            scenario.sales.iter().map(|sale| sale.buyers).sum(),
        );
        let configure = |settings| {
            let settings = match scenario.limits {
                Limits::Relaxed => relaxed_limits(settings),
                Limits::Default => default_limits(settings),
            };
            with_time_to_pay(settings, pay_within)
        };
        let cluster = Cluster::configured(&program, ClusterSpec::standard(self.nodes), configure).await?;
        let service = Service {
            client: Arc::new(Client::new(&cluster.urls, overrides.limits(scenario, self.nodes)?)?),
            tokens: Tokens::new(&cluster.settings.auth.jwt_secret)?,
            observer: Stores::connect(&cluster.settings).await?,
            setup: Setup {
                broker: cluster.broker().to_owned(),
                redis_fsync: cluster.redis_fsync().to_owned(),
                nodes: cluster.urls.len(),
                stock: 0,
            },
            pay_within: Some(pay_within),
        };
        let report = execute(scenario, overrides, &service, stop).await?;
        cluster.check()?;
        Ok(report)
    }

    async fn at_urls(
        &self,
        scenario: &Scenario,
        overrides: &Overrides,
        stop: &CancellationToken,
    ) -> anyhow::Result<Report> {
        let secret = self.secret.clone().context("--secret, or SECKILL__AUTH__JWT_SECRET, is needed with --url")?;
        let unknown = || "unknown".to_owned();
        let service = Service {
            client: Arc::new(Client::new(&self.url, overrides.limits(scenario, self.url.len())?)?),
            tokens: Tokens::new(&secret.into())?,
            observer: self.observer().await?,
            setup: Setup { broker: unknown(), redis_fsync: unknown(), nodes: self.url.len(), stock: 0 },
            pay_within: self.pay_within_s.map(Duration::from_secs),
        };
        execute(scenario, overrides, &service, stop).await
    }

    /// The stores whose addresses were given; everything else about them is as the service's settings say.
    async fn observer(&self) -> anyhow::Result<Stores> {
        let mut settings = Settings::load(None)?;
        let postgres = self.postgres.as_ref().map(|url| {
            settings.postgres.url = url.clone().into();
            &settings.postgres
        });
        let redis = self.redis.as_ref().map(|url| {
            settings.redis.url = url.clone().into();
            &settings.redis
        });
        let kafka = self.kafka.as_ref().map(|brokers| {
            settings.kafka.brokers.clone_from(brokers);
            &settings.kafka
        });
        Stores::some(postgres, redis, kafka).await
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        _target: Target,
        /// `--sandbox` may be left out for it.
        #[arg(long)]
        strategy: Option<String>,
    }

    #[test]
    fn postgres_is_only_looked_at_together_with_redis_and_kafka() {
        let taken = |flags: &[&str]| {
            let line = ["line", "--url", "http://127.0.0.1:1"].iter().chain(flags);
            Line::try_parse_from(line).map(|line| line.strategy.is_none())
        };
        assert!(taken(&[]).is_ok());
        assert!(taken(&["--postgres", "p", "--redis", "r", "--kafka", "k"]).is_ok());
        for flags in
            [vec!["--postgres", "p"], vec!["--postgres", "p", "--redis", "r"], vec!["--postgres", "p", "--kafka", "k"]]
        {
            assert!(taken(&flags).is_err(), "{flags:?}");
        }
    }
}
