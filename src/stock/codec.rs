//! How a claim and a request are written in the hashes of a sale. `purchase.lua` writes the same forms, and the tests of
//! the scripts read them back.

use super::ClaimRecord;
use crate::domain::{OrderId, RequestKey, UserId};

/// A claim's value, in the field of its user: `ORDER|UNITS|ACCEPTED_MS`.
pub fn encode_claim(order: OrderId, quantity: u32, accepted_ms: i64) -> String {
    format!("{order}|{quantity}|{accepted_ms}")
}

pub(super) fn decode_claim(user: &str, value: &str) -> Option<ClaimRecord> {
    let mut parts = value.split('|');
    Some(ClaimRecord {
        user: user.parse().ok()?,
        order: parts.next()?.parse().ok()?,
        quantity: parts.next()?.parse().ok()?,
        accepted_ms: parts.next()?.parse().ok()?,
    })
}

/// A request's field and value: `USER:KEY` and `ORDER|FINGERPRINT|UNITS`.
pub fn encode_request(user: &UserId, key: &str, fingerprint: &str, order: OrderId, quantity: u32) -> (String, String) {
    (format!("{user}:{key}"), format!("{order}|{fingerprint}|{quantity}"))
}

/// The order and the request that it was made for.
pub(super) fn decode_request(field: &str, value: &str) -> Option<(OrderId, RequestKey)> {
    let (_user, key) = field.split_once(':')?;
    let mut parts = value.split('|');
    let order = parts.next()?.parse().ok()?;
    Some((order, RequestKey { key: key.to_owned(), fingerprint: parts.next()?.to_owned() }))
}

/// The run id in the section `server` of INFO.
pub fn run_id(info: &str) -> Option<&str> {
    info.lines().find_map(|line| line.strip_prefix("run_id:")).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::SaleId;

    #[test]
    fn a_claim_and_a_request_are_read_as_they_were_written() {
        let order = OrderId::mint(SaleId::new(7).expect("a sale id"), 1_700_000_000, 42);
        let claim = decode_claim("ann", &encode_claim(order, 3, 1_700_000_000_123)).expect("a claim");
        assert_eq!((claim.user.as_str(), claim.order, claim.quantity), ("ann", order, 3));
        assert_eq!(claim.accepted_ms, 1_700_000_000_123);

        // A key may hold the separator: a user may not.
        let request = RequestKey { key: "a:key|1".to_owned(), fingerprint: "0011223344556677".to_owned() };
        let (field, value) = encode_request(&claim.user, &request.key, &request.fingerprint, order, 3);
        assert_eq!(decode_request(&field, &value), Some((order, request)));
    }

    #[test]
    fn what_is_no_claim_is_not_read_as_one() {
        for value in ["", "1|2|3", "00000001-0000-8000-8400-000000000002|1", "00000001-0000-8000-8400-000000000002|x|1"]
        {
            assert!(decode_claim("ann", value).is_none(), "{value}");
        }
    }
}
