//! A small plotting module: series in, a figure with inline SVG out. No script; what a reader points at says its
//! figures through `<title>`.
//!
//! Text in an SVG shrinks with it. So each plot is drawn twice, for a wide and for a narrow figure, and the style
//! sheet shows the one that fits.

mod scale;

use std::fmt::Write;

pub use scale::{Scale, number, percent};

use super::escape::Text;

/// One axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    pub scale: Scale,
    /// What it counts, in which unit.
    pub label: &'static str,
}

/// What one series draws, in values of the two axes.
#[derive(Clone, Debug)]
pub enum Shape {
    /// Upright bars of one width: where each begins, and from where to where it reaches.
    Bars { width: f64, bars: Vec<(f64, f64, f64)> },
    /// A line; nothing is drawn across a gap.
    Line(Vec<Option<(f64, f64)>>),
    /// A broken line at one height: a limit.
    Limit(f64),
    /// A line that keeps its value until the next point, with the ground below it filled.
    Steps(Vec<Option<(f64, f64)>>),
    /// Points that say something.
    Dots(Vec<(f64, f64, String)>),
}

/// A series and its name.
#[derive(Clone, Debug)]
pub struct Series {
    /// In the legend, unless empty.
    pub name: String,
    /// Class of the style sheet that gives it its colour.
    pub colour: &'static str,
    pub shape: Shape,
}

/// A plot of some series over the same axes.
#[derive(Clone, Debug)]
pub struct Plot {
    pub title: &'static str,
    /// One sentence on how to read it.
    pub note: String,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
    /// From where to where along the x axis, and what is to be said there.
    pub hover: Vec<(f64, f64, String)>,
    /// A moment worth naming on the x axis.
    pub mark: Option<(f64, String)>,
}

/// The size of a drawing, in CSS pixels at which its text is as large as the page's.
struct Size {
    class: &'static str,
    width: f64,
    height: f64,
    x_ticks: usize,
}

const SIZES: [Size; 2] = [
    Size { class: "wide", width: 520.0, height: 290.0, x_ticks: 9 },
    Size { class: "narrow", width: 320.0, height: 250.0, x_ticks: 5 },
];

const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;

impl Plot {
    /// The whole figure: title, legend, drawing, note.
    pub fn figure(&self) -> String {
        let mut out = format!(
            "<figure class=\"card\">\n<figcaption><h3>{}</h3>{}</figcaption>\n",
            Text(self.title),
            self.legend()
        );
        for size in &SIZES {
            self.draw(&mut out, size);
        }
        put(&mut out, format_args!("<p class=\"note\">{}</p>\n</figure>\n", Text(&self.note)));
        out
    }

    fn legend(&self) -> String {
        let named = self.series.iter().filter(|series| !series.name.is_empty());
        let items: String = named
            .map(|series| {
                let key = if matches!(series.shape, Shape::Bars { .. }) { "block" } else { "line" };
                format!("<li><i class=\"key {key} {}\"></i>{}</li>", series.colour, Text(&series.name))
            })
            .collect();
        if items.is_empty() { items } else { format!("<ul class=\"legend\">{items}</ul>") }
    }

    fn draw(&self, out: &mut String, size: &Size) {
        let Size { class, width, height, .. } = size;
        put(
            out,
            format_args!(
                "<svg class=\"plot {class}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">\n",
                Text(self.title)
            ),
        );
        let pen = Pen { plot: self, size };
        pen.axes(out);
        for series in &self.series {
            pen.series(out, series);
        }
        if let Some((at, text)) = &self.mark {
            pen.mark(out, *at, text);
        }
        for (from, to, text) in &self.hover {
            let (from, to) = (pen.x(*from), pen.x(*to));
            let (height, width) = (size.height - TOP - BOTTOM, (to - from).max(1.0));
            put(
                out,
                format_args!(
                    "<rect class=\"hover\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height}\"><title>{}</title></rect>\n",
                    Text(text)
                ),
            );
        }
        // What has a title of its own must lie above what covers the whole height.
        for series in &self.series {
            pen.dots(out, series);
        }
        out.push_str("</svg>\n");
    }
}

/// A plot that is being drawn at one size.
struct Pen<'a> {
    plot: &'a Plot,
    size: &'a Size,
}

