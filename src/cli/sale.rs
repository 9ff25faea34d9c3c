//! `seckill sale …`: the operator's commands, straight to the ledger and Redis.

use anyhow::Context;
use clap::Subcommand;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use super::out;
use crate::app;
use crate::catalogue::{NewSale, SaleChange};
use crate::config::Settings;
use crate::domain::{Sale, SaleId, SaleState};
use crate::promises::CheckResult;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Creates a sale, as a draft.
    Create {
        name: String,
        /// Units.
        #[arg(long)]
        stock: u32,
        /// Units of these that are sold only while Redis cannot be reached; the share of the settings if absent.
        #[arg(long)]
        reserve: Option<u32>,
        /// Price of one unit, in cents.
        #[arg(long, default_value_t = 0)]
        price_cents: i64,
        /// Most units that one order may hold.
        #[arg(long, default_value_t = 1)]
        max_quantity: u32,
        /// When it starts, in RFC 3339; now if absent.
        #[arg(long, value_parser = parse_time)]
        starts_at: Option<OffsetDateTime>,
        /// When it ends, in RFC 3339; an hour after the start if absent.
        #[arg(long, value_parser = parse_time)]
        ends_at: Option<OffsetDateTime>,
        /// Asks buyers for a solved challenge.
        #[arg(long)]
        challenge: bool,
    },
    /// Lists the sales.
    List,
    /// Opens a draft, or a paused sale again.
    Open { id: SaleId },
    /// Pauses an open sale.
    Pause { id: SaleId },
    /// Ends a sale for good.
    End { id: SaleId },
    /// Adds units, while selling or not.
    AddStock {
        id: SaleId,
        units: u32,
        /// Names the addition: the same name again adds nothing. Made up if absent, and printed.
        #[arg(long)]
        operation: Option<String>,
    },
    /// Checks every promise of a sale; fails if one is broken.
    Audit { id: SaleId },
}

impl Command {
    pub async fn run(self, settings: &Settings) -> anyhow::Result<()> {
        let operator = app::operator(settings).await?;
        match self {
            Self::Create { name, stock, reserve, price_cents, max_quantity, starts_at, ends_at, challenge } => {
                let starts_at = starts_at.unwrap_or_else(OffsetDateTime::now_utc);
                let hour_later = starts_at.checked_add(Duration::HOUR);
                let ends_at = ends_at.or(hour_later).context("the sale starts too late for any end")?;
                let new =
                    NewSale { name, price_cents, total: stock, reserve, max_quantity, starts_at, ends_at, challenge };
                print(&operator.create(new).await?);
            }
            Self::List => operator.list().await?.iter().for_each(|sale| print(sale)),
            Self::Open { id } => print(&operator.change(id, state(SaleState::Open)).await?),
            Self::Pause { id } => print(&operator.change(id, state(SaleState::Paused)).await?),
            Self::End { id } => print(&operator.change(id, state(SaleState::Ended)).await?),
            Self::AddStock { id, units, operation } => {
                let operation = operation.unwrap_or_else(|| Uuid::new_v4().to_string());
                out::line(format_args!("operation {operation}"));
                let sale = operator.add_stock(id, units, &operation).await;
                print(&sale.with_context(|| format!("repeat with --operation {operation}"))?);
            }
            Self::Audit { id } => {
                let findings = operator.audit(id).await?;
                for finding in &findings {
                    let holds = match finding.holds {
                        CheckResult::Holds => "holds",
                        CheckResult::Broken => "BROKEN",
                        CheckResult::Unknown => "not checked",
                    };
                    out::line(format_args!("{:<16} {holds:<12} {}", finding.name, finding.detail));
                }
                anyhow::ensure!(
                    findings.iter().all(|finding| finding.holds != CheckResult::Broken),
                    "a promise is broken"
                );
            }
        }
        Ok(())
    }
}

fn state(state: SaleState) -> SaleChange {
    SaleChange { state: Some(state), starts_at: None, ends_at: None }
}

fn print(sale: &Sale) {
    let time = |at: OffsetDateTime| at.format(&Rfc3339).unwrap_or_default();
    let Sale { id, name, state, total, .. } = sale;
    let (starts_at, ends_at) = (time(sale.starts_at), time(sale.ends_at));
    out::line(format_args!("{id:>6}  {state:<7} {total:>8} units  {starts_at} to {ends_at}  {name}"));
}

fn parse_time(text: &str) -> Result<OffsetDateTime, String> {
    OffsetDateTime::parse(text, &Rfc3339).map_err(|error| format!("not a time in RFC 3339: {error}"))
}
