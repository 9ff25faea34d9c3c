//! What the ledger answers when it cannot do what was asked.

use crate::domain::{OrderId, OrderStatus, SaleId};
use crate::lock::fence;

/// None of these has left anything half done: each call may be repeated as it is.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A message comes from a generation that this ledger does not know, so PostgreSQL is older than Redis. Nothing
    /// of that sale was written; waiting is right, rejecting is not.
    #[error(
        "sale {sale}: a message of generation {message_generation} is ahead of the ledger, which is at \
         {ledger_generation}"
    )]
    Ahead { sale: SaleId, message_generation: i64, ledger_generation: i64 },
    #[error("sale {0} is not in the ledger")]
    UnknownSale(SaleId),
    /// The message can never become a row.
    #[error("order {0} cannot be recorded: no row can hold what it says")]
    Unrecordable(OrderId),
    /// Even under the lock of the stock row the batch was cut off again and again. Nothing was written.
    #[error("sale {0}: recording was cut off by other transactions each time")]
    Contended(SaleId),
    /// An operation id came back with other units than the first time.
    #[error("operation {operation:?} was already used on sale {sale} for something else")]
    OperationReused { sale: SaleId, operation: String },
    #[error("the units added must be at least 1, and the total must stay within 2147483647")]
    UnitsOutOfRange,
    /// `close` was asked for a status that is not a way to end an order.
    #[error("an order is not closed as {0}")]
    NotAClosing(OrderStatus),
    /// The books of the sale do not balance. A rebuild of Redis from them would spread the fault.
    #[error(
        "sale {sale}: redis_total {redis_total} is not available {available} plus {live} units of live orders of \
         pool redis"
    )]
    Unbalanced { sale: SaleId, redis_total: i64, available: i64, live: i64 },
    /// A job with a greater fencing token was here.
    #[error("{0}")]
    Overtaken(String),
    /// PostgreSQL did not answer, or not in time, or not with yes.
    #[error("the ledger is unavailable: {0}")]
    Unavailable(#[from] sqlx::Error),
}

impl Error {
    /// Whether other sales may fare better: the fault lies with this sale, not with the way to PostgreSQL.
    pub fn concerns_one_sale(&self) -> bool {
        !matches!(self, Self::Unavailable(fault) if fault.as_database_error().is_none())
    }

    /// Whether PostgreSQL refused what is in the data, so that no repeat can help: SQLSTATE
    /// classes 22, data exception, and 54, program limit exceeded.
    pub(super) fn blames_the_data(&self) -> bool {
        let Self::Unavailable(fault) = self else { return false };
        sqlstate(fault).is_some_and(|code| code.starts_with("22") || code.starts_with("54"))
    }
}

/// How one attempt of an optimistic write fails.
pub(super) enum Failure {
    /// Another transaction has changed what the attempt had read. Nothing was written; read again.
    LostRace,
    Final(Error),
}

pub(super) type Attempt<T> = Result<T, Failure>;

impl From<Error> for Failure {
    fn from(fault: Error) -> Self {
        Self::Final(fault)
    }
}

impl From<sqlx::Error> for Failure {
    fn from(fault: sqlx::Error) -> Self {
        match sqlstate(&fault).as_deref() {
            // unique_violation, serialization_failure, deadlock_detected
            Some("23505" | "40001" | "40P01") => Self::LostRace,
            _ => Self::Final(Error::Unavailable(fault)),
        }
    }
}

/// SQLSTATE of a server's refusal.
pub fn sqlstate(fault: &sqlx::Error) -> Option<String> {
    fault.as_database_error().and_then(|refusal| refusal.code()).map(|code| code.into_owned())
}

impl From<fence::Error> for Error {
    fn from(error: fence::Error) -> Self {
        match error {
            fence::Error::Overtaken { .. } => Self::Overtaken(error.to_string()),
            fence::Error::Unavailable(error) => Self::Unavailable(error),
        }
    }
}
