//! The funnel: what became of all purchases that were sent, stage by stage.

use drive::answer::STAGES;
use drive::report::{Afterwards, Report};
use maud::{Markup, html};

use super::plot::number;

/// Colours of [`STAGES`], in their order, by class of the style sheet.
pub const COLOURS: [&str; STAGES.len()] = ["malformed", "door", "hours", "stock"];

/// What one stage took out of the stream.
struct Loss {
    what: &'static str,
    detail: String,
    colour: &'static str,
    count: u64,
}

pub fn section(report: &Report) -> Markup {
    let all = report.requests;
    let mut left = all;
    let mut rows = vec![row("purchases sent", "", (all, "edge"), 0, all)];
    for Loss { what, detail, colour, count } in losses(report) {
        left = left.saturating_sub(count);
        if count > 0 {
            rows.push(row(what, &detail, (count, colour), left, all));
        }
    }
    // What is left are answers 202; a repeated purchase gets the same order again.
    let repeated = left.saturating_sub(report.accepted);
    if repeated > 0 {
        let detail = "202 to a repeated purchase";
        rows.push(row("the same order again", detail, (repeated, "edge"), report.accepted, all));
    }
    rows.push(row("accepted", "distinct orders answered 202", (report.accepted, "accepted"), 0, all));
    let orders: u64 = report.orders.values().sum();
    let states: Vec<_> =
        report.orders.iter().map(|(state, count)| format!("{state} {}", number(*count as f64))).collect();
    rows.push(row("rows in the ledger", &states.join(", "), (orders, "accepted"), 0, all));
    html! {
        h2 { "The funnel" }
        ol .funnel .card { @for row in rows { (row) } }
        (afterwards(report))
    }
}

/// What became of the accepted orders, where buyers lived on after their purchase.
fn afterwards(report: &Report) -> Markup {
    let after = report.afterwards;
    if after == Afterwards::default() {
        return html! {};
    }
    let mut left = report.accepted;
    let mut rows = Vec::new();
    for (what, detail, count, colour) in [
        ("paid", "", after.paid, "accepted"),
        ("cancelled", "by the buyer; the units went back on sale", after.cancelled, "hours"),
        ("expired", "not paid in time; the units went back on sale", after.expired, "door"),
        ("neither paid nor closed", "their buyers did not see the end", after.unfinished, "undecided"),
    ] {
        left = left.saturating_sub(count);
        if count > 0 {
            rows.push(row(what, detail, (count, colour), left, report.accepted));
        }
    }
    let again = format!("of {} retries", number(after.came_again as f64));
    rows.push(row("orders from retries", &again, (after.bought_again, "accepted"), 0, report.accepted));
    html! {
        h2 { "After the purchase" }
        ol .funnel .card { @for row in rows { (row) } }
    }
}

/// One line: what it is, how many, and a bar with what is left in front of what goes.
fn row(what: &str, detail: &str, (count, colour): (u64, &str), left: u64, all: u64) -> Markup {
    let part = |class: &str, count: u64| {
        let share = 100.0 * count as f64 / (all.max(1) as f64);
        html! { i .(class) .some[count > 0] style=(format!("width:{:.2}%", share.min(100.0))) {} }
    };
    html! {
        li {
            span { (what) @if !detail.is_empty() { small { (detail) } } }
            span .count { (number(count as f64)) }
            span .bar { (part("left", left)) (part(colour, count)) }
        }
    }
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
