//! Opens a sale for the first time: its Redis state goes from generation 0 to 1.
//!
//! Nothing else fills a sale that never sold, so no start-up and no restart can overwrite a live one; the rebuild of the
//! reconciler fills one that did.
//! The sale's row is locked for the whole of it: a second opening waits, and then finds nothing to do. The generation
//! is raised in the same transaction, so an opening that loses its lock, with its session, raises nothing behind the
//! back of the one that came after. What a crash leaves (a frozen or a warm Redis without an open sale) is opened
//! again from the start; nobody has bought anything, because the nodes show a draft to nobody.

use sqlx::PgConnection;

use crate::catalogue;
use crate::domain::{Sale, SaleId, SaleState};
use crate::ledger::{self, Ledger, run_detached};
use crate::lock::{Name, fence};
use crate::stock::script::WarmCode;
use crate::stock::{self, Frozen, OnSale, Stock, WarmPart};

/// Why a sale is not open. Opening it again is always safe.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("sale {0} does not exist")]
    UnknownSale(SaleId),
    /// A holder with a greater token came in between, or Redis was restarted.
    #[error("something else happened to the sale in Redis meanwhile")]
    Overtaken,
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    #[error(transparent)]
    Stock(#[from] stock::Error),
    #[error("the ledger is unavailable: {0}")]
    Sql(#[from] sqlx::Error),
}

/// Locks the sale's row until the end of the transaction, so that openings happen one after the other.
const LOCK: &str = "SELECT 1 FROM sales WHERE id = $1 FOR UPDATE";

const OPENED: &str = "UPDATE sales SET state = 'open', revision = revision + 1 WHERE id = $1";

/// What an opening has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It sells, or will at its time; or it was not a draft any more.
    OnSale,
    /// It was opened before and has sold, which the ledger had forgotten. It sells once a reconciler has rebuilt it.
    LeftToReconciler,
}

/// Puts a draft on sale. Does nothing to a sale that is not a draft any more.
pub async fn open(ledger: &Ledger, stock: &Stock, id: SaleId) -> Result<Opened, Error> {
    let (ledger, stock) = (ledger.clone(), stock.clone());
    run_detached(async move {
        let mut transaction = ledger.pool().begin().await?;
        sqlx::query(LOCK).bind(id.get()).execute(&mut *transaction).await?;
        let sale = catalogue::read(&mut transaction, id).await?.ok_or(Error::UnknownSale(id))?;
        if sale.state != SaleState::Draft {
            return Ok(Opened::OnSale);
        }
        let opened = put_on_sale(&mut transaction, &ledger, &stock, sale).await?;
        declare_open(&mut transaction, id).await?;
        transaction.commit().await?;
        Ok(opened)
    })
    .await
}

/// Freeze, raise the generation, warm. What has sold before is not warmed with nothing sold.
async fn put_on_sale(
    transaction: &mut PgConnection,
    ledger: &Ledger,
    stock: &Stock,
    draft: Sale,
) -> Result<Opened, Error> {
    let id = draft.id;
    let seen = stock.fence(id).await?;
    // Not in the transaction: a token must never be given out twice, whatever becomes of its first holder.
    let token = fence::mint(ledger.pool(), Name::sale(id).as_str(), "opening", seen).await?;
    let Frozen::Yes { run_id, generation } = stock.freeze(id, token).await? else {
        return Err(Error::Overtaken);
    };
    let sold = has_sold(stock, id).await?;
    // Where Redis has sold: to the very generation of Redis, so that the ledger takes the orders that are on their way.
    let above = if sold { generation - 1 } else { generation };
    let raised = ledger::raise_generation(transaction, id, above).await?;
    if sold || !raised.claims.is_empty() {
        tracing::warn!(sale = %id, generation, "a draft has been sold already and is left to the reconciler: was the ledger restored?");
        return Ok(Opened::LeftToReconciler);
    }
    let on_sale = OnSale { generation: raised.generation, total: raised.total, remaining: raised.available };
    let open = Sale { state: SaleState::Open, ..draft };
    match stock.warm(&open, token, &run_id, &on_sale, WarmPart::FRESH).await? {
        WarmCode::Warmed => {
            tracing::info!(sale = %id, generation = on_sale.generation, units = on_sale.remaining, "on sale");
            Ok(Opened::OnSale)
        }
        WarmCode::Refused => Err(Error::Overtaken),
    }
}

/// Whether Redis has orders of this sale: the ledger forgot that it was opened, as after a restore from an older copy.
async fn has_sold(stock: &Stock, sale: SaleId) -> Result<bool, Error> {
    let claimed = stock.holdings(sale).await?.is_some_and(|holdings| !holdings.claims.is_empty());
    Ok(claimed || stock.outbox_length(sale).await? > 0)
}

async fn declare_open(transaction: &mut PgConnection, id: SaleId) -> Result<(), sqlx::Error> {
    sqlx::query(OPENED).bind(id.get()).execute(transaction).await.map(drop)
}
