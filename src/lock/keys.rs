//! What can be locked, and the Redis keys of a lock. A contract: versioned, documented, and all in one slot by the
//! hash tag `{NAME}`.
//!
//! The tag is the locked thing itself, never one tag for all locks, so that a cluster spreads them.

use std::fmt;

use uuid::Uuid;

use crate::domain::SaleId;

/// The thing that is locked: one sale, or one piece of work. Also its `resource` in the table `lock_fence`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(String);

impl Name {
    pub const MAX_LENGTH: usize = 64;

    /// 1 to 64 characters of `a-z`, `0-9`, `:`, `_`, `-`; `None` for anything else. A brace would end the hash tag.
    pub fn new(name: &str) -> Option<Self> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b":_-".contains(&byte);
        let fits = !name.is_empty() && name.len() <= Self::MAX_LENGTH && name.bytes().all(plain);
        fits.then(|| Self(name.to_owned()))
    }

    /// Everything that is done to one sale between the ledger and Redis, its opening included.
    pub fn sale(id: SaleId) -> Self {
        Self(format!("sale:{id}"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Hash: owner (the acquisition's id), token. Lives as long as the lease.
pub fn lock(name: &Name) -> String {
    format!("seckill:v1:lock:{{{name}}}")
}

/// String: the greatest token minted. May be lost or expire: PostgreSQL gives the floor.
pub fn tokens(name: &Name) -> String {
    format!("seckill:v1:lock:{{{name}}}:tokens")
}

/// String: `released` or `aborted`. This acquisition is over, whatever of it is still on its way. Lives for minutes.
pub fn gone(name: &Name, acquisition: Uuid) -> String {
    format!("seckill:v1:lock:{{{name}}}:gone:{acquisition}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_of_a_lock_share_its_hash_tag() {
        let name = Name::sale(SaleId::new(42).expect("a sale id"));
        for key in [lock(&name), tokens(&name), gone(&name, Uuid::nil())] {
            assert!(key.starts_with("seckill:v1:lock:{sale:42}"), "{key}");
        }
    }

    #[test]
    fn a_name_cannot_break_out_of_its_hash_tag() {
        for bad in ["", "a}b", "{", "sale 5", "Sale", "é", &"x".repeat(65)] {
            assert_eq!(Name::new(bad), None, "{bad}");
        }
        assert_eq!(Name::new("sweep:2_a-b").map(|name| name.to_string()).as_deref(), Some("sweep:2_a-b"));
    }
}
