//! What an operator does with sales, by HTTP and by the command line alike. Ledger first, then Redis.
//!
//! Every command but `create` may be repeated: what a crash left half done, the repeat completes.

pub mod opening;

use std::sync::Arc;

use crate::catalogue::{self, Catalogue, NewSale, SaleChange};
use crate::config;
use crate::domain::{Sale, SaleId, SaleState, UserId};
use crate::kafka;
use crate::ledger::{self, Ledger};
use crate::promises::{self, CheckResult, Finding, Flow, RedisView, Snapshot};
use crate::stock::script::{SaleCode, StockCode};
use crate::stock::{self, Stock};
use opening::Opened;

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no such sale")]
    NoSuchSale,
    #[error("{0}")]
    IllegalMove(String),
    #[error("{0}")]
    Invalid(String),
    #[error("this operation id was used for another operation")]
    OperationReused,
    /// The ledger has the change; Redis could not be reached. The same command again completes it.
    #[error("{0}; the ledger has it, repeat the command to complete it")]
    NotOnSale(String),
    /// The opening failed before anything was declared open: the sale is the draft that it was.
    #[error("{0}; the sale is still a draft, repeat the command to open it")]
    NotOpened(String),
    /// Redis holds something that nothing of this wrote.
    #[error("Redis holds an unreadable value: {0}")]
    Corrupt(String),
    #[error("a server did not answer: {0}")]
    Unavailable(String),
}

/// The operator's commands.
#[derive(Clone)]
pub struct Operator {
    catalogue: Catalogue,
    ledger: Ledger,
    stock: Stock,
    kafka: config::Kafka,
    reserve_percent: u32,
}

impl Operator {
    pub fn new(catalogue: Catalogue, ledger: Ledger, stock: Stock, settings: &config::Settings) -> Self {
        let reserve_percent = settings.fallback.reserve_percent;
        Self { catalogue, ledger, stock, kafka: settings.kafka.clone(), reserve_percent }
    }

    /// A new sale, as a draft. Without a word about its reserve it gets the share of the settings, rounded down.
    pub async fn create(&self, new: NewSale) -> Result<Sale, Error> {
        let share = u64::from(new.total) * u64::from(self.reserve_percent) / 100;
        let reserve = new.reserve.or_else(|| u32::try_from(share).ok());
        Ok(self.catalogue.create(NewSale { reserve, ..new }).await?)
    }

    /// Changes state or times. The first opening fills the sale in Redis; after that only the rebuild does.
    pub async fn change(&self, id: SaleId, change: SaleChange) -> Result<Sale, Error> {
        if change.state == Some(SaleState::Open) && self.find(id).await?.state == SaleState::Draft {
            self.catalogue.change(id, SaleChange { state: None, ..change }).await?;
            if opening::open(&self.ledger, &self.stock, id).await? == Opened::LeftToReconciler {
                return Err(Error::NotOnSale(
                    "it has sold before, and sells again once a reconciler has rebuilt it".to_owned(),
                ));
            }
        }
        let sale = self.catalogue.change(id, change).await?;
        if sale.generation > 0 && self.stock.set_sale(&sale).await? == SaleCode::Cold {
            return Err(Error::NotOnSale("the sale is not in Redis".to_owned()));
        }
        self.catalogue.show_own_change().await;
        Ok(sale)
    }

    /// Adds units to a sale, selling or not. The operation id makes a repeat harmless.
    pub async fn add_stock(&self, id: SaleId, units: u32, operation: &str) -> Result<Sale, Error> {
        let row = self.ledger.add_stock(id, units, operation).await?;
        if row.generation > 0 && self.stock.set_total(id, row.generation, row.redis_total).await? == StockCode::Cold {
            return Err(Error::NotOnSale("the sale is not in Redis".to_owned()));
        }
        self.catalogue.show_own_change().await;
        match (self.find(id).await, self.catalogue.get(id)) {
            // The units are there, whether or not the sale can be read back now.
            (Err(error @ Error::Unavailable(_)), Some(known)) => {
                tracing::warn!(sale = %id, %error, "units were added; the sale cannot be read back");
                Ok(Sale { total: row.total, ..Sale::clone(&known) })
            }
            (found, _) => found,
        }
    }

