//! Money for orders.
//!
//! In: a payment that was made, by the buyer's own call through the simulated provider, or by the signed callback of a
//! provider. Decided: whether the order keeps it. Guaranteed: an order is paid by one payment, of exactly its amount,
//! which is the ledger's and never the client's; the same payment again changes nothing; every other payment goes
//! back. When payment and expiry come together, the ledger's one guarded transition decides, and there are two
//! results: paid and kept, or closed and refunded.

mod signature;

pub mod simulated;

use crate::domain::{Order, OrderId};
use crate::ledger::{self, Ledger, Moved};

pub use signature::{BadSecret, Signature};

/// Money that a provider holds for an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payment {
    /// Chosen by the provider, one for each payment: it is what makes a repeat harmless.
    pub id: String,
    pub order: OrderId,
    /// In cents.
    pub amount_cents: i64,
}

/// What is to become of a payment. The same answer however often it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It pays the order.
    Kept(Order),
    /// The order does not take it: closed, rejected, or paid by another payment. The provider gives it back.
    Refund(Order),
    /// It is not the order's amount. Nothing was changed.
    WrongAmount {
        /// In cents.
        due: i64,
    },
    /// There is no such order.
    UnknownOrder,
}

/// Settles a payment with the ledger. Does not check the clock: until it is closed, an order can be paid.
pub async fn settle(ledger: &Ledger, payment: &Payment) -> Result<Settled, ledger::Error> {
    // An amount is written once, with the row, so it cannot change before the move.
    let Some(order) = ledger.order(payment.order).await? else {
        return Ok(Settled::UnknownOrder);
    };
    if order.amount_cents != payment.amount_cents {
        return Ok(Settled::WrongAmount { due: order.amount_cents });
    }
    Ok(match ledger.pay(payment.order, &payment.id).await? {
        Moved::Now(order) => Settled::Kept(order),
        Moved::Already(order) if order.payment_id.as_ref() == Some(&payment.id) => Settled::Kept(order),
        Moved::Already(order) | Moved::Illegal(order) => Settled::Refund(order),
        Moved::Unknown => Settled::UnknownOrder,
    })
}
