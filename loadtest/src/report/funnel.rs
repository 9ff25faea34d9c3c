//! The funnel: what became of all purchases that were sent, stage by stage.

use drive::answer::STAGES;
use drive::report::{Afterwards, Report};

use super::html::Text;
use super::plot::{number, put};

/// Colours of [`STAGES`], in their order, by class of the style sheet.
pub const COLOURS: [&str; STAGES.len()] = ["malformed", "door", "hours", "stock"];

/// What one stage took out of the stream.
struct Loss {
    what: &'static str,
    detail: String,
    colour: &'static str,
    count: u64,
}

pub fn section(out: &mut String, report: &Report) {
    out.push_str("<h2>The funnel</h2>\n<ol class=\"funnel card\">\n");
    let all = report.requests;
    row(out, "purchases sent", "", (all, "edge"), 0, all);
    let mut left = all;
    for Loss { what, detail, colour, count } in losses(report) {
        left = left.saturating_sub(count);
        if count > 0 {
            row(out, what, &detail, (count, colour), left, all);
        }
    }
    // What is left are answers 202; a repeated purchase gets the same order again.
    let repeated = left.saturating_sub(report.accepted);
    if repeated > 0 {
        row(out, "the same order again", "202 to a repeated purchase", (repeated, "edge"), report.accepted, all);
    }
    row(out, "accepted", "distinct orders answered 202", (report.accepted, "accepted"), 0, all);
    let rows: u64 = report.orders.values().sum();
    let states: Vec<_> =
        report.orders.iter().map(|(state, count)| format!("{state} {}", number(*count as f64))).collect();
    row(out, "rows in the ledger", &states.join(", "), (rows, "accepted"), 0, all);
    out.push_str("</ol>\n");
    afterwards(out, report);
}

/// What became of the accepted orders, where buyers lived on after their purchase.
fn afterwards(out: &mut String, report: &Report) {
    let after = report.afterwards;
    if after == Afterwards::default() {
        return;
    }
    out.push_str("<h2>After the purchase</h2>\n<ol class=\"funnel card\">\n");
    let mut left = report.accepted;
    for (what, detail, count, colour) in [
        ("paid", "", after.paid, "accepted"),
        ("cancelled", "by the buyer; the units went back on sale", after.cancelled, "hours"),
        ("expired", "not paid in time; the units went back on sale", after.expired, "door"),
        ("neither paid nor closed", "their buyers did not see the end", after.unfinished, "undecided"),
    ] {
        left = left.saturating_sub(count);
        if count > 0 {
            row(out, what, detail, (count, colour), left, report.accepted);
        }
    }
    let again = format!("of {} retries", number(after.came_again as f64));
    row(out, "orders from retries", &again, (after.bought_again, "accepted"), 0, report.accepted);
    out.push_str("</ol>\n");
}

/// One line: what it is, how many, and a bar with what is left in front of what goes.
fn row(out: &mut String, what: &str, detail: &str, (count, colour): (u64, &str), left: u64, all: u64) {
    let part = |class: &str, count: u64| {
        let some = if count > 0 { " some" } else { "" };
        let share = 100.0 * count as f64 / (all.max(1) as f64);
        format!("<i class=\"{class}{some}\" style=\"width:{:.2}%\"></i>", share.min(100.0))
    };
    let detail = if detail.is_empty() { String::new() } else { format!("<small>{}</small>", Text(detail)) };
    put(
        out,
        format_args!(
            "<li><span>{}{detail}</span><span class=\"count\">{}</span><span class=\"bar\">{}{}</span></li>\n",
            Text(what),
            number(count as f64),
            part("left", left),
            part(colour, count),
        ),
    );
}

fn losses(report: &Report) -> Vec<Loss> {
    let unsent = Loss {
        what: "client errors",
        detail: "connections that failed, answers outside the contract".to_owned(),
        colour: "error",
        count: report.client_errors,
    };
    let stages = STAGES.iter().zip(COLOURS).map(|((what, codes), colour)| {
        let met: Vec<_> = codes.iter().filter_map(|code| report.refused.get_key_value(code)).collect();
        let detail: Vec<_> = met.iter().map(|(code, count)| format!("{code} {}", number(**count as f64))).collect();
        Loss { what, detail: detail.join(", "), colour, count: met.iter().map(|(_, count)| **count).sum() }
    });
    let open = Loss {
        what: "no decision",
        detail: "5xx, timeouts, resets; these buyers asked again".to_owned(),
        colour: "undecided",
        count: report.unconfirmed,
    };
    [unsent].into_iter().chain(stages).chain([open]).collect()
}
