//! The Redis keys of a sale. A contract: versioned, documented, and all in one slot by the hash tag `{ID}`.
//!
//! Every key is passed in KEYS, so the scripts run unchanged on a cluster.

use crate::domain::SaleId;

/// Consumer group of the relays on every outbox.
pub const RELAY_GROUP: &str = "relay";

/// Channel on which a sale whose units grew says so: `SALE GENERATION EPOCH`. A hint, never the truth.
pub const STOCK_UPDATES_CHANNEL: &str = "seckill:v1:news";

/// Hash: generation, home, frozen, fence, state, total, remaining, max_quantity, starts_ms, ends_ms, epoch, revision.
pub fn sale(id: SaleId) -> String {
    format!("seckill:v1:{{{id}}}:sale")
}

/// Hash: user → `ORDER|UNITS|ACCEPTED_MS`.
pub fn claims(id: SaleId) -> String {
    format!("seckill:v1:{{{id}}}:claims")
}

/// Hash: `USER:KEY` → `ORDER|FINGERPRINT|UNITS`, only for purchases that came with an Idempotency-Key.
pub fn requests(id: SaleId) -> String {
    format!("seckill:v1:{{{id}}}:requests")
}

/// Stream: accepted orders that Kafka has not confirmed. Fields: order, user, quantity, generation, accepted_ms
/// and, when the buyer sent one, key and fingerprint.
pub fn outbox(id: SaleId) -> String {
    format!("seckill:v1:{{{id}}}:outbox")
}

/// The four keys in the order in which the scripts take them.
pub fn all(id: SaleId) -> [String; 4] {
    [sale(id), claims(id), requests(id), outbox(id)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_of_a_sale_share_its_hash_tag() {
        let id = SaleId::new(42).expect("a sale id");
        for key in all(id) {
            assert!(key.starts_with("seckill:v1:{42}:"), "{key}");
        }
    }
}
