//! The four pictures: requests, latency, stock, rows.

use drive::answer::STAGES;
use drive::distribution::Distribution;
use drive::report::{Quantiles, Report};
use drive::timeline::Bucket;
use maud::{Markup, PreEscaped, html};

use super::funnel::COLOURS;
use super::plot::{Axis, Plot, Scale, Series, Shape, number, percent};

/// More bars than this are hairs.
const MOST_BARS: usize = 110;
/// A store that was silent for so many buckets leaves a gap in its line.
const SILENCE: usize = 5;
const SECONDS: &str = "seconds from the start of the sale";

pub fn section(report: &Report) -> Markup {
    let course = Course::of(report);
    let plots = [
        ("Requests", course.as_ref().map(Course::requests)),
        ("Latency", latency(report)),
        ("Stock", course.as_ref().and_then(Course::stock)),
        ("Orders landing", course.as_ref().and_then(Course::rows)),
    ];
    html! {
        h2 { "How it went" }
        div .charts {
            @for (title, plot) in plots {
                @if let Some(plot) = plot {
                    (PreEscaped(plot.figure()))
                } @else {
                    figure .card {
                        figcaption { h3 { (title) } }
                        p .note { "There is nothing to draw: it did not happen, or could not be seen from here." }
                    }
                }
            }
        }
    }
}

/// A kind of answer, for its colour and name.
struct Outcome {
    name: &'static str,
    colour: &'static str,
    count: fn(&Bucket, &[&'static str]) -> u64,
    codes: &'static [&'static str],
}

fn outcomes() -> Vec<Outcome> {
    let plain = |name, colour, count| Outcome { name, colour, count, codes: &[] };
    let refused =
        |bucket: &Bucket, codes: &[&'static str]| codes.iter().filter_map(|code| bucket.refused.get(code)).sum();
    let stages =
        STAGES.iter().zip(COLOURS).map(|((name, codes), colour)| Outcome { name, colour, count: refused, codes });
    // The stock's refusals, which are the most, stand next to the accepted.
    [plain("accepted", "accepted", |bucket, _| bucket.accepted)]
        .into_iter()
        .chain(stages.rev())
        .chain([
            plain("no decision", "undecided", |bucket, _| bucket.unconfirmed),
            plain("client errors", "error", |bucket, _| bucket.client_errors),
        ])
        .collect()
}

/// The part of a timeline in which something happened.
struct Course<'a> {
    report: &'a Report,
    buckets: &'a [Bucket],
    /// Seconds of one bucket.
    length: f64,
    x: Axis,
}

impl<'a> Course<'a> {
    fn of(report: &'a Report) -> Option<Self> {
        let all = &report.timeline.buckets[..];
        let happened = |bucket: &Bucket| answers(bucket) > 0;
        let first = all.iter().position(|bucket| happened(bucket) || bucket.at_ms >= 0)?;
        let changed = |seen: fn(&Bucket) -> Option<i64>| {
            let end = all.iter().rev().find_map(seen)?;
            all.iter().rposition(|bucket| seen(bucket).is_some_and(|value| value != end)).map(|last| last + 1)
        };
        let ends = [all.iter().rposition(happened), changed(|b| b.remaining), changed(|b| b.sold)];
        let last = ends.into_iter().flatten().max()?.max(first).min(all.len() - 1);
        // Some more, so that the last level can be seen as one.
        let last = (last + 1 + (last - first) / 25).min(all.len() - 1);
        let buckets = &all[first..=last];
        let length = report.timeline.bucket_ms as f64 / 1000.0;
        let scale = Scale::Linear { low: seconds(&buckets[0]), high: seconds(&buckets[buckets.len() - 1]) + length };
        Some(Self { report, buckets, length, x: Axis { scale, label: SECONDS } })
    }

    /// Buckets that one bar stands for: as few as the bars' number allows.
    fn together(&self) -> usize {
        let sizes = (0..).flat_map(|e| [1, 2, 5].map(|factor| factor * 10_usize.pow(e)));
        sizes.take(18).find(|size| self.buckets.len().div_ceil(*size) <= MOST_BARS).unwrap_or(self.buckets.len())
    }

