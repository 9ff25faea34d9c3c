//! A fault of the list: its name, what it may cost, and how it is injected.

use super::round::{Round, SaleSpec};
use super::testbed::TestBed;

pub use crate::report::Figures;

/// Injects a fault into a sale under load, and starts again whatever it broke.
type Inject =
    for<'a> fn(&'a mut TestBed, &'a Round) -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<Figures>> + 'a>>;

/// One fault of the list.
#[derive(Clone, Copy)]
pub struct Fault {
    pub name: &'static str,
    pub about: &'static str,
    /// Promises that it may break.
    pub excused: &'static [&'static str],
    /// Whether it belongs to the short list.
    pub quick: bool,
    pub sale: SaleSpec,
    pub inject: Inject,
}

impl Fault {
    pub const fn new(name: &'static str, about: &'static str, inject: Inject) -> Self {
        Self { name, about, excused: &[], quick: false, sale: SaleSpec::USUAL, inject }
    }

    /// For faults in which Redis really loses data: orders that only Redis knew may be gone, and nothing else.
    pub const fn loses_data(self) -> Self {
        // No keys: a buyer who repeats the key of a lost order gets another order. That is the same loss, and would be
        // counted twice.
        Self { excused: &["nothing_lost", "honoured"], sale: SaleSpec { keyed: 0.0, ..self.sale }, ..self }
    }

    pub const fn quick(self) -> Self {
        Self { quick: true, ..self }
    }

    pub const fn with(self, sale: SaleSpec) -> Self {
        Self { sale, ..self }
    }
}
