//! The report of a run as a page: one HTML file that needs nothing beside it.
//!
//! A finished [`Report`] comes in, a page goes out. Nothing is measured or judged here. The page loads nothing, runs no
//! script, follows the reader's light or dark, and fits a phone. Whatever is text in the report is text in the page.

mod charts;
mod drill;
mod fault_result;
mod funnel;
mod html;
mod plot;
mod promises;
mod tables;
#[cfg(test)]
mod tests;

pub use drill::drill_page;
pub use fault_result::{FaultResult, Figures};

use std::path::Path;

use anyhow::Context;
use drive::report::{Report, Verdict};
use drive::text_report::verdict_in_words;

use html::Text;
use plot::{number, put};

/// What a run is called on its page.
#[derive(Clone, Debug)]
pub struct Heading {
    pub name: String,
    /// What was put on sale, and for whom.
    pub about: String,
}

/// Writes a page, if a file is given.
///
/// # Errors
/// When the file cannot be written.
pub fn write(file: Option<&Path>, page: impl FnOnce() -> String) -> anyhow::Result<()> {
    let Some(file) = file else { return Ok(()) };
    std::fs::write(file, page()).with_context(|| format!("cannot write {}", file.display()))
}

/// The whole page.
pub fn page(report: &Report, heading: &Heading) -> String {
    document(&heading.name, |out| {
        head(out, heading, report.verdict, &verdict_in_words(report));
        tiles(out, &figures(report));
        out.push_str("<main>\n");
        funnel::section(out, report);
        charts::section(out, report);
        promises::section(out, report);
        tables::section(out, report);
        out.push_str("</main>\n");
    })
}

/// A document around what `fill` writes: the style, and nothing else.
fn document(name: &str, fill: impl FnOnce(&mut String)) -> String {
    let mut out = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n");
    put(&mut out, format_args!("<title>seckill: {}</title>\n", Text(name)));
    put(&mut out, format_args!("<style>\n{}</style>\n</head>\n<body>\n", include_str!("style.css")));
    fill(&mut out);
    out.push_str(
        "<footer class=\"note\">Written by <code>loadtest</code>. Every figure is also in the JSON report.</footer>\n",
    );
    out.push_str("</body>\n</html>\n");
    out
}

fn head(out: &mut String, heading: &Heading, verdict: Verdict, words: &str) {
    let (class, word, sign) = match verdict {
        Verdict::Pass => ("pass", "Pass", "M5 13l4.5 4.5L19 7.5"),
        Verdict::Fail => ("fail", "Fail", "M6.5 6.5l11 11M17.5 6.5l-11 11"),
    };
    put(
        out,
        format_args!(
            "<header>\n<div><h1>{}</h1><p class=\"soft\">{}</p></div>\n<div class=\"verdict {class}\">\
             <svg class=\"sign\" viewBox=\"0 0 24 24\" aria-hidden=\"true\"><path d=\"{sign}\"/></svg>\
             <div><b>{word}</b><span>{}</span></div></div>\n</header>\n",
            Text(&heading.name),
            Text(&heading.about),
            Text(sentence(words)),
        ),
    );
}

/// With a capital, as a line of its own.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// A figure that is read first, what it counts, and whether it is one that must not be.
type Tile = (String, String, bool);

fn figures(report: &Report) -> [Tile; 6] {
    let count = |n: u64| number(n as f64);
    let counted = report.unsold.zip(report.oversold);
    let sold = counted.map(|(unsold, oversold)| i64::from(report.stock) - unsold + oversold);
    let units = |units: Option<i64>| units.map_or_else(|| "?".to_owned(), |units| number(units as f64));
    let failed = report.lost + report.dishonoured;
    let p99 = report.latency_ms.accepted.p99;
    let p99 = if p99 < 10_000.0 { format!("{} ms", number(p99)) } else { format!("{} s", number(p99 / 1000.0)) };
    [
        (units(sold), format!("of {} units sold", number(report.stock.into())), false),
        (units(report.oversold), "units oversold".to_owned(), report.oversold > Some(0)),
        (count(failed), "orders lost or dishonoured".to_owned(), failed > 0),
        (count(report.requests), "purchases sent".to_owned(), false),
        (count(report.rates.accepted), "accepted a second".to_owned(), false),
        (p99, "99% of the accepted waited less".to_owned(), false),
    ]
}

fn tiles(out: &mut String, tiles: &[Tile]) {
    out.push_str("<ul class=\"tiles\">\n");
    for (figure, what, alarm) in tiles {
        let class = if *alarm { "card alarm" } else { "card" };
        put(out, format_args!("<li class=\"{class}\"><b>{}</b><span>{}</span></li>\n", Text(figure), Text(what)));
    }
    out.push_str("</ul>\n");
}
