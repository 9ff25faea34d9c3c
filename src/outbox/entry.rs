//! One entry of an outbox stream, as Redis hands it over, and the order in it.

use redis::{ErrorKind, RedisError, Value};

use crate::domain::{OrderMessage, RequestKey, SaleId};
use crate::kafka::message::{self, Malformed};

/// Name and value.
pub type Field = (Vec<u8>, Vec<u8>);

/// An entry of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its stream id, such as `1700000000123-0`.
    pub id: String,
    /// Fields and values, in order. `None` when the entry was removed while it was still pending.
    pub fields: Option<Vec<Field>>,
}

impl Entry {
    /// The value of a field; the first one if it is there twice, as `ack.lua` has it.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        let fields = self.fields.as_ref()?;
        fields.iter().find(|(field, _)| field == name.as_bytes()).map(|(_, value)| value.as_slice())
    }

    /// The order that was accepted with this entry.
    ///
    /// # Errors
    /// [`Malformed`] when the entry is none that `purchase.lua` writes.
    pub fn order(&self, sale: SaleId) -> Result<OrderMessage, Malformed> {
        let request = match (self.optional("key")?, self.optional("fingerprint")?) {
            (Some(key), Some(fingerprint)) => Some(RequestKey { key, fingerprint }),
            (None, None) => None,
            _ => return Err(Malformed::Impossible("key and fingerprint come together or not at all")),
        };
        message::possible(OrderMessage {
            id: self.parsed("order")?,
            sale,
            user: self.parsed("user")?,
            quantity: self.parsed("quantity")?,
            generation: self.parsed("generation")?,
            accepted_ms: self.parsed("accepted_ms")?,
            request,
        })
    }

    fn text(&self, name: &str) -> Result<Option<&str>, Malformed> {
        let utf8 = |bytes| std::str::from_utf8(bytes).map_err(|_| unreadable(name, "is not UTF-8"));
        self.field(name).map(utf8).transpose()
    }

    fn optional(&self, name: &str) -> Result<Option<String>, Malformed> {
        Ok(self.text(name)?.map(str::to_owned))
    }

    fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<T, Malformed> {
        let text = self.text(name)?.ok_or_else(|| unreadable(name, "is missing"))?;
        text.parse().map_err(|error| unreadable(name, format_args!("= {text:?}: {error}")))
    }

    /// The whole entry as JSON, bytes that are no UTF-8 replaced: what an operator reads in a dead letter.
    pub fn to_json(&self) -> Vec<u8> {
        let pair = |(field, value): &Field| {
            serde_json::json!([String::from_utf8_lossy(field), String::from_utf8_lossy(value)])
        };
        let fields: Vec<_> = self.fields.iter().flatten().map(pair).collect();
        serde_json::json!({ "stream_id": self.id, "fields": fields }).to_string().into_bytes()
    }
}

fn unreadable(name: &str, what: impl std::fmt::Display) -> Malformed {
    Malformed::Unreadable(format!("field {name} {what}"))
}

/// The entries in an answer of `XRANGE` or `XCLAIM`.
pub(super) fn entries(value: Value) -> Result<Vec<Entry>, RedisError> {
    sequence(value)?.into_iter().filter(|item| *item != Value::Nil).map(entry).collect()
}

/// The entries in an answer of `XREADGROUP` on one stream; none when it waited in vain.
pub(super) fn entries_of_one_stream(value: Value) -> Result<Vec<Entry>, RedisError> {
    let of_stream = match value {
        Value::Nil => return Ok(Vec::new()),
        // RESP3 answers with a map from stream to entries, RESP2 with pairs.
        Value::Map(streams) => streams.into_iter().next().map(|(_, entries)| entries),
        other => match sequence(other)?.into_iter().next() {
            Some(pair) => sequence(pair)?.into_iter().nth(1),
            None => None,
        },
    };
    of_stream.map_or_else(|| Ok(Vec::new()), entries)
}

/// The cursor to go on from and the entries in an answer of `XAUTOCLAIM`.
pub(super) fn claimed(value: Value) -> Result<(String, Vec<Entry>), RedisError> {
    let mut parts = sequence(value)?.into_iter();
    match (parts.next(), parts.next()) {
        (Some(cursor), Some(list)) => Ok((redis::from_redis_value(cursor)?, entries(list)?)),
        _ => Err(unexpected("XAUTOCLAIM answered neither cursor nor entries")),
    }
}

fn entry(value: Value) -> Result<Entry, RedisError> {
    let mut parts = sequence(value)?.into_iter();
    let (Some(id), fields) = (parts.next(), parts.next()) else {
        return Err(unexpected("a stream entry without an id"));
    };
    let fields = match fields {
        None | Some(Value::Nil) => None,
        Some(flat) => Some(pairs(flat)?),
    };
    Ok(Entry { id: redis::from_redis_value(id)?, fields })
}

fn pairs(flat: Value) -> Result<Vec<Field>, RedisError> {
    let mut values = sequence(flat)?.into_iter();
    let mut pairs = Vec::with_capacity(values.len() / 2);
    while let (Some(field), Some(value)) = (values.next(), values.next()) {
        pairs.push((redis::from_redis_value(field)?, redis::from_redis_value(value)?));
    }
    Ok(pairs)
}

fn sequence(value: Value) -> Result<Vec<Value>, RedisError> {
    value.into_sequence().map_err(|_| unexpected("a list was expected"))
}

fn unexpected(what: &'static str) -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::OrderId;

    fn sale() -> SaleId {
        SaleId::new(7).expect("a sale id")
    }

    fn written() -> Vec<(&'static str, String)> {
        vec![
            ("order", OrderId::mint(sale(), 1_700_000_000, 1).to_string()),
            ("user", "ada".to_owned()),
            ("quantity", "1".to_owned()),
            ("generation", "2".to_owned()),
            ("accepted_ms", "1700000000123".to_owned()),
        ]
    }

    fn entry(fields: &[(&str, String)]) -> Entry {
        let bytes = |(field, value): &(&str, String)| (field.as_bytes().to_vec(), value.clone().into_bytes());
        Entry { id: "1-0".to_owned(), fields: Some(fields.iter().map(bytes).collect()) }
    }

    #[test]
    fn an_entry_becomes_the_order_that_was_accepted() {
        let mut fields = written();
        let order = entry(&fields).order(sale()).expect("an order");
        assert_eq!((order.user.as_str(), order.quantity, order.generation), ("ada", 1, 2));
        assert_eq!(order.request, None);
        fields.push(("key", "k1".to_owned()));
        fields.push(("fingerprint", "00ff".to_owned()));
        fields.push(("later", "a field of a newer writer".to_owned()));
        let order = entry(&fields).order(sale()).expect("an order");
        assert_eq!(order.request, Some(RequestKey { key: "k1".to_owned(), fingerprint: "00ff".to_owned() }));
    }

    #[test]
    fn an_entry_that_no_purchase_wrote_is_malformed() {
        for missing in 0..written().len() {
            let mut fields = written();
            fields.remove(missing);
            assert!(entry(&fields).order(sale()).is_err());
        }
        for (at, wrong) in [(0, "x"), (1, "a b"), (2, "0"), (2, "99999999999"), (3, "1.5"), (4, "-1")] {
            let mut fields = written();
            fields[at].1 = wrong.to_owned();
            assert!(entry(&fields).order(sale()).is_err(), "{wrong}");
        }
        assert!(entry(&written()).order(SaleId::new(8).expect("a sale id")).is_err());
        assert!(Entry { id: "1-0".to_owned(), fields: None }.order(sale()).is_err());
    }
}
