//! How two pieces of news about a sale's stock are put in order.

use std::fmt;

/// A point in the life of a sale's stock: which life of the Redis state it is (`generation`, numbered by the
/// ledger) and how many times units have been freed or added within that life (`number`).
///
/// Compared generation first. Within one epoch `remaining` can only fall, so an answer of a lower epoch is old
/// news and an answer of the same epoch with fewer units is newer news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    pub generation: i64,
    pub number: i64,
}

impl Epoch {
    pub const fn new(generation: i64, number: i64) -> Self {
        Self { generation, number }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::Epoch;

    #[test]
    fn a_new_generation_outranks_any_number_of_the_old_one() {
        assert!(Epoch::new(2, 0) > Epoch::new(1, 99));
        assert!(Epoch::new(2, 1) > Epoch::new(2, 0));
    }
}