    fn sold_out(&self) -> Option<(f64, String)> {
        let at = self.buckets.iter().find(|bucket| bucket.at_ms >= 0 && bucket.remaining == Some(0))?;
        Some((seconds(at), format!("sold out after {} s", number(seconds(at) + self.length))))
    }

    fn requests(&self) -> Plot {
        let size = self.together();
        let width = self.length * size as f64;
        let groups: Vec<&[Bucket]> = self.buckets.chunks(size).collect();
        let rate = |count: u64| count as f64 / width;
        let most = groups.iter().map(|group| rate(group.iter().map(answers).sum())).fold(0.0, f64::max);
        let mut heights = vec![0.0; groups.len()];
        let mut said = vec![String::new(); groups.len()];
        let mut series = Vec::new();
        for Outcome { name, colour, count, codes } in outcomes() {
            let mut bars = Vec::new();
            for (at, group) in groups.iter().enumerate() {
                let here: u64 = group.iter().map(|bucket| count(bucket, codes)).sum();
                if here > 0 {
                    let from = heights[at];
                    heights[at] += rate(here);
                    bars.push((seconds(&group[0]), from, heights[at]));
                    said[at] += &format!("\n{name} {}", number(here as f64));
                }
            }
            if !bars.is_empty() {
                series.push(Series { name: name.to_owned(), colour, shape: Shape::Bars { width, bars } });
            }
        }
        let hover = groups.iter().zip(said).filter(|(_, said)| !said.is_empty());
        let hover = hover.map(|(group, said)| {
            let from = seconds(&group[0]);
            (from, from + width, format!("{} to {} s{said}", number(from), number(from + width)))
        });
        Plot {
            title: "Requests",
            note: format!("Purchases answered, by outcome, in steps of {} s.", number(width)),
            x: self.x,
            y: Axis { scale: Scale::from_zero(most), label: "per second" },
            series,
            hover: hover.collect(),
            mark: self.sold_out(),
        }
    }

    fn stock(&self) -> Option<Plot> {
        let series = self.levels("units left", "stock", |bucket| bucket.remaining)?;
        Some(Plot {
            title: "Stock",
            note: "Units that were left where purchases are decided, asked ten times a second.".to_owned(),
            x: self.x,
            y: Axis { scale: Scale::from_zero(self.highest(|bucket| bucket.remaining)), label: "units left" },
            hover: self.say("units left", |bucket| bucket.remaining),
            mark: self.sold_out(),
            series: vec![series],
        })
    }

    fn rows(&self) -> Option<Plot> {
        let stock = f64::from(self.report.stock);
        let rows = self.levels("units of live orders", "accepted", |bucket| bucket.sold)?;
        let most = self.highest(|bucket| bucket.sold);
        let done = self.buckets.iter().find(|bucket| bucket.sold.is_some_and(|sold| sold > 0 && sold as f64 >= most));
        let mark =
            done.map(|at| (seconds(at), format!("{} after {} s", number(most), number(seconds(at) + self.length))));
        Some(Plot {
            title: "Orders landing",
            note: "Units that live orders held in the ledger, asked ten times a second.".to_owned(),
            x: self.x,
            y: Axis { scale: Scale::from_zero(most.max(stock) * 1.04), label: "units" },
            hover: self.say("units in the ledger", |bucket| bucket.sold),
            mark,
            series: vec![rows, Series { name: "the stock".to_owned(), colour: "edge", shape: Shape::Limit(stock) }],
        })
    }

    /// A level over time; `None` when it was never seen.
    fn levels(&self, name: &str, colour: &'static str, seen: fn(&Bucket) -> Option<i64>) -> Option<Series> {
        let (mut points, mut silent) = (Vec::new(), 0);
        for bucket in self.buckets {
            if let Some(value) = seen(bucket) {
                silent = 0;
                points.push(Some((seconds(bucket), value as f64)));
            } else {
                silent += 1;
                if silent == SILENCE {
                    points.push(None);
                }
            }
        }
        let some = points.iter().any(Option::is_some);
        some.then(|| Series { name: name.to_owned(), colour, shape: Shape::Steps(points) })
    }

