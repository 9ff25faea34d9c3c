//! What became of one fault of a drill.

use drive::report::Verdict;
use seckill::promises::Finding;
use serde::Serialize;

/// What a fault measured, by name.
pub type Figures = serde_json::Map<String, serde_json::Value>;

/// One fault in the report of a drill.
#[derive(Serialize)]
pub struct FaultResult {
    pub name: &'static str,
    /// Milliseconds from the start of the sale.
    pub injected_at: Option<u64>,
    pub promises: Vec<Finding>,
    /// Promises that the fault may break.
    pub excused: Vec<&'static str>,
    pub verdict: Verdict,
    pub figures: Figures,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
