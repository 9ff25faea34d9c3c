//! Where a value stands on an axis, and which values an axis names.

/// Maps values to 0…1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Even, between two values.
    Linear { low: f64, high: f64 },
    /// By orders of magnitude, between two values above zero.
    Log { low: f64, high: f64 },
    /// Shares from 0 to `high` below 1, stretched towards 1: every further nine takes the same room.
    Tail { high: f64 },
}

/// A value that an axis names.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    pub value: f64,
    pub label: String,
}

impl Scale {
    /// From zero to a round number that holds `most`.
    pub fn from_zero(most: f64) -> Self {
        let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
        let step = step(most, 5);
        Self::Linear { low: 0.0, high: (most / step).ceil() * step }
    }

    /// Between round numbers around both values.
    pub fn around(low: f64, high: f64) -> Self {
        let low = round_down(low.max(0.001));
        let high = round_up(high.max(low));
        Self::Log { low, high: if high > low { high } else { low * 10.0 } }
    }

    /// Shares up to `high`, at least to nine tenths.
    pub const fn tail(high: f64) -> Self {
        Self::Tail { high: high.clamp(0.9, 0.999_999_9) }
    }

    /// 0 at the lower end, 1 at the upper; what is beyond an end stands on it.
    pub fn at(self, value: f64) -> f64 {
        let place = match self {
            Self::Linear { low, high } => (value - low) / (high - low),
            Self::Log { low, high } => (value.max(low) / low).log10() / (high / low).log10(),
            Self::Tail { high } => (1.0 - value.min(high)).log10() / (1.0 - high).log10(),
        };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// At most about `most` of them, in order.
    pub fn ticks(self, most: usize) -> Vec<Tick> {
        let values: Vec<f64> = match self {
            Self::Linear { low, high } => {
                let step = step(high - low, most);
                let (first, last) = ((low / step).ceil() as i64, ((high / step) + 1e-9).floor() as i64);
                (first..=last).map(|n| n as f64 * step).collect()
            }
            Self::Log { low, high } => {
                let fine: Vec<f64> = magnitudes(low, high, &[1.0, 2.0, 5.0]);
                if fine.len() <= most { fine } else { magnitudes(low, high, &[1.0]) }
            }
            Self::Tail { high } => {
                let nines = (1..8).map(|n| 1.0 - 0.1_f64.powi(n));
                [0.0, 0.5].into_iter().chain(nines).filter(|share| *share <= high).collect()
            }
        };
        let label = |value: f64| if matches!(self, Self::Tail { .. }) { percent(value) } else { number(value) };
        values.into_iter().map(|value| Tick { value, label: label(value) }).collect()
    }
}

/// The smallest of 1, 2, 5, 10, 20, … that cuts `span` into at most `most` steps.
fn step(span: f64, most: usize) -> f64 {
    let rough = span / most.max(1) as f64;
    let magnitude = 10_f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * magnitude >= rough * 0.999_999);
    factor.unwrap_or(10.0) * magnitude
}

fn magnitudes(low: f64, high: f64, factors: &[f64]) -> Vec<f64> {
    let exponents = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let all = exponents.flat_map(|e| factors.iter().map(move |factor| factor * 10_f64.powi(e)));
    all.filter(|value| (low * 0.999_999..=high * 1.000_001).contains(value)).collect()
}

fn round_down(value: f64) -> f64 {
    magnitudes(value / 10.0, value, &[1.0, 2.0, 5.0]).pop().unwrap_or(value)
}

fn round_up(value: f64) -> f64 {
    magnitudes(value, value * 10.0, &[1.0, 2.0, 5.0]).into_iter().next().unwrap_or(value)
}

/// With commas between thousands, and no more digits than are needed to tell a value from its neighbours.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if (v - v.round()).abs() < 1e-9 || v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction = fraction.trim_end_matches('0');
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("\u{2212}", whole));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if fraction.is_empty() { format!("{sign}{grouped}") } else { format!("{sign}{grouped}.{fraction}") }
}

/// As many digits as there are nines, and no more.
pub fn percent(share: f64) -> String {
    let text = format!("{:.5}", share * 100.0);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, most: usize) -> Vec<String> {
        scale.ticks(most).into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn an_axis_names_round_numbers() {
        assert_eq!(labels(Scale::from_zero(23_456.0), 5), ["0", "5,000", "10,000", "15,000", "20,000", "25,000"]);
        assert_eq!(labels(Scale::Linear { low: -1.0, high: 4.0 }, 6), ["\u{2212}1", "0", "1", "2", "3", "4"]);
        assert_eq!(labels(Scale::around(0.31, 18.0), 9), ["0.2", "0.5", "1", "2", "5", "10", "20"]);
        assert_eq!(labels(Scale::around(0.31, 3_000.0), 6), ["1", "10", "100", "1,000"]);
        assert_eq!(labels(Scale::tail(0.9995), 9), ["0%", "50%", "90%", "99%", "99.9%"]);
    }

    #[test]
    fn ends_of_a_scale_are_0_and_1_and_nothing_is_beyond_them() {
        for (scale, low, high) in [
            (Scale::Linear { low: 2.0, high: 4.0 }, 2.0, 4.0),
            (Scale::Log { low: 0.1, high: 100.0 }, 0.1, 100.0),
            (Scale::tail(0.999), 0.0, 0.999),
        ] {
            assert!(scale.at(low).abs() < 1e-9 && (scale.at(high) - 1.0).abs() < 1e-9, "{scale:?}");
            assert_eq!((scale.at(f64::NEG_INFINITY), scale.at(high * 2.0)), (0.0, 1.0), "{scale:?}");
        }
        assert!((Scale::tail(0.999).at(0.9) - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn scales_of_nothing_are_scales() {
        for scale in [Scale::from_zero(0.0), Scale::from_zero(f64::NAN), Scale::around(0.0, 0.0), Scale::tail(0.0)] {
            assert!(scale.at(0.0).is_finite() && !scale.ticks(5).is_empty(), "{scale:?}");
        }
    }

    #[test]
    fn numbers_are_read_at_a_glance() {
        let all = [0.0, 7.0, 1_234_567.0, -12.0, 0.254, 3.999, 12.34, 0.0123, 123.4];
        let text = ["0", "7", "1,234,567", "\u{2212}12", "0.25", "4", "12.3", "0.012", "123"];
        assert_eq!(all.map(number), text);
    }
}
