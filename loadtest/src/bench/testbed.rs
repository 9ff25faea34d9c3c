//! The test bed of a part: servers, one node with a worker for each core, and direct connections to the stores.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::demo::{Cluster, ClusterSpec, Program, default_limits};
use anyhow::{Context, bail, ensure};
use drive::admin_client::{AdminClient, NewSale};
use drive::client::{Caller, Client, Limits};
use drive::environment::env_for;
use drive::tokens::Tokens;
use hyper::body::Bytes;
use hyper::{Method, Uri};
use redis::aio::MultiplexedConnection;
use sandbox::Process;
use seckill::config::Settings;
use seckill::domain::SaleId;
use seckill::ledger::Ledger;
use seckill::stock::{Stock, keys};
use secrecy::ExposeSecret;
use tokio::time::sleep;

use super::crowd;
use super::machine;
use super::rounds::Discarded;

/// Time for the node to hear of a sale before it starts.
const STARTS_IN: Duration = Duration::from_millis(1500);
const LASTS: Duration = Duration::from_secs(4 * 3600);
/// Far above what anything here needs: only a fault reaches it.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Everything that a part runs on. Each part starts its own, so that no part finds what another left behind.
pub struct TestBed {
    pub cluster: Cluster,
    pub tokens: Tokens,
    pub client: Client,
    pub stock: Stock,
    pub ledger: Ledger,
    pub redis: MultiplexedConnection,
    /// Where the node listens.
    pub node: SocketAddr,
}

/// Keeps the default limits, but not the node's own bucket: saturation would measure the bucket.
fn configure(settings: Settings) -> Settings {
    let mut settings = default_limits(settings);
    settings.http.workers = machine::cores();
    settings.admission.node_per_second = 100_000_000;
    settings.admission.node_burst = 100_000_000;
    // A consumer that is paused while its backlog is written stays in the group.
    settings.kafka.session_timeout_ms = 40_000;
    settings
}

impl TestBed {
    /// Servers, a node, and these other roles.
    pub async fn with(roles: &'static [&'static str]) -> anyhow::Result<Self> {
        let program = Program::this()?;
        let cluster =
            Box::pin(Cluster::configured(&program, ClusterSpec { roles, ..ClusterSpec::standard(1) }, configure))
                .await?;
        ensure!(cluster.redis_fsync() == "always", "Redis must be a private one, with appendfsync always");
        ensure!(!cluster.broker_is_a_mock(), "Java and Apache Kafka are needed: run `make setup`");
        let tokens = Tokens::new(&cluster.settings.auth.jwt_secret)?;
        let client = Client::new(&cluster.urls, Limits::default())?;
        let stock = Stock::connect(&cluster.settings.redis)?;
        let pay_within = Duration::from_secs(cluster.settings.orders.pay_within_s);
        let ledger = Ledger::connect(&cluster.settings.postgres, pay_within).await?;
        let address = redis::Client::open(cluster.settings.redis.url.expose_secret())?;
        let redis = address.get_multiplexed_async_connection().await.context("Redis does not answer")?;
        let node = cluster.urls[0].trim_start_matches("http://").parse()?;
        Ok(Self { cluster, tokens, client, stock, ledger, redis, node })
    }

    /// A sale that sells, without a reserve.
    pub async fn open(&self, units: u32) -> anyhow::Result<SaleId> {
        let new_sale = NewSale {
            name: "a sale to be measured".to_owned(),
            stock: units,
            reserve: Some(0),
            max_quantity: 1,
            starts_in: STARTS_IN,
            lasts: LASTS,
        };
        let sale = AdminClient::new(&self.client, &self.tokens)?.open(&new_sale).await?;
        sleep(sale.start.saturating_duration_since(Instant::now())).await;
        until("the sale sells", async || self.stock.probe(sale.id).await.is_ok_and(|update| update.is_some())).await?;
        Ok(sale.id)
    }

    /// A sale of one unit that is gone, as the node knows.
    pub async fn sold_out(&self) -> anyhow::Result<SaleId> {
        let sale = self.open(1).await?;
        let answer = async |n: u32| -> anyhow::Result<u16> { Ok(self.buy(sale, n as usize).await?.0) };
        ensure!(answer(0).await? == 202, "the only unit could not be bought");
        // The second answer raises the flag, and every one after it comes from the flag.
        ensure!(answer(1).await? == 409 && answer(2).await? == 409, "the sale is not sold out");
        Ok(sale)
    }

    /// One purchase by the `n`-th of some extra buyers: status and body.
    pub async fn buy(&self, sale: SaleId, n: usize) -> anyhow::Result<(u16, Bytes)> {
        let authorization = Some(self.tokens.header(&format!("passer-by-{n}").parse()?, false)?);
        let forwarded_for = Some(crowd::address(n).parse()?);
        let caller = Caller { authorization, forwarded_for, ..Caller::default() };
        let path: Uri = format!("/api/v1/sales/{sale}/purchases").parse()?;
        let reply =
            self.client.send(0, Method::POST, &path, &caller, Bytes::from_static(crowd::BODY.as_bytes())).await?;
        Ok((reply.status, reply.body))
    }

    /// Units that Redis has sold.
    pub async fn sold_in_redis(&self, sale: SaleId, total: u32) -> anyhow::Result<u32> {
        let update = self.stock.probe(sale).await?.context("Redis cannot prove that it may sell")?;
        Ok(total - update.remaining)
    }

    /// Units that the ledger has sold.
    pub async fn sold_in_ledger(&self, sale: SaleId) -> anyhow::Result<u32> {
        let query = sqlx::query_scalar("SELECT redis_total - available FROM stock WHERE sale_id = $1");
        let sold: i32 = query.bind(sale.get()).fetch_one(self.ledger.pool()).await?;
        Ok(u32::try_from(sold)?)
    }

    pub async fn outbox(&self, sale: SaleId) -> anyhow::Result<u64> {
        let length = redis::cmd("XLEN").arg(keys::outbox(sale)).to_owned();
        Ok(length.query_async(&mut self.redis.clone()).await?)
    }

    /// Bytes that Redis has in use.
    pub async fn redis_bytes(&self) -> anyhow::Result<u64> {
        let info = self.stock.info("memory").await?;
        Ok(info.get("used_memory").context("INFO without used_memory")?.parse()?)
    }

    /// Ends a sale in the distant past, and waits until the node no longer knows it.
    pub async fn close_sale(&self, sale: SaleId) -> anyhow::Result<()> {
        let long_ago = "UPDATE sales SET state = 'ended', revision = revision + 1,
            starts_at = clock_timestamp() - interval '1 year', ends_at = clock_timestamp() - interval '11 months'
            WHERE id = $1";
        sqlx::query(long_ago).bind(sale.get()).execute(self.ledger.pool()).await?;
        let path: Uri = format!("/api/v1/sales/{sale}").parse()?;
        until("the node forgets the sale", async || {
            let asked = self.client.send(0, Method::GET, &path, &Caller::default(), Bytes::new()).await;
            asked.is_ok_and(|reply| reply.status == 404)
        })
        .await
    }

    pub async fn forget_keys(&self, sale: SaleId) -> anyhow::Result<()> {
        let unlink = redis::cmd("UNLINK").arg(&keys::all(sale)).to_owned();
        Ok(unlink.exec_async(&mut self.redis.clone()).await?)
    }

    /// What the node has answered to purchases so far, by code; accepted ones as `none`.
    pub async fn answers(&self) -> anyhow::Result<Answers> {
        let path = Uri::from_static("/metrics");
        let reply = self.client.send(0, Method::GET, &path, &Caller::default(), Bytes::new()).await?;
        ensure!(reply.status == 200, "no metrics: {}", reply.status);
        Ok(Answers::read(&String::from_utf8_lossy(&reply.body)))
    }

    /// Starts a helper of this bench as a process of its own, and waits until it listens.
    pub async fn helper(&self, name: &str, args: &[&str]) -> anyhow::Result<(Process, SocketAddr)> {
        let address = SocketAddr::from(([127, 0, 0, 1], sandbox::free_port()?));
        let bind = address.to_string();
        let args: Vec<&str> = ["bench", name, &bind].into_iter().chain(args.iter().copied()).collect();
        let process =
            self.cluster.sandbox.spawn(name, &std::env::current_exe()?, &args, env_for(&self.cluster.settings))?;
        until("a helper listens", async || tokio::net::TcpStream::connect(address).await.is_ok()).await?;
        Ok((process, address))
    }
}

