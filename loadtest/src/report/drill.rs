//! The report of a fault drill as a page: every fault, what it did, and whether a promise was broken.

use drive::report::Verdict;
use maud::{Markup, html};
use seckill::promises::{CheckResult, Finding};

use super::fault_result::FaultResult;
use super::plot::number;
use super::{Heading, document, head, tiles};

/// The page of a drill: each fault with what it is about.
pub fn drill_page(faults: &[(&str, &FaultResult)], verdict: Verdict) -> String {
    let failed = faults.iter().filter(|(_, entry)| entry.verdict == Verdict::Fail).count();
    let checked =
        faults.iter().flat_map(|(_, entry)| &entry.promises).filter(|f| f.holds != CheckResult::Unknown).count();
    let excused = faults.iter().flat_map(|(_, entry)| broken(entry)).filter(|(_, excused)| *excused).count();
    let heading = Heading {
        name: "fault drill".to_owned(),
        about: "Every fault is made to happen in the middle of a sale under load.".to_owned(),
    };
    let words = match (verdict, failed) {
        (Verdict::Pass, _) => "every fault passed".to_owned(),
        (Verdict::Fail, 0) => "no fault was played".to_owned(),
        (Verdict::Fail, 1) => "one fault failed".to_owned(),
        (Verdict::Fail, more) => format!("{more} faults failed"),
    };
    let count = |n: usize| number(n as f64);
    let figures = [
        (count(faults.len()), "faults played".to_owned(), false),
        (count(failed), "faults failed".to_owned(), failed > 0),
        (count(checked), "promises checked".to_owned(), false),
        (count(excused), "excused: Redis had lost what it alone knew".to_owned(), false),
    ];
    document(
        &heading.name,
        &html! {
            (head(&heading, verdict, &words))
            (tiles(&figures))
            main {
                h2 { "The faults" }
                div .card {
                    table .promises {
                        @for (about, entry) in faults { (row(about, entry)) }
                    }
                }
            }
        },
    )
}

/// Broken promises of a fault, and whether each is excused.
fn broken(entry: &FaultResult) -> impl Iterator<Item = (&Finding, bool)> {
    let broken = entry.promises.iter().filter(|finding| finding.holds == CheckResult::Broken);
    broken.map(|finding| (finding, entry.excused.contains(&finding.name)))
}

fn row(about: &str, entry: &FaultResult) -> Markup {
    let (class, word) = if entry.verdict == Verdict::Pass { ("pass", "pass") } else { ("fail", "fail") };
    // What never settles fails a fault as well, and shows in what could not be judged for it.
    let open = entry.promises.iter().filter(|finding| finding.holds == CheckResult::Unknown);
    let at = entry.injected_at.map(|ms| format!("at {} s", number(ms as f64 / 1000.0)));
    let figures = entry.figures.iter().map(|(name, value)| format!("{} {value}", name.replace('_', " ")));
    let said: Vec<_> = at.into_iter().chain(figures).collect();
    html! {
        tr {
            th scope="row" { (entry.name) small { (about) } }
            td .stand { span .badge .(class) { (word) } }
            td {
                @for (finding, excused) in broken(entry) {
                    b { @if excused { "excused " } @else { "broken " } (finding.name) } ": " (finding.detail) br;
                }
                @for finding in open.filter(|_| entry.verdict == Verdict::Fail) {
                    b { "not checked " (finding.name) } ": " (finding.detail) br;
                }
                @if let Some(error) = &entry.error { b { "error" } ": " (error) br; }
                span .soft { (said.join(", ")) }
            }
        }
    }
}