impl Pen<'_> {
    fn x(&self, value: f64) -> f64 {
        LEFT + self.plot.x.scale.at(value) * (self.size.width - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        self.floor() - self.plot.y.scale.at(value) * (self.size.height - TOP - BOTTOM)
    }

    fn floor(&self) -> f64 {
        self.size.height - BOTTOM
    }

    fn axes(&self, out: &mut String) {
        let (right, floor) = (self.size.width - RIGHT, self.floor());
        for tick in self.plot.y.scale.ticks(6) {
            let y = self.y(tick.value);
            put(out, format_args!("<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>"));
            let (x, y) = (LEFT - 8.0, y + 4.0);
            put(out, format_args!("<text class=\"end\" x=\"{x}\" y=\"{y:.1}\">{}</text>\n", Text(tick.label)));
        }
        let mut free_from = f64::NEG_INFINITY;
        for tick in self.plot.x.scale.ticks(self.size.x_ticks) {
            let x = self.x(tick.value);
            put(out, format_args!("<path class=\"axis\" d=\"M{x:.1} {floor}v5\"/>"));
            // A label that would touch its neighbour is left out; its tick stays.
            let half = tick.label.chars().count() as f64 * 3.6 + 3.0;
            if x - half >= free_from {
                free_from = x + half;
                let y = floor + 18.0;
                put(out, format_args!("<text class=\"mid\" x=\"{x:.1}\" y=\"{y}\">{}</text>", Text(tick.label)));
            }
            out.push('\n');
        }
        put(out, format_args!("<path class=\"axis\" d=\"M{LEFT} {floor}H{right}\"/>\n"));
        let below = self.size.height - 6.0;
        put(out, format_args!("<text class=\"unit\" x=\"2\" y=\"13\">{}</text>", Text(self.plot.y.label)));
        put(
            out,
            format_args!("<text class=\"unit end\" x=\"{right}\" y=\"{below}\">{}</text>\n", Text(self.plot.x.label)),
        );
    }

    fn series(&self, out: &mut String, series: &Series) {
        let colour = series.colour;
        match &series.shape {
            Shape::Bars { width, bars } => {
                let mut path = String::new();
                for (x, from, to) in bars {
                    let (left, right) = (self.x(*x), self.x(x + width));
                    // A hair between bars, as long as there is room for it.
                    let right = if right - left > 4.0 { right - 0.8 } else { right };
                    let (low, high) = (self.y(*from), self.y(*to));
                    put(&mut path, format_args!("M{left:.1} {low:.1}V{high:.1}H{right:.1}V{low:.1}Z"));
                }
                put(out, format_args!("<path class=\"fill {colour}\" d=\"{path}\"/>\n"));
            }
            Shape::Line(points) => {
                let mut path = String::new();
                for run in points.split(Option::is_none) {
                    for (n, (x, y)) in run.iter().flatten().enumerate() {
                        let verb = if n == 0 { 'M' } else { 'L' };
                        put(&mut path, format_args!("{verb}{:.1} {:.1}", self.x(*x), self.y(*y)));
                    }
                }
                put(out, format_args!("<path class=\"stroke {colour}\" d=\"{path}\"/>\n"));
            }
            Shape::Steps(points) => {
                let (mut line, mut ground) = (String::new(), String::new());
                for run in points.split(Option::is_none) {
                    self.steps(&mut line, &mut ground, run);
                }
                put(out, format_args!("<path class=\"ground {colour}\" d=\"{ground}\"/>"));
                put(out, format_args!("<path class=\"stroke {colour}\" d=\"{line}\"/>\n"));
            }
            Shape::Limit(value) => {
                let (y, right) = (self.y(*value), self.size.width - RIGHT);
                put(out, format_args!("<path class=\"stroke limit {colour}\" d=\"M{LEFT} {y:.1}H{right}\"/>\n"));
            }
            Shape::Dots(_) => {}
        }
    }

    fn steps(&self, line: &mut String, ground: &mut String, run: &[Option<(f64, f64)>]) {
        let points: Vec<_> = run.iter().flatten().map(|(x, y)| (self.x(*x), self.y(*y))).collect();
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
        let mut path = format!("M{:.1} {:.1}", first.0, first.1);
        for (x, y) in &points[1..] {
            put(&mut path, format_args!("H{x:.1}V{y:.1}"));
        }
        line.push_str(&path);
        let floor = self.floor();
        put(ground, format_args!("{path}H{:.1}V{floor}H{:.1}Z", last.0, first.0));
    }

    fn mark(&self, out: &mut String, at: f64, text: &str) {
        let (x, floor) = (self.x(at), self.floor());
        // The text stands on the side with more room.
        let (side, gap) = if x > self.size.width * 0.6 { ("end", -6.0) } else { ("", 6.0) };
        put(out, format_args!("<path class=\"mark\" d=\"M{x:.1} {TOP}V{floor}\"/>"));
        let (x, y) = (x + gap, TOP + 12.0);
        put(out, format_args!("<text class=\"said {side}\" x=\"{x:.1}\" y=\"{y}\">{}</text>\n", Text(text)));
    }

    fn dots(&self, out: &mut String, series: &Series) {
        let Shape::Dots(dots) = &series.shape else { return };
        for (x, y, text) in dots {
            put(
                out,
                format_args!(
                    "<circle class=\"dot {}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4.5\"><title>{}</title></circle>\n",
                    series.colour,
                    self.x(*x),
                    self.y(*y),
                    Text(text)
                ),
            );
        }
    }
}

/// Appends; a `String` takes everything.
pub fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}
