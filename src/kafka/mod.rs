//! What the parts of this service need of Kafka.
//!
//! [`Producer`] sends records and reports each one as delivered or failed. [`message`] is the wire format of an order.
//! [`topics`] makes the topics, and [`lag`] says how far the consumer group is behind. The relay, the consumer and the
//! reconciler use this module; it imports none of them.

pub mod lag;
pub mod message;
mod producer;
pub mod topics;

pub(crate) use self::producer::drop_in_background;
pub use self::producer::{Delivery, Producer, Record};
