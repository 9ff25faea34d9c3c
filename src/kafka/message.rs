//! An order as it travels through Kafka: versioned JSON.
//!
//! In comes an [`OrderMessage`] or the bytes of a Kafka message; out comes the other one. Unknown fields are
//! ignored, so that a newer writer can add one. An unknown version is an error, because a newer writer raises it
//! exactly when an older reader would misunderstand. Decoding refuses only what the ledger could not store: an
//! accepted order must never become a dead letter because this side was pickier than the one that accepted it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::domain::{OrderId, OrderMessage, RequestKey, SaleId, UserId};

/// The version that this build writes, and the only one it reads.
pub const VERSION: u32 = 1;

/// Why bytes are not an order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("no order of version {VERSION}: {0}")]
    Unreadable(String),
    #[error("version {0} is not known here, only {VERSION} is")]
    UnknownVersion(u64),
    #[error("{0}")]
    Impossible(&'static str),
}

#[derive(Serialize, Deserialize)]
struct Wire<'a> {
    v: u64,
    order_id: OrderId,
    sale_id: SaleId,
    user_id: UserId,
    quantity: u32,
    generation: i64,
    accepted_ms: i64,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    request_key: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<Cow<'a, str>>,
}

/// What is left to say of bytes that are no [`Wire`]: perhaps they are one of another version.
#[derive(Deserialize)]
struct Version {
    v: u64,
}

/// The bytes of one Kafka message.
pub fn encode(message: &OrderMessage) -> Vec<u8> {
    let wire = Wire {
        v: u64::from(VERSION),
        order_id: message.id,
        sale_id: message.sale,
        user_id: message.user.clone(),
        quantity: message.quantity,
        generation: message.generation,
        accepted_ms: message.accepted_ms,
        request_key: message.request.as_ref().map(|request| Cow::from(&request.key)),
        fingerprint: message.request.as_ref().map(|request| Cow::from(&request.fingerprint)),
    };
    let mut bytes = Vec::with_capacity(256);
    // Writing plain fields into memory has no way to fail.
    serde_json::to_writer(&mut bytes, &wire).unwrap_or_else(|error| unreachable!("plain fields: {error}"));
    bytes
}

/// The order in the bytes of one Kafka message.
///
/// # Errors
/// [`Malformed`] when no retry could ever make an order of them.
pub fn decode(bytes: &[u8]) -> Result<OrderMessage, Malformed> {
    let wire: Wire<'_> = serde_json::from_slice(bytes).map_err(|error| match serde_json::from_slice(bytes) {
        Ok(Version { v }) if v != u64::from(VERSION) => Malformed::UnknownVersion(v),
        _ => Malformed::Unreadable(error.to_string()),
    })?;
    if wire.v != u64::from(VERSION) {
        return Err(Malformed::UnknownVersion(wire.v));
    }
    let request = match (wire.request_key, wire.fingerprint) {
        (None, None) => None,
        (Some(key), Some(fingerprint)) => {
            Some(RequestKey { key: key.into_owned(), fingerprint: fingerprint.into_owned() })
        }
        _ => return Err(Malformed::Impossible("request_key and fingerprint come together or not at all")),
    };
    let message = OrderMessage {
        id: wire.order_id,
        sale: wire.sale_id,
        user: wire.user_id,
        quantity: wire.quantity,
        generation: wire.generation,
        accepted_ms: wire.accepted_ms,
        request,
    };
    possible(message)
}

/// Longest request key and fingerprint, in bytes. Far beyond what a buyer may send; a key much longer would not fit
/// into an index of the ledger, and the batch would be tried again for ever.
const MAX_TEXT: usize = 1024;