/// Counts of answers by code.
#[derive(Clone, Debug, Default)]
pub struct Answers(BTreeMap<String, u64>);

impl Answers {
    fn read(metrics: &str) -> Self {
        let counts = metrics.lines().filter_map(|line| {
            let (labels, count) = line.strip_prefix("seckill_http_requests_total{")?.split_once("} ")?;
            let label = |name: &str| labels.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            let is_purchase = label("route") == Some("\"purchase\"");
            is_purchase.then_some((label("code")?.trim_matches('"').to_owned(), count.parse::<f64>().ok()? as u64))
        });
        Self(counts.collect())
    }

    /// An error if, since `before`, the node gave fewer than `count` answers of this code, or any other one.
    pub fn only(&self, code: &str, count: u64, before: &Self) -> Result<(), Discarded> {
        for (given, total) in &self.0 {
            let more = total - before.0.get(given).unwrap_or(&0);
            if given != code && more > 0 {
                return Err(Discarded(format!("answers of code {given}")));
            }
        }
        let more = self.0.get(code).unwrap_or(&0) - before.0.get(code).unwrap_or(&0);
        if more < count { Err(Discarded("answers that the node did not give".to_owned())) } else { Ok(()) }
    }
}

/// Polls until a condition holds.
///
/// # Errors
/// When it takes so long that something must be broken.
pub async fn until(what: &str, holds: impl AsyncFn() -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while !holds().await {
        if Instant::now() > deadline {
            bail!("timed out after {TIMEOUT:?}, waiting until {what}");
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_purchases_are_told_by_their_code() {
        let read = |sold_out: u32, limited: u32| {
            Answers::read(&format!(
                "# HELP x\nseckill_http_requests_total{{code=\"sold_out\",route=\"purchase\",status=\"4xx\"}} {sold_out}\n\
                 seckill_http_requests_total{{code=\"rate_limited\",route=\"purchase\",status=\"4xx\"}} {limited}\n\
                 seckill_http_requests_total{{code=\"none\",route=\"sale\",status=\"2xx\"}} 9\n"
            ))
        };
        let before = read(10, 1);
        assert!(read(110, 1).only("sold_out", 100, &before).is_ok());
        assert!(read(110, 1).only("sold_out", 101, &before).is_err(), "the generator counted more");
        assert!(read(110, 2).only("sold_out", 100, &before).is_err(), "one buyer was held back");
    }
}
