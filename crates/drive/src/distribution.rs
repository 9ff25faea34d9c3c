//! How latencies spread: the whole distribution in some hundred points.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Points for every halving of what is left above: enough for a smooth line as far as the slowest answer.
const POINTS_PER_HALVING: u32 = 8;

/// From the intended start of a click to its answer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Distributions {
    pub accepted: Distribution,
    pub refused: Distribution,
}

/// Points of (milliseconds, share of answers that took at most so long), both rising, to the three digits that the
/// histogram keeps. Empty without answers.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Distribution(pub Vec<(f64, f64)>);

impl Distribution {
    /// Of a histogram of microseconds.
    pub fn of(us: &Histogram<u64>) -> Self {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for step in us.iter_quantiles(POINTS_PER_HALVING) {
            let point = (step.value_iterated_to() as f64 / 1000.0, step.quantile());
            match points.last_mut() {
                Some(last) if last.0 >= point.0 => last.1 = point.1,
                _ => points.push(point),
            }
        }
        Self(points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_rises_from_the_fastest_answer_to_all_of_them() {
        let mut us = Histogram::<u64>::new_with_bounds(1, 60_000_000, 3).expect("three digits");
        for value in 1..=10_000 {
            us.saturating_record(value);
        }
        let points = Distribution::of(&us).0;
        assert!(points.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{points:?}");
        assert!((20..200).contains(&points.len()), "{}", points.len());
        let (ms, share) = points[points.len() - 1];
        assert!((9.99..=10.01).contains(&ms) && (share - 1.0).abs() < 1e-9, "{ms} {share}");
        let median = points.iter().find(|point| point.1 >= 0.5).expect("half of them").0;
        assert!((4.9..5.2).contains(&median), "{median}");
    }

    #[test]
    fn no_answers_have_no_distribution() {
        assert!(Distribution::of(&Histogram::<u64>::new(3).expect("three digits")).0.is_empty());
    }
}
