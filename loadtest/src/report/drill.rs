//! The report of a fault drill as a page: every fault, what it did, and whether a promise was broken.

use drive::report::Verdict;
use seckill::promises::{CheckResult, Finding};

use super::fault_result::FaultResult;
use super::html::Text;
use super::plot::{number, put};
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
    document(&heading.name, |out| {
        head(out, &heading, verdict, &words);
        let failures = (count(failed), "faults failed".to_owned(), failed > 0);
        tiles(
            out,
            &[
                (count(faults.len()), "faults played".to_owned(), false),
                failures,
                (count(checked), "promises checked".to_owned(), false),
                (count(excused), "excused: Redis had lost what it alone knew".to_owned(), false),
            ],
        );
        out.push_str("<main>\n<h2>The faults</h2>\n<div class=\"card\"><table class=\"promises\">\n");
        for (about, entry) in faults {
            line(out, about, entry);
        }
        out.push_str("</table></div>\n</main>\n");
    })
}

/// Broken promises of a fault, and whether each is excused.
fn broken(entry: &FaultResult) -> impl Iterator<Item = (&Finding, bool)> {
    let broken = entry.promises.iter().filter(|finding| finding.holds == CheckResult::Broken);
    broken.map(|finding| (finding, entry.excused.contains(&finding.name)))
}

fn line(out: &mut String, about: &str, entry: &FaultResult) {
    let (class, word) = if entry.verdict == Verdict::Pass { ("pass", "pass") } else { ("fail", "fail") };
    put(
        out,
        format_args!(
            "<tr><th scope=\"row\">{}<small>{}</small></th><td class=\"stand\"><span class=\"badge {class}\">{word}</span></td><td>",
            Text(entry.name),
            Text(about),
        ),
    );
    for (finding, excused) in broken(entry) {
        let word = if excused { "excused" } else { "broken" };
        put(out, format_args!("<b>{word} {}</b>: {}<br/>", Text(finding.name), Text(&finding.detail)));
    }
    // What never settles fails a fault as well, and shows in what could not be judged for it.
    let open = entry.promises.iter().filter(|finding| finding.holds == CheckResult::Unknown);
    for finding in open.filter(|_| entry.verdict == Verdict::Fail) {
        put(out, format_args!("<b>not checked {}</b>: {}<br/>", Text(finding.name), Text(&finding.detail)));
    }
    if let Some(error) = &entry.error {
        put(out, format_args!("<b>error</b>: {}<br/>", Text(error)));
    }
    let at = entry.injected_at.map(|ms| format!("at {} s", number(ms as f64 / 1000.0)));
    let figures = entry.figures.iter().map(|(name, value)| format!("{} {value}", name.replace('_', " ")));
    let said: Vec<_> = at.into_iter().chain(figures).collect();
    put(out, format_args!("<span class=\"soft\">{}</span></td></tr>\n", Text(said.join(", "))));
}
