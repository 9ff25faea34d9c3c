//! Rounds: two sides, one right after the other, each first in every other round.

use std::collections::BTreeMap;

use crate::demo::say;

/// Why a round says nothing: something else than what is measured happened in it.
pub struct Discarded(pub String);

/// What one round measured, or why it did not.
pub type Measured<T> = anyhow::Result<Result<T, Discarded>>;

/// Rounds that were kept, and why others were not.
pub struct Rounds<T> {
    pub kept: Vec<T>,
    pub void: BTreeMap<String, u32>,
}

impl<T> Rounds<T> {
    pub fn voids(&self) -> u32 {
        self.void.values().sum()
    }
}

/// Takes `count` rounds, and in the place of those that are void as many again at most. `round` is told whether the
/// baseline comes first this time.
///
/// # Errors
/// When a round breaks down. A part of which every round is void is empty, which is no error here.
pub async fn take<T>(
    name: &str,
    count: u16,
    mut round: impl AsyncFnMut(bool) -> Measured<T>,
    show: impl Fn(&T) -> String,
) -> anyhow::Result<Rounds<T>> {
    let mut rounds = Rounds { kept: Vec::new(), void: BTreeMap::new() };
    let mut baseline_first = true;
    while rounds.kept.len() < usize::from(count) && rounds.voids() <= u32::from(count) {
        match round(baseline_first).await? {
            Ok(taken) => {
                say(format_args!("  {name} {}/{count}: {}", rounds.kept.len() + 1, show(&taken)))?;
                rounds.kept.push(taken);
            }
            Err(Discarded(reason)) => {
                say(format_args!("  {name}: void, {reason}"))?;
                *rounds.void.entry(reason).or_default() += 1;
            }
        }
        baseline_first = !baseline_first;
    }
    Ok(rounds)
}
