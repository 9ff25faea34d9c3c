//! Opens a sale for the first time: its Redis state goes from generation 0 to 1.
//!
//! This is the one way in which a sale gets into Redis, so no start-up and no restart can overwrite a live one.
//! Freeze, raise the generation, warm; each step may be repeated. A sale counts as opened only when the catalogue
//! says so, after the warm: until then the ledger alone knows of it, and opening it again from the start is safe.

use crate::catalogue::Catalogue;
use crate::domain::{Sale, SaleId, SaleState};
use crate::ledger::Ledger;
use crate::operator::Error;
use crate::stock::script::WarmCode;
use crate::stock::{Frozen, OnSale, Stock, WarmPart};

/// Puts a draft on sale in Redis. Does nothing if this Redis sells it already at the ledger's generation.
pub async fn open(catalogue: &Catalogue, ledger: &Ledger, stock: &Stock, id: SaleId) -> Result<(), Error> {
    let draft = catalogue.read(id).await?.ok_or(Error::NoSuchSale)?;
    let selling = stock.probe(id).await?;
    if draft.generation > 0 && selling.is_some_and(|news| news.epoch.generation == draft.generation) {
        return Ok(());
    }
    let token = ledger.fence_token(&format!("sale:{id}"), "opening").await?;
    let Frozen::Yes { home, generation } = stock.freeze(id, token).await? else {
        return Err(Error::NotOnSale("another opening of this sale is under way".to_owned()));
    };
    let raised = ledger.open_generation(id, generation).await?;
    let on_sale = OnSale { generation: raised.generation, total: raised.redis_total, remaining: raised.available };
    let open = Sale { state: SaleState::Open, ..draft };
    match stock.warm(&open, token, &home, &on_sale, WarmPart::FRESH).await? {
        WarmCode::Warmed => {
            tracing::info!(sale = %id, generation = on_sale.generation, units = on_sale.remaining, "on sale");
            Ok(())
        }
        WarmCode::Refused => Err(Error::NotOnSale("Redis changed while the sale was being opened".to_owned())),
    }
}