/// Refuses what can be spelled and cannot be an order.
pub(crate) fn possible(message: OrderMessage) -> Result<OrderMessage, Malformed> {
    let storable = |text: &str| (1..=MAX_TEXT).contains(&text.len()) && text.bytes().all(|b| (0x20..0x7f).contains(&b));
    let impossible = if message.id.sale() != Some(message.sale) {
        "the order id names another sale"
    } else if message.quantity == 0 || i32::try_from(message.quantity).is_err() {
        "quantity is not from 1 to 2147483647"
    } else if message.generation < 1 {
        "no sale sells before generation 1"
    } else if message.accepted_ms < 0 {
        "accepted_ms is before 1970"
    } else if message.request.as_ref().is_some_and(|r| !storable(&r.key) || !storable(&r.fingerprint)) {
        "request_key and fingerprint are 1 to 1024 bytes of printable ASCII"
    } else {
        return Ok(message);
    };
    Err(Malformed::Impossible(impossible))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn order() -> OrderMessage {
        let sale = SaleId::new(7).expect("a sale id");
        OrderMessage {
            id: OrderId::mint(sale, 1_700_000_000, 42),
            sale,
            user: "ada".parse().expect("a user id"),
            quantity: 2,
            generation: 3,
            accepted_ms: 1_700_000_000_123,
            request: Some(RequestKey { key: "say \"when\"".to_owned(), fingerprint: "00ff".to_owned() }),
        }
    }

    fn changed(field: &str, value: Value) -> Result<OrderMessage, Malformed> {
        let mut json: Value = serde_json::from_slice(&encode(&order())).expect("JSON");
        json[field] = value;
        decode(json.to_string().as_bytes())
    }

    fn without(field: &str) -> Result<OrderMessage, Malformed> {
        let mut json: Value = serde_json::from_slice(&encode(&order())).expect("JSON");
        json.as_object_mut().expect("an object").remove(field);
        decode(json.to_string().as_bytes())
    }

    #[test]
    fn an_order_comes_back_as_it_went() {
        assert_eq!(decode(&encode(&order())), Ok(order()));
        let plain = OrderMessage { request: None, ..order() };
        assert_eq!(decode(&encode(&plain)), Ok(plain));
    }

    #[test]
    fn the_written_form_is_fixed() {
        let plain = OrderMessage { request: None, ..order() };
        let expected = format!(
            r#"{{"v":1,"order_id":"{}","sale_id":"7","user_id":"ada","quantity":2,"generation":3,"accepted_ms":1700000000123}}"#,
            plain.id
        );
        assert_eq!(String::from_utf8(encode(&plain)).expect("UTF-8"), expected);
    }

    #[test]
    fn unknown_fields_are_ignored() {
        assert_eq!(changed("coupon", json!({ "nested": [1, 2] })), Ok(order()));
    }

    #[test]
    fn an_unknown_version_is_named_even_when_nothing_else_is_understood() {
        assert_eq!(changed("v", json!(2)), Err(Malformed::UnknownVersion(2)));
        assert_eq!(decode(br#"{"v":9,"order":["other","shape"]}"#), Err(Malformed::UnknownVersion(9)));
        assert!(matches!(without("v"), Err(Malformed::Unreadable(_))));
        assert!(matches!(changed("v", json!("1")), Err(Malformed::Unreadable(_))));
    }

    #[test]
    fn wrong_types_missing_fields_and_overflow_are_malformed() {
        for (field, value) in [
            ("order_id", json!("6ba7b810-9dad-11d1-80b4-00c04fd430c8")),
            ("order_id", json!(5)),
            ("sale_id", json!(7)),
            ("sale_id", json!("2147483648")),
            ("user_id", json!("a b")),
            ("user_id", json!("")),
            ("quantity", json!("2")),
            ("quantity", json!(-1)),
            ("quantity", json!(1.0)),
            ("quantity", json!(4_294_967_296_u64)),
            ("generation", json!(9_223_372_036_854_775_808_u64)),
            ("accepted_ms", json!(null)),
            ("request_key", json!(["k"])),
        ] {
            assert!(matches!(changed(field, value.clone()), Err(Malformed::Unreadable(_))), "{field} = {value}");
        }
        for field in ["order_id", "sale_id", "user_id", "quantity", "generation", "accepted_ms"] {
            assert!(matches!(without(field), Err(Malformed::Unreadable(_))), "{field}");
        }
        for bytes in [&b""[..], b"null", b"[]", b"{", b"\xff\xfe", b"not json at all"] {
            assert!(matches!(decode(bytes), Err(Malformed::Unreadable(_))), "{bytes:?}");
        }
    }

    #[test]
    fn what_no_ledger_could_store_is_malformed() {
        for (field, value) in [
            ("sale_id", json!("8")),
            ("quantity", json!(0)),
            ("quantity", json!(2_147_483_648_u64)),
            ("generation", json!(0)),
            ("accepted_ms", json!(-1)),
            ("request_key", json!("nul\0")),
            ("request_key", json!("")),
            ("request_key", json!("k".repeat(1025))),
            ("fingerprint", json!("f".repeat(1025))),
        ] {
            assert!(matches!(changed(field, value.clone()), Err(Malformed::Impossible(_))), "{field} = {value}");
        }
        assert!(matches!(without("fingerprint"), Err(Malformed::Impossible(_))));
        assert!(matches!(without("request_key"), Err(Malformed::Impossible(_))));
    }
}
