//! The report of a run as a page: one HTML file that needs nothing beside it.
//!
//! A finished [`Report`] comes in, a page goes out. Nothing is measured or judged here. The page loads nothing, runs no
//! script, follows the reader's light or dark, and fits a phone. Whatever is text in the report is text in the page.

mod charts;
mod drill;
mod escape;
mod fault_result;
mod funnel;
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
use maud::{DOCTYPE, Markup, PreEscaped, html};

use plot::number;

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
    document(
        &heading.name,
        &html! {
            (head(heading, report.verdict, &verdict_in_words(report)))
            (tiles(&figures(report)))
            main {
                (funnel::section(report))
                (charts::section(report))
                (promises::section(report))
                (tables::section(report))
            }
        },
    )
}

/// A document around `body`: the style, and nothing else.
fn document(name: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "seckill: " (name) }
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body {
                (body)
                footer .note { "Written by " code { "loadtest" } ". Every figure is also in the JSON report." }
            }
        }
    };
    // Control characters are not allowed in a page, whatever they are meant to be; maud lets them through.
    page.into_string().replace(|c: char| c.is_control() && c != '\n' && c != '\t', "\u{fffd}")
}

fn head(heading: &Heading, verdict: Verdict, words: &str) -> Markup {
    let (class, word, sign) = match verdict {
        Verdict::Pass => ("pass", "Pass", "M5 13l4.5 4.5L19 7.5"),
        Verdict::Fail => ("fail", "Fail", "M6.5 6.5l11 11M17.5 6.5l-11 11"),
    };
    html! {
        header {
            div {
                h1 { (heading.name) }
                p .soft { (heading.about) }
            }
            div .verdict .(class) {
                svg .sign viewBox="0 0 24 24" aria-hidden="true" { path d=(sign) {} }
                div { b { (word) } span { (sentence(words)) } }
            }
        }
    }
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

fn tiles(tiles: &[Tile]) -> Markup {
    html! {
        ul .tiles {
            @for (figure, what, alarm) in tiles {
                li .card .alarm[*alarm] { b { (figure) } span { (what) } }
            }
        }
    }
}
