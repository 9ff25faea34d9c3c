//! Samples with their medians, spreads and goals, as tables and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::machine::{self, Machine};
use super::rounds::Rounds;

/// The goal of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    AtLeast {
        reach: f64,
        aim: f64,
    },
    AtMost {
        reach: f64,
        aim: f64,
    },
    /// Shown without a goal.
    None,
}

/// What is measured, and what it should come to.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// The part that measures it.
    pub part: &'static str,
    /// Its key in the report.
    pub key: &'static str,
    pub about: &'static str,
    pub unit: &'static str,
    pub goal: Goal,
    pub kind: Kind,
}

/// The section of a figure in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of two sides of one round.
    Ratio,
    Figure,
    /// One side of a ratio, or something that explains a figure.
    Side,
}

/// Everything that was measured, in order.
pub struct Report {
    machine: Machine,
    measured: Vec<(Figure, Vec<f64>)>,
    discarded: BTreeMap<String, Value>,
}

/// Median and extremes.
struct Summary {
    median: f64,
    least: f64,
    most: f64,
}

impl Report {
    pub const fn new(machine: Machine) -> Self {
        Self { machine, measured: Vec::new(), discarded: BTreeMap::new() }
    }

    pub fn add(&mut self, figure: Figure, samples: impl IntoIterator<Item = f64>) {
        self.measured.push((figure, samples.into_iter().collect()));
    }

    /// Notes how many rounds of a part were discarded, and why.
    pub fn note_discarded<T>(&mut self, part: &str, rounds: &Rounds<T>) {
        if rounds.discards() > 0 {
            self.discarded.insert(part.to_owned(), json!(rounds.discarded));
        }
    }

    pub fn finish(&mut self) -> anyhow::Result<()> {
        self.machine.load_after = machine::load()?;
        Ok(())
    }

    /// All samples, for other programs.
    pub fn to_json(&self) -> Value {
        let of = |kind| -> Map<String, Value> {
            let chosen = self.measured.iter().filter(|(figure, _)| figure.kind == kind);
            chosen.map(|(figure, samples)| (figure.key.to_owned(), entry(figure, samples))).collect()
        };
        json!({
            "ratios": of(Kind::Ratio),
            "figures": of(Kind::Figure),
            "sides": of(Kind::Side),
            "void": self.discarded,
            "machine": self.machine,
        })
    }

    /// The tables of `docs/performance.md`.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let results = self.measured.iter().filter(|(figure, _)| figure.kind != Kind::Side);
        text.push_str("| part | figure | median | least | most | reach | aim | |\n");
        text.push_str("| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |\n");
        for (figure, samples) in results {
            let (reach, aim) = figure.goal.words();
            row(&mut text, figure, samples, &[&reach, &aim, figure.goal.verdict(samples)]);
        }
        text.push_str("\n| part | side | median | least | most |\n| --- | --- | ---: | ---: | ---: |\n");
        for (figure, samples) in self.measured.iter().filter(|(figure, _)| figure.kind == Kind::Side) {
            row(&mut text, figure, samples, &[]);
        }
        let Machine { cores, cpu, memory_mib, kernel, load_before, load_after, .. } = &self.machine;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "\n{cores} cores ({cpu}), {memory_mib} MiB, Linux {kernel}; load average {load_before} before and \
             {load_after} after. {}; {}; {}; load by {}.",
            self.machine.redis, self.machine.postgres, self.machine.java, self.machine.generator
        );
        for (part, reasons) in &self.discarded {
            let _ = writeln!(text, "Discarded rounds of {part}: {reasons}.");
        }
        text
    }
}

fn row(text: &mut String, figure: &Figure, samples: &[f64], more: &[&str]) {
    let Figure { part, about, unit, .. } = figure;
    let shown = Summary::of(samples).map_or_else(
        || "– | – | –".to_owned(),
        |s| format!("{} | {} | {}", number(s.median), number(s.least), number(s.most)),
    );
    let unit = if unit.is_empty() { String::new() } else { format!(", {unit}") };
    let _ = write!(text, "| {part} | {about}{unit} | {shown} |");
    more.iter().for_each(|cell| {
        let _ = write!(text, " {cell} |");
    });
    text.push('\n');
}

fn entry(figure: &Figure, samples: &[f64]) -> Value {
    let summary = Summary::of(samples);
    let spread = summary.as_ref().map(|summary| [summary.least, summary.most]);
    let (reach, aim) = figure.goal.values();
    json!({
        "median": summary.map(|summary| summary.median), "rounds": samples, "spread": spread, "unit": figure.unit,
        "about": figure.about, "reach": reach, "aim": aim, "met": figure.goal.verdict(samples),
    })
}

/// Three digits that matter.
fn number(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl Goal {
    const fn values(self) -> (Option<f64>, Option<f64>) {
        match self {
            Self::AtLeast { reach, aim } | Self::AtMost { reach, aim } => (Some(reach), Some(aim)),
            Self::None => (None, None),
        }
    }

    fn words(self) -> (String, String) {
        let sign = if matches!(self, Self::AtLeast { .. }) { "≥" } else { "≤" };
        let word = |bound: Option<f64>| bound.map_or_else(String::new, |bound| format!("{sign} {bound}"));
        let (reach, aim) = self.values();
        (word(reach), word(aim))
    }

    /// By the median.
    fn verdict(self, samples: &[f64]) -> &'static str {
        let Some(Summary { median, .. }) = Summary::of(samples) else { return "void" };
        let (reached, aimed) = match self {
            Self::AtLeast { reach, aim } => (median >= reach, median >= aim),
            Self::AtMost { reach, aim } => (median <= reach, median <= aim),
            Self::None => return "",
        };
        match (reached, aimed) {
            (_, true) => "aim met",
            (true, false) => "reached",
            (false, false) => "missed",
        }
    }
}

/// The sample in the middle, if there is any.
pub fn median(samples: &[f64]) -> Option<f64> {
    Summary::of(samples).map(|summary| summary.median)
}

impl Summary {
    fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&least, &most) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let odd = sorted.len() % 2 == 1;
        let median = if odd { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        Some(Self { median, least, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_the_two_in_the_middle() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0]).expect("samples");
        assert_eq!((summary.median, summary.least, summary.most), (2.5, 1.0, 4.0));
        assert!(Summary::of(&[]).is_none());
    }

    #[test]
    fn a_goal_is_judged_by_the_median_and_nothing_is_void_not_met() {
        let goal = Goal::AtLeast { reach: 0.5, aim: 0.8 };
        assert_eq!(goal.verdict(&[0.1, 0.6, 0.9]), "reached");
        assert_eq!(goal.verdict(&[0.8]), "aim met");
        assert_eq!(goal.verdict(&[0.4]), "missed");
        assert_eq!(goal.verdict(&[]), "void");
        assert_eq!(Goal::AtMost { reach: 15.0, aim: 15.0 }.verdict(&[3.0]), "aim met");
    }
}
