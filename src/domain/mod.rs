//! The vocabulary: sales, orders, ids, states and the legal moves between them.
//!
//! No I/O and no clock in here, and nothing of ours is imported: every other module speaks in these words.

mod ids;

mod stock_version;

mod order;

mod purchase;

mod sale;

pub use ids::{InvalidId, OrderId, SaleId, UserId};
pub use order::{Order, OrderMessage, OrderStatus, Pool, Rejection, UnknownWord};
pub use purchase::{Accepted, Outcome, Purchase, Refusal, RequestKey, StockUpdate};
pub use sale::{Sale, SaleState};
pub use stock_version::StockVersion;
