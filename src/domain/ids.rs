//! Identifiers. All of them are strings at the edges: a browser loses digits of large numbers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Why a string is not an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    #[error("a sale id is a whole number from 1 to 2147483647")]
    Sale,
    #[error("a user id is 1 to 64 characters of A-Z, a-z, 0-9, _ and -")]
    User,
    #[error("an order id is a UUID made by this service")]
    Order,
}

/// A sale: a positive 32-bit integer, printed as a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaleId(i32);

impl SaleId {
    pub fn new(id: i32) -> Result<Self, InvalidId> {
        if id > 0 { Ok(Self(id)) } else { Err(InvalidId::Sale) }
    }

    pub const fn get(self) -> i32 {
        self.0
    }
}

impl FromStr for SaleId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        // `parse` alone would let "+7" and "007" name the same sale under other spellings.
        let canonical = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
        if !canonical {
            return Err(InvalidId::Sale);
        }
        text.parse().map_err(|_| InvalidId::Sale).and_then(Self::new)
    }
}

impl fmt::Display for SaleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A buyer: an opaque string of 1–64 characters of `A-Za-z0-9_-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserId(Box<str>);

impl UserId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for UserId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidId::User)
        }
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An order: a UUIDv8 of 32 bits of seconds, the 32-bit sale, and 58 random bits.
///
/// The sale inside the id lets a status read find the right Redis key without asking a database. The seconds
/// only make ids sort roughly by age; nothing reads them back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrderId(Uuid);

impl OrderId {
    /// A fresh id. `seconds` since the Unix epoch and 64 random bits (six of which give way to the UUID's
    /// version and variant) come from the caller, which owns the clock and the source of randomness.
    pub fn mint(sale: SaleId, seconds: u32, random: u64) -> Self {
        Self::assemble(seconds, sale, random)
    }

    /// The one id that this user's Idempotency-Key stands for in this generation of the sale.
    ///
    /// Everything but the sale comes from SHA-256, the seconds included: the same key retried a second later,
    /// on another node, or through the fallback, must arrive at the same primary key.
    pub fn derived(sale: SaleId, user: &UserId, key: &str, generation: i64) -> Self {
        let mut hash = Sha256::new();
        hash.update(sale.get().to_be_bytes());
        hash.update(generation.to_be_bytes());
        // Users cannot contain a NUL, so the boundary between user and key cannot be shifted.
        hash.update(user.as_str().as_bytes());
        hash.update([0]);
        hash.update(key.as_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        let seconds = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        let mut random = [0; 8];
        random.copy_from_slice(&digest[4..12]);
        Self::assemble(seconds, sale, u64::from_be_bytes(random))
    }

    fn assemble(seconds: u32, sale: SaleId, random: u64) -> Self {
        let sale = u128::from(sale.get().unsigned_abs());
        // secs:32 | sale high:16 | version:4 | sale mid:12 | variant:2 | sale low:4 | random:58
        let bits = u128::from(seconds) << 96
            | (sale >> 16) << 80
            | (0x8 << 76)
            | ((sale >> 4) & 0xfff) << 64
            | (0b10 << 62)
            | (sale & 0xf) << 58
            | u128::from(random & ((1 << 58) - 1));
        Self(Uuid::from_u128(bits))
    }

    /// The sale that this order belongs to, as written in the id.
    pub fn sale(self) -> Option<SaleId> {
        let bits = self.0.as_u128();
        if (bits >> 76) & 0xf != 0x8 || (bits >> 62) & 0b11 != 0b10 {
            return None;
        }
        let sale = ((bits >> 80) & 0xffff) << 16 | ((bits >> 64) & 0xfff) << 4 | (bits >> 58) & 0xf;
        i32::try_from(sale).ok().and_then(|id| SaleId::new(id).ok())
    }

    pub const fn from_uuid(id: Uuid) -> Self {
        Self(id)
    }

    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl FromStr for OrderId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let id = Uuid::try_parse(text).map(Self).map_err(|_| InvalidId::Order)?;
        id.sale().map(|_| id).ok_or(InvalidId::Order)
    }
}

impl fmt::Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

macro_rules! serialized_as_string {
    ($($id:ty),*) => {$(
        impl Serialize for $id {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $id {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

serialized_as_string!(SaleId, UserId, OrderId);

#[cfg(test)]
mod tests {
    use super::*;

    fn sale(id: i32) -> SaleId {
        SaleId::new(id).expect("a sale id")
    }

    #[test]
    fn an_order_id_carries_its_sale_and_is_a_version_8_uuid() {
        for id in [1, 7, 0xffff, 0x1234_5678, i32::MAX] {
            let order = OrderId::mint(sale(id), 1_700_000_000, u64::MAX);
            assert_eq!(order.sale(), Some(sale(id)));
            assert_eq!(order.uuid().get_version_num(), 8);
            assert_eq!(order.to_string().parse(), Ok(order));
        }
    }

    #[test]
    fn a_derived_id_depends_on_each_of_its_four_parts_and_on_nothing_else() {
        let user = |name: &str| name.parse::<UserId>().expect("a user id");
        let id = OrderId::derived(sale(1), &user("ada"), "k", 1);
        assert_eq!(id, OrderId::derived(sale(1), &user("ada"), "k", 1));
        assert_ne!(id, OrderId::derived(sale(2), &user("ada"), "k", 1));
        assert_ne!(id, OrderId::derived(sale(1), &user("bob"), "k", 1));
        assert_ne!(id, OrderId::derived(sale(1), &user("ada"), "l", 1));
        assert_ne!(id, OrderId::derived(sale(1), &user("ada"), "k", 2));
    }

    #[test]
    fn foreign_uuids_and_odd_spellings_are_not_ids() {
        assert!("6ba7b810-9dad-11d1-80b4-00c04fd430c8".parse::<OrderId>().is_err());
        for text in ["", "0", "-1", "+1", "007", "1.5", "2147483648", "x"] {
            assert!(text.parse::<SaleId>().is_err(), "{text:?}");
        }
        for text in ["", "a b", "é", "a:b", &"x".repeat(65)] {
            assert!(text.parse::<UserId>().is_err(), "{text:?}");
        }
    }
}
