//! What the crowd is let loose on: a private service, or one that runs somewhere.

use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use seckill::config::Settings;
use seckill::demo::{Program, Stage, rush};
use seckill::drive::client::Client;
use seckill::drive::demand::Demand;
use seckill::drive::report::{Report, Setting};
use seckill::drive::scene::Scene;
use seckill::drive::stores::Stores;
use seckill::drive::tokens::Tokens;
use seckill::drive::verdict::Patience;

use crate::crowd::Crowd;

#[derive(Debug, Args)]
pub struct Target {
    /// Starts private servers and the service on them, and stops them afterwards.
    #[arg(long, conflicts_with = "url", required_unless_present_any = ["url", "strategy"])]
    sandbox: bool,
    /// HTTP nodes of the sandbox.
    #[arg(long, default_value_t = 2, requires = "sandbox")]
    nodes: usize,
    /// Base URL of a node of a running service, such as http://127.0.0.1:8080; once per node.
    #[arg(long)]
    url: Vec<String>,
    /// The service's key for tokens: the buyers and the operator of the run are made with it.
    #[arg(long, env = "SECKILL__AUTH__JWT_SECRET", hide_env_values = true)]
    secret: Option<String>,
    /// The service's PostgreSQL, to look orders up.
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// The service's Redis, to look claims up.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// The service's Kafka brokers, to see what is on its way. Topic and group come from SECKILL__KAFKA__…
    #[arg(long, value_name = "HOST:PORT")]
    kafka: Option<String>,
}

impl Target {
    /// Plays the run to its report.
    ///
    /// # Errors
    /// When the service does not come up, cannot be reached, or does not let a sale be put on.
    pub async fn play(&self, crowd: &Crowd, demand: Demand) -> anyhow::Result<Report> {
        if self.sandbox { self.in_a_sandbox(crowd, demand).await } else { self.at_urls(crowd, demand).await }
    }

    async fn in_a_sandbox(&self, crowd: &Crowd, demand: Demand) -> anyhow::Result<Report> {
        let program = Program { before: vec!["role".to_owned()], ..Program::this()? };
        let stage = Stage::set(&program, self.nodes).await?;
        let tokens = Tokens::new(&stage.settings.auth.jwt_secret)?;
        rush(&stage, &tokens, demand, crowd.stock, crowd.temper()?, crowd.limits(self.nodes)?).await
    }

    async fn at_urls(&self, crowd: &Crowd, demand: Demand) -> anyhow::Result<Report> {
        let secret = self.secret.clone().context("--secret, or SECKILL__AUTH__JWT_SECRET, is needed with --url")?;
        let tokens = Tokens::new(&secret.into())?;
        let witness = self.witness().await?;
        let client = Client::new(&self.url, crowd.limits(self.url.len())?)?;
        let unknown = || "unknown".to_owned();
        let scene = Scene {
            client: Arc::new(client),
            tokens: &tokens,
            witness: &witness,
            demand,
            setting: Setting { broker: unknown(), redis_fsync: unknown(), nodes: self.url.len(), stock: crowd.stock },
            temper: crowd.temper()?,
            patience: Patience::default(),
        };
        Ok(scene.play().await?.report)
    }

    /// The stores whose addresses were given; everything else about them is as the service's settings say.
    async fn witness(&self) -> anyhow::Result<Stores> {
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
