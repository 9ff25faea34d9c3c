//! Samples, their medians and spreads, and how they are shown.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;

use serde_json::json;

/// Writes a line to standard output. A closed pipe is the reader's choice, not an error.
pub fn say(text: impl fmt::Display) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Everything that was measured, in the order in which it was first noted.
#[derive(Default)]
pub struct Report {
    figures: Vec<Figure>,
}

struct Figure {
    name: String,
    unit: &'static str,
    samples: Vec<f64>,
    /// The figure that each sample is divided by, as it was in the same round.
    baseline: Option<&'static str>,
}

/// Median and extremes.
struct Summary {
    median: f64,
    least: f64,
    most: f64,
}

impl Report {
    /// Adds one sample of a figure without a baseline.
    pub fn note(&mut self, name: &str, unit: &'static str, sample: f64) {
        self.add(name, unit, None, sample);
    }

    /// Adds one sample of a figure that is read against `baseline`, noted under that name in the same round.
    pub fn note_against(&mut self, baseline: &'static str, name: &str, unit: &'static str, sample: f64) {
        self.add(name, unit, Some(baseline), sample);
    }

    fn add(&mut self, name: &str, unit: &'static str, baseline: Option<&'static str>, sample: f64) {
        say(format_args!("  {name}: {sample:.0} {unit}"));
        match self.figures.iter_mut().find(|figure| figure.name == name) {
            Some(figure) => figure.samples.push(sample),
            None => self.figures.push(Figure { name: name.to_owned(), unit, samples: vec![sample], baseline }),
        }
    }

    /// The figure over its baseline, round by round.
    fn ratios(&self, figure: &Figure) -> Option<Vec<f64>> {
        let baseline = self.figures.iter().find(|other| Some(other.name.as_str()) == figure.baseline)?;
        Some(figure.samples.iter().zip(&baseline.samples).map(|(sample, base)| sample / base).collect())
    }

    /// All samples, for other programs.
    pub fn to_json(&self) -> String {
        let figures = self.figures.iter().map(|figure| {
            let ratios = self.ratios(figure);
            let median_ratio = ratios.as_deref().map(|ratios| Summary::of(ratios).median);
            let fields = json!({
                "unit": figure.unit, "median": Summary::of(&figure.samples).median, "samples": figure.samples,
                "baseline": figure.baseline, "median_ratio": median_ratio, "ratios": ratios,
            });
            (figure.name.clone(), fields)
        });
        json!(figures.collect::<BTreeMap<_, _>>()).to_string()
    }
}

impl Summary {
    fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        Self { median, least: sorted[0], most: sorted[sorted.len() - 1] }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n| figure | median | from | to | unit | ratio | from | to | against |")?;
        writeln!(f, "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | --- |")?;
        for figure in &self.figures {
            let Summary { median, least, most } = Summary::of(&figure.samples);
            write!(f, "| {} | {median:.0} | {least:.0} | {most:.0} | {} |", figure.name, figure.unit)?;
            match (self.ratios(figure), figure.baseline) {
                (Some(ratios), Some(baseline)) => {
                    let Summary { median, least, most } = Summary::of(&ratios);
                    writeln!(f, " {median:.2} | {least:.2} | {most:.2} | {baseline} |")?;
                }
                _ => writeln!(f, " | | | |")?,
            }
        }
        Ok(())
    }
}
