//! A client of the admin API: opens a sale, and learns when it starts.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use hyper::{Method, Uri};
use serde::Deserialize;
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::sleep;

use super::client::{Caller, Client, Reply};
use super::tokens::Tokens;
use seckill::domain::{SaleId, SaleState, UserId};

/// A sale to be opened.
#[derive(Clone, Debug)]
pub struct NewSale {
    pub name: String,
    /// Units.
    pub stock: u32,
    /// Units of them for the time when Redis cannot be reached; `None` is the default of the service.
    pub reserve: Option<u32>,
    pub max_quantity: u32,
    /// From the moment of the call to the start of the sale: time for every node to learn of it.
    pub starts_in: Duration,
    pub lasts: Duration,
}

/// A sale that every node knows.
#[derive(Clone, Copy, Debug)]
pub struct OpenSale {
    pub id: SaleId,
    /// The start, on this machine's clock.
    pub start: Instant,
}

/// A promise, as the audit of the service finds it.
#[derive(Clone, Debug, Deserialize)]
pub struct AuditFinding {
    pub name: String,
    /// `None`: the stores alone do not tell.
    pub holds: Option<bool>,
    pub detail: String,
}

#[derive(Deserialize)]
struct Sale {
    id: SaleId,
    state: SaleState,
    #[serde(with = "time::serde::rfc3339")]
    starts_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    server_time: OffsetDateTime,
}

/// Calls the admin API with an operator's token.
pub struct AdminClient<'a> {
    client: &'a Client,
    caller: Caller,
}

impl<'a> AdminClient<'a> {
    pub fn new(client: &'a Client, tokens: &Tokens) -> anyhow::Result<Self> {
        let authorization = Some(tokens.header(&"operator".parse()?, true)?);
        Ok(Self { client, caller: Caller { authorization, ..Caller::default() } })
    }

    /// Creates and opens a sale, and waits until every node knows it as open.
    ///
    /// # Errors
    /// When the service refuses, or a node does not know the sale when it starts.
    pub async fn open(&self, new_sale: &NewSale) -> anyhow::Result<OpenSale> {
        let draft = self.create(new_sale).await?;
        // The start is in the service's time: this machine's clock may differ.
        let starts_at = draft.server_time + new_sale.starts_in;
        let change = json!({
            "state": "open",
            "starts_at": starts_at.format(&Rfc3339)?,
            "ends_at": (starts_at + new_sale.lasts).format(&Rfc3339)?,
        });
        let opened = self.call(Method::PATCH, &format!("/admin/v1/sales/{}", draft.id), &change).await?;
        let created = sale_of(&opened, 200).context("the sale cannot be opened")?;
        let mut start = None;
        for node in 0..self.client.nodes() {
            start = Some(self.wait_for(node, created.id, created.starts_at, new_sale.starts_in).await?);
        }
        Ok(OpenSale { id: created.id, start: start.context("there are no nodes")? })
    }

    /// Adds units to a sale; the same `operation` adds once, however often it is asked for.
    ///
    /// # Errors
    /// When the service refuses or does not answer.
    pub async fn add_stock(&self, sale: SaleId, units: u32, operation: &str) -> anyhow::Result<()> {
        let caller = Caller { idempotency_key: Some(HeaderValue::from_str(operation)?), ..self.caller.clone() };
        let path = format!("/admin/v1/sales/{sale}/stock").parse()?;
        let body = Bytes::from(json!({ "add": units }).to_string());
        let reply = self.client.send(0, Method::POST, &path, &caller, body).await?;
        sale_of(&reply, 200).map(drop).context("no units can be added")
    }

    /// Puts a user on the blacklist, or takes it off again.
    ///
    /// # Errors
    /// When the service refuses or does not answer.
    pub async fn block(&self, user: &UserId, blocked: bool) -> anyhow::Result<()> {
        let method = if blocked { Method::PUT } else { Method::DELETE };
        let path = format!("/admin/v1/blacklist/{user}").parse()?;
        let reply = self.client.send(0, method, &path, &self.caller, Bytes::new()).await?;
        ensure!(reply.status == 204, "the blacklist does not take {user}: {}", text(&reply));
        Ok(())
    }

    /// What the audit of the service finds about each promise.
    ///
    /// # Errors
    /// When the service refuses or does not answer.
    pub async fn audit(&self, sale: SaleId) -> anyhow::Result<Vec<AuditFinding>> {
        #[derive(Deserialize)]
        struct Audit {
            promises: Vec<AuditFinding>,
        }
        let path = format!("/admin/v1/sales/{sale}/audit").parse()?;
        let reply = self.client.send(0, Method::GET, &path, &self.caller, Bytes::new()).await?;
        ensure!(reply.status == 200, "no audit: {}", text(&reply));
        Ok(serde_json::from_slice::<Audit>(&reply.body)?.promises)
    }

    async fn create(&self, new_sale: &NewSale) -> anyhow::Result<Sale> {
        let now = OffsetDateTime::now_utc();
        let body = json!({
            "name": new_sale.name,
            "price_cents": 100,
            "stock": new_sale.stock,
            "reserve": new_sale.reserve,
            "max_quantity": new_sale.max_quantity,
            "starts_at": now.format(&Rfc3339)?,
            "ends_at": (now + new_sale.lasts).format(&Rfc3339)?,
            "challenge": false,
        });
        let reply = self.call(Method::POST, "/admin/v1/sales", &body).await?;
        sale_of(&reply, 201).context("the sale cannot be created")
    }

    /// Polls a node until it knows that the sale is open. Returns the start of the sale on this machine's clock.
    async fn wait_for(
        &self,
        node: usize,
        id: SaleId,
        starts_at: OffsetDateTime,
        timeout: Duration,
    ) -> anyhow::Result<Instant> {
        let deadline = Instant::now() + timeout;
        let path: Uri = format!("/api/v1/sales/{id}").parse()?;
        loop {
            let asked = Instant::now();
            let reply = self.client.send(node, Method::GET, &path, &self.caller, Bytes::new()).await?;
            let answered = Instant::now();
            if let Ok(sale) = sale_of(&reply, 200)
                && (sale.state, sale.starts_at) == (SaleState::Open, starts_at)
            {
                // The node read its clock between the request and the answer: the middle is off by at most half a round
                // trip.
                let read_at = asked + (answered - asked) / 2;
                let wait = Duration::try_from(sale.starts_at - sale.server_time).ok();
                return wait.map(|wait| read_at + wait).context("a node learned of the sale only after its start");
            }
            if Instant::now() > deadline {
                bail!("node {node} does not know sale {id}: {}", text(&reply));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn call(&self, method: Method, path: &str, body: &serde_json::Value) -> anyhow::Result<Reply> {
        Ok(self.client.send(0, method, &path.parse()?, &self.caller, Bytes::from(body.to_string())).await?)
    }
}

fn sale_of(reply: &Reply, status: u16) -> anyhow::Result<Sale> {
    ensure!(reply.status == status, "{}", text(reply));
    Ok(serde_json::from_slice(&reply.body)?)
}

fn text(reply: &Reply) -> String {
    format!("{} {}", reply.status, String::from_utf8_lossy(&reply.body))
}
