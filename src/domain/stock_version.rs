//! How two answers about a sale's stock are put in order.

use std::fmt;

/// How new an answer about a sale's stock is: the generation of the Redis state, which the ledger numbers, and the epoch,
/// which counts how often units were freed or added within that generation.
///
/// Compared generation first. Within one version `remaining` can only fall, so of two answers of the same version the one
/// with fewer units is the newer one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StockVersion {
    pub generation: i64,
    pub epoch: i64,
}

impl StockVersion {
    pub const fn new(generation: i64, epoch: i64) -> Self {
        Self { generation, epoch }
    }
}

impl fmt::Display for StockVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation, self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::StockVersion;

    #[test]
    fn a_new_generation_outranks_any_number_of_the_old_one() {
        assert!(StockVersion::new(2, 0) > StockVersion::new(1, 99));
        assert!(StockVersion::new(2, 1) > StockVersion::new(2, 0));
    }
}
