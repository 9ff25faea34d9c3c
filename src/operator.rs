//! What an operator does with sales, by HTTP and by the command line alike. Ledger first, then Redis.
//!
//! Every command may be repeated: what a crash left half done, the repeat completes.

use std::sync::Arc;

use crate::catalogue::{self, Catalogue, NewSale, SaleChange};
use crate::config;
use crate::consumer;
use crate::domain::{Sale, SaleId, SaleState};
use crate::ledger::{self, Ledger};
use crate::promises::{self, Finding};
use crate::reconcile::opening;
use crate::stock::script::{SaleCode, StockCode};
use crate::stock::{self, Stock};

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no such sale")]
    NoSuchSale,
    #[error("a sale that is {from} cannot become {to}")]
    IllegalMove { from: SaleState, to: SaleState },
    #[error("{0}")]
    Invalid(String),
    #[error("this operation id was used for another operation")]
    OperationReused,
    /// The ledger has been told; Redis could not be. The same command again completes it.
    #[error("{0}; the ledger has it, repeat the command to complete it")]
    NotOnSale(String),
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
}

impl Operator {
    pub fn new(catalogue: Catalogue, ledger: Ledger, stock: Stock, kafka: config::Kafka) -> Self {
        Self { catalogue, ledger, stock, kafka }
    }

    /// A new sale, as a draft.
    pub async fn create(&self, new: NewSale) -> Result<Sale, Error> {
        Ok(self.catalogue.create(new).await?)
    }

    /// Changes state or times. The first opening puts the sale into Redis; nothing later does.
    pub async fn change(&self, id: SaleId, change: SaleChange) -> Result<Sale, Error> {
        let known = self.find(id).await?;
        if known.state == SaleState::Draft && change.state == Some(SaleState::Open) {
            self.catalogue.change(id, SaleChange { state: None, ..change.clone() }).await?;
            opening::open(&self.catalogue, &self.ledger, &self.stock, id).await?;
        }
        let sale = self.catalogue.change(id, change).await?;
        if sale.state != SaleState::Draft && sale.generation > 0 {
            let told = self.stock.set_sale(&sale).await?;
            if told == SaleCode::Cold && sale.state != SaleState::Ended {
                return Err(Error::NotOnSale("the sale is not in Redis".to_owned()));
            }
        }
        self.catalogue.refresh().await?;
        Ok(sale)
    }

    /// Adds units to a sale, selling or not. The operation id makes a repeat harmless.
    pub async fn add_stock(&self, id: SaleId, units: u32, operation: &str) -> Result<Sale, Error> {
        let row = self.ledger.add_stock(id, units, operation).await?;
        if row.generation > 0 {
            let told = self.stock.set_total(id, row.generation, row.redis_total).await?;
            if told == StockCode::Cold {
                return Err(Error::NotOnSale("the sale is not in Redis".to_owned()));
            }
        }
        self.catalogue.refresh().await?;
        self.find(id).await
    }

    /// Checks every promise of a sale. Ledger before Redis: a claim is older than its row.
    pub async fn audit(&self, id: SaleId) -> Result<Vec<Finding>, Error> {
        let ledger = self.ledger.view(id).await?.ok_or(Error::NoSuchSale)?;
        let redis = self.stock.view(id).await?;
        let kafka = self.kafka.clone();
        let backlog = tokio::task::spawn_blocking(move || consumer::backlog(&kafka))
            .await
            .map_err(|error| Error::Unavailable(error.to_string()))?;
        let settled = promises::Settled {
            outbox: redis.as_ref().map_or(0, |redis| redis.outbox),
            backlog: backlog.ok(),
        };
        Ok(promises::check(&promises::Snapshot { ledger, redis, settled: Some(settled), client: None, demand: None }))
    }

    pub async fn list(&self) -> Result<Vec<Arc<Sale>>, Error> {
        self.catalogue.refresh().await?;
        Ok(self.catalogue.all())
    }

    async fn find(&self, id: SaleId) -> Result<Sale, Error> {
        self.catalogue.read(id).await?.ok_or(Error::NoSuchSale)
    }
}

impl From<catalogue::Error> for Error {
    fn from(error: catalogue::Error) -> Self {
        match error {
            catalogue::Error::NoSuchSale(_) => Self::NoSuchSale,
            catalogue::Error::IllegalMove { from, to, .. } => Self::IllegalMove { from, to },
            catalogue::Error::Invalid(reason) => Self::Invalid(reason.to_string()),
            catalogue::Error::Unavailable(error) => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<ledger::Error> for Error {
    fn from(error: ledger::Error) -> Self {
        match error {
            ledger::Error::UnknownSale(_) => Self::NoSuchSale,
            ledger::Error::OperationReused { .. } => Self::OperationReused,
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl From<stock::Error> for Error {
    fn from(error: stock::Error) -> Self {
        Self::NotOnSale(error.to_string())
    }
}
