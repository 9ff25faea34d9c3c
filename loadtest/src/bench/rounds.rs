//! Rounds: the service and its baseline right after each other, in alternating order.

use std::collections::BTreeMap;

use crate::demo::say;

/// Why a round is discarded: something else than what is measured happened in it.
pub struct Discarded(pub String);

/// What one round measured, or why it did not.
pub type Measured<T> = anyhow::Result<Result<T, Discarded>>;

/// Rounds that were kept, and why others were not.
pub struct Rounds<T> {
    pub kept: Vec<T>,
    pub discarded: BTreeMap<String, u32>,
}

impl<T> Rounds<T> {
    pub fn discards(&self) -> u32 {
        self.discarded.values().sum()
    }
}

/// Takes `count` rounds, and replaces up to as many discarded ones. `round` gets whether the baseline comes first.
///
/// # Errors
/// When a round fails. A part whose rounds are all discarded is empty, which is no error here.
pub async fn take<T>(
    name: &str,
    count: u16,
    mut round: impl AsyncFnMut(bool) -> Measured<T>,
    show: impl Fn(&T) -> String,
) -> anyhow::Result<Rounds<T>> {
    let mut rounds = Rounds { kept: Vec::new(), discarded: BTreeMap::new() };
    let mut baseline_first = true;
    while rounds.kept.len() < usize::from(count) && rounds.discards() <= u32::from(count) {
        match round(baseline_first).await? {
            Ok(taken) => {
                say(format_args!("  {name} {}/{count}: {}", rounds.kept.len() + 1, show(&taken)))?;
                rounds.kept.push(taken);
            }
            Err(Discarded(reason)) => {
                say(format_args!("  {name}: round discarded, {reason}"))?;
                *rounds.discarded.entry(reason).or_default() += 1;
            }
        }
        baseline_first = !baseline_first;
    }
    Ok(rounds)
}
