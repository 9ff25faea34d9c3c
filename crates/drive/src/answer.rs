//! The answer to a purchase, as the HTTP contract defines it.

use std::time::Duration;

use serde::Deserialize;

use super::client::{Failure, Reply};
use seckill::api::problem::Code;
use seckill::domain::OrderId;

/// The stages that can refuse a purchase, in their order, and the codes of each.
pub const STAGES: [(&str, &[&str]); 4] = [
    (
        "invalid request",
        &[
            Code::InvalidRequest.name(),
            Code::Unauthorized.name(),
            Code::Forbidden.name(),
            Code::BodyTooLarge.name(),
            Code::UnsupportedMediaType.name(),
            Code::IdempotencyKeyReused.name(),
            Code::SaleNotFound.name(),
        ],
    ),
    ("stopped by admission", &[Code::RateLimited.name(), Code::Blocked.name(), Code::ChallengeRequired.name()]),
    ("sale not open", &[Code::SaleNotStarted.name(), Code::SalePaused.name(), Code::SaleEnded.name()]),
    ("refused by the stock", &[Code::AlreadyPurchased.name(), Code::NotEnoughLeft.name(), Code::SoldOut.name()]),
];

/// The codes with which a purchase may be refused. Anything else is outside the contract.
pub fn refusals() -> impl Iterator<Item = &'static str> {
    STAGES.into_iter().flat_map(|(_, codes)| codes.iter().copied())
}

/// The HTTP status of an answer, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// An HTTP status.
    Status(u16),
    /// No connection could be made.
    NotSent,
    Timeout,
    /// The connection broke after the request went out.
    Reset,
}

impl Transport {
    pub const fn of(result: &Result<Reply, Failure>) -> Self {
        match result {
            Ok(reply) => Self::Status(reply.status),
            Err(Failure::Connect(_)) => Self::NotSent,
            Err(Failure::Timeout) => Self::Timeout,
            Err(Failure::Reset(_)) => Self::Reset,
        }
    }
}

/// How a purchase ended, as its buyer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 202.
    Accepted(OrderId),
    /// Refused for good.
    Refused(Refusal),
    /// 5xx, timeout or reset: the buyer may hold an order or not.
    Undecided { status: Option<u16>, retry_after: Option<Duration> },
    /// Nothing was sent: the client could not connect.
    NotSent(String),
    /// An answer outside the contract.
    Unexpected(String),
}

/// A decided refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One of [`refusals`].
    pub code: &'static str,
    /// The order that the buyer holds already.
    pub order: Option<OrderId>,
}

impl Refusal {
    pub fn is(&self, code: Code) -> bool {
        self.code == code.name()
    }
}

#[derive(Deserialize)]
struct Accepted {
    order_id: OrderId,
}

#[derive(Deserialize)]
struct Problem<'a> {
    #[serde(borrow)]
    code: std::borrow::Cow<'a, str>,
    order_id: Option<OrderId>,
}

impl Answer {
    pub fn of(result: Result<Reply, Failure>) -> Self {
        let reply = match result {
            Ok(reply) => reply,
            Err(Failure::Connect(why)) => return Self::NotSent(why),
            Err(Failure::Timeout | Failure::Reset(_)) => return Self::Undecided { status: None, retry_after: None },
        };
        match reply.status {
            202 => match serde_json::from_slice::<Accepted>(&reply.body) {
                Ok(accepted) => Self::Accepted(accepted.order_id),
                Err(error) => Self::Unexpected(format!("202 without an order: {error}")),
            },
            400..500 => {
                let problem = serde_json::from_slice::<Problem>(&reply.body).ok();
                let refusal = problem.and_then(|problem| {
                    let code = refusals().find(|code| *code == problem.code)?;
                    Some(Refusal { code, order: problem.order_id })
                });
                refusal.map_or_else(|| Self::unexpected(&reply), Self::Refused)
            }
            500.. => Self::Undecided { status: Some(reply.status), retry_after: reply.retry_after },
            _ => Self::unexpected(&reply),
        }
    }

    fn unexpected(reply: &Reply) -> Self {
        const SHOWN: usize = 120;
        let text = String::from_utf8_lossy(&reply.body[..reply.body.len().min(SHOWN)]).into_owned();
        Self::Unexpected(format!("{} {text}", reply.status))
    }

    /// Whether the buyer has to ask again to know.
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::Undecided { .. } | Self::NotSent(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_breaks_after_the_request_leaves_the_purchase_undecided() {
        let failure = Failure::Reset("by the peer".to_owned());
        assert_eq!(Answer::of(Err(failure)), Answer::Undecided { status: None, retry_after: None });
    }
}