    fn highest(&self, seen: fn(&Bucket) -> Option<i64>) -> f64 {
        self.buckets.iter().filter_map(seen).max().map_or(0.0, |most| most as f64)
    }

    fn say(&self, what: &str, seen: fn(&Bucket) -> Option<i64>) -> Vec<(f64, f64, String)> {
        let groups = self.buckets.chunks(self.together());
        let said = groups.filter_map(|group| {
            let value = group.iter().rev().find_map(seen)?;
            let (from, to) = (seconds(&group[0]), seconds(&group[group.len() - 1]) + self.length);
            Some((from, to, format!("{} s\n{} {what}", number(to), number(value as f64))))
        });
        said.collect()
    }
}

fn answers(bucket: &Bucket) -> u64 {
    bucket.accepted + bucket.refused.values().sum::<u64>() + bucket.unconfirmed + bucket.client_errors
}

fn seconds(bucket: &Bucket) -> f64 {
    bucket.at_ms as f64 / 1000.0
}

/// How many waited how long: both axes by orders of magnitude, so that the slowest hundredth is not a hair.
fn latency(report: &Report) -> Option<Plot> {
    let kinds = [
        ("accepted", "accepted", &report.latency_distribution.accepted, report.latency_ms.accepted),
        ("refused", "stock", &report.latency_distribution.refused, report.latency_ms.refused),
    ];
    let lines = kinds.map(|(name, colour, distribution, quantiles)| (name, colour, line(distribution), quantiles));
    let points = || lines.iter().flat_map(|(_, _, line, _)| line);
    let fastest = points().map(|(_, ms)| *ms).reduce(f64::min)?;
    let slowest = points().map(|(_, ms)| *ms).fold(fastest, f64::max);
    let furthest = points().map(|(share, _)| *share).fold(0.0, f64::max);
    let x = Scale::tail(furthest);
    let mut series = Vec::new();
    for (name, colour, line, quantiles) in lines.iter().filter(|(_, _, line, _)| !line.is_empty()) {
        let shape = Shape::Line(line.iter().copied().map(Some).collect());
        series.push(Series { name: (*name).to_owned(), colour, shape });
        series.push(Series { name: String::new(), colour, shape: Shape::Dots(dots(name, line, *quantiles)) });
    }
    Some(Plot {
        title: "Latency",
        note: "From the moment at which a click was due to its answer: so many answers took at most so long."
            .to_owned(),
        x: Axis { scale: x, label: "share of answers" },
        y: Axis { scale: Scale::around(fastest, slowest), label: "milliseconds" },
        series,
        hover: Vec::new(),
        mark: None,
    })
}

/// Points of (share, milliseconds). The very slowest stands half way between its neighbour and all of them: at all
/// of them the axis has no end.
fn line(distribution: &Distribution) -> Vec<(f64, f64)> {
    let Some((fastest, _)) = distribution.0.first() else { return Vec::new() };
    let mut line = vec![(0.0, *fastest)];
    for (ms, share) in &distribution.0 {
        let before = line.last().map_or(0.0, |(share, _)| *share);
        line.push((if *share < 1.0 { *share } else { 1.0 - (1.0 - before) / 2.0 }, *ms));
    }
    line
}

fn dots(name: &str, line: &[(f64, f64)], quantiles: Quantiles) -> Vec<(f64, f64, String)> {
    let reached = line.last().map_or(0.0, |(share, _)| *share);
    let known = [(0.5, quantiles.p50), (0.99, quantiles.p99), (0.999, quantiles.p999)];
    let dot = |(share, ms): (f64, f64)| (share, ms, format!("{name}: {} within {} ms", percent(share), number(ms)));
    known.into_iter().filter(|(share, _)| *share <= reached).map(dot).collect()
}
