//! Why the catalogue says no.

use crate::domain::{SaleId, SaleState};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("sale {0} does not exist")]
    UnknownSale(SaleId),
    /// The states of a sale do not lead there.
    #[error("a sale that is {from} cannot become {to}")]
    IllegalMove { from: SaleState, to: SaleState },
    #[error("an ended sale keeps its times")]
    AlreadyEnded,
    /// What was asked for is outside the limits of the schema; says which.
    #[error("{0}")]
    Invalid(&'static str),
    #[error("the catalogue is unavailable: {0}")]
    Unavailable(sqlx::Error),
}

/// The named limits of the schema, as an operator reads them.
const LIMITS: [(&str, &str); 6] = [
    ("sales_name_length", "a name is 1 to 200 characters"),
    ("sales_price_range", "a price is 0 to 4000000000 cents"),
    ("sales_max_quantity_positive", "max_quantity is at least 1"),
    ("sales_ends_after_start", "a sale ends after it starts"),
    ("stock_total_positive", "a sale has at least 1 unit"),
    ("blacklist_reason_length", "a reason is 1 to 200 characters"),
];

/// SQLSTATE character_not_in_repertoire: of valid UTF-8, PostgreSQL refuses only NUL.
const NUL: &str = "22021";

impl From<sqlx::Error> for Error {
    fn from(fault: sqlx::Error) -> Self {
        if fault.as_database_error().and_then(|refusal| refusal.code()).as_deref() == Some(NUL) {
            return Self::Invalid("a text holds a NUL character");
        }
        let constraint = fault.as_database_error().and_then(|refusal| refusal.constraint());
        let limit = LIMITS.iter().find(|(name, _)| Some(*name) == constraint);
        limit.map_or(Self::Unavailable(fault), |(_, limit)| Self::Invalid(limit))
    }
}