    /// Checks every promise of a sale that can be checked without the buyers' own records.
    ///
    /// Ledger and Redis cannot be read at one instant, so a promise counts as broken only if it is broken twice.
    pub async fn audit(&self, id: SaleId) -> Result<Vec<Finding>, Error> {
        let findings = self.check_promises(id).await?;
        if findings.iter().any(|finding| finding.holds == CheckResult::Broken) {
            return self.check_promises(id).await;
        }
        Ok(findings)
    }

    async fn check_promises(&self, id: SaleId) -> Result<Vec<Finding>, Error> {
        // In the order in which orders travel: whatever moves on in between is counted again further down, and looks
        // unsettled rather than wrong. Ledger before Redis, because a claim is older than its row.
        let outbox = self.seen_in_redis(id).await?.map(|redis| redis.outbox);
        let kafka = self.kafka.clone();
        // Asking Kafka blocks a thread.
        let backlog = tokio::task::spawn_blocking(move || kafka::lag::backlog(&kafka)).await;
        let ledger = self.ledger.view(id).await?.ok_or(Error::NoSuchSale)?;
        let redis = self.seen_in_redis(id).await?;
        let flow = match (outbox, &redis, backlog) {
            (Some(outbox), Some(redis), Ok(Ok(backlog))) => {
                let rebuilding = !redis.selling || redis.generation != ledger.generation;
                Some(Flow { outbox: outbox.max(redis.outbox), backlog, rebuilding })
            }
            _ => None,
        };
        Ok(promises::check(&Snapshot { ledger, redis, flow, client: None, demand_reached_stock: None }))
    }

    /// `None`: Redis holds nothing of the sale, or does not answer. Only that is no finding; a claim that cannot be
    /// read is one.
    async fn seen_in_redis(&self, id: SaleId) -> Result<Option<RedisView>, Error> {
        match self.stock.view(id).await {
            Ok(view) => Ok(view),
            Err(error) if error.is_silence() => Ok(None),
            Err(error) => Err(Error::Corrupt(error.to_string())),
        }
    }

    /// Every sale that is not past retention.
    pub async fn list(&self) -> Result<Vec<Arc<Sale>>, Error> {
        self.catalogue.refresh().await?;
        Ok(self.catalogue.all())
    }

    /// Keeps a user from buying, on every node within a second.
    pub async fn block(&self, user: &UserId, reason: &str) -> Result<(), Error> {
        Ok(self.catalogue.block(user, reason).await?)
    }

    pub async fn unblock(&self, user: &UserId) -> Result<(), Error> {
        Ok(self.catalogue.unblock(user).await?)
    }

    async fn find(&self, id: SaleId) -> Result<Sale, Error> {
        let mut connection = self.ledger.pool().acquire().await?;
        catalogue::read(&mut connection, id).await?.ok_or(Error::NoSuchSale)
    }
}

impl From<catalogue::Error> for Error {
    fn from(error: catalogue::Error) -> Self {
        match error {
            catalogue::Error::UnknownSale(_) => Self::NoSuchSale,
            catalogue::Error::IllegalMove { .. } | catalogue::Error::AlreadyEnded => {
                Self::IllegalMove(error.to_string())
            }
            catalogue::Error::Invalid(reason) => Self::Invalid(reason.to_owned()),
            catalogue::Error::Unavailable(error) => error.into(),
        }
    }
}

impl From<ledger::Error> for Error {
    fn from(error: ledger::Error) -> Self {
        match error {
            ledger::Error::UnknownSale(_) => Self::NoSuchSale,
            ledger::Error::OperationReused { .. } => Self::OperationReused,
            ledger::Error::UnitsOutOfRange => Self::Invalid(error.to_string()),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<opening::Error> for Error {
    fn from(error: opening::Error) -> Self {
        match error {
            opening::Error::UnknownSale(_) => Self::NoSuchSale,
            opening::Error::Ledger(error) => error.into(),
            opening::Error::Stock(error) => Self::NotOpened(error.to_string()),
            opening::Error::Sql(error) => error.into(),
            opening::Error::Overtaken => Self::NotOpened(error.to_string()),
        }
    }
}

impl From<stock::Error> for Error {
    fn from(error: stock::Error) -> Self {
        Self::NotOnSale(error.to_string())
    }
}
