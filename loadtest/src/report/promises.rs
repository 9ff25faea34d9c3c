//! The promises, each with its figures, and what else was checked about the run.

use drive::report::Report;
use maud::{Markup, html};
use seckill::promises::{CheckResult, Finding};

/// What each promise and check says.
const MEANINGS: [(&str, &str); 18] = [
    ("no_oversell", "Live orders never add up to more units than the stock."),
    ("no_undersell", "When demand reached the stock, the whole stock is sold."),
    ("one_per_user", "A buyer holds at most one live order."),
    ("nothing_lost", "Every purchase answered 202 ends in exactly one order that its buyer can read."),
    ("honoured", "That order is not taken back."),
    ("redis_conserved", "In Redis, total = remaining + units of all claims."),
    ("ledger_conserved", "In PostgreSQL, total = available + reserve + units of all live orders."),
    ("covered", "Every live order has its claim in Redis, and no rejected one has."),
    ("agreement", "Redis and PostgreSQL tell the same story."),
    ("exactly_once", "Retries and redeliveries change nothing."),
    ("everybody_decided", "Every buyer heard whether the purchase went through."),
    ("orders_ended", "Every order was paid, cancelled or expired before the timeout."),
    ("refusals_allowed", "Nobody was refused for a reason that this run rules out."),
    ("refusals_expected", "The refusals that this run is about did happen."),
    ("only_scripts_limited", "Nobody was told to slow down but scripts."),
    ("stock_as_delivered", "The stock is what was put on sale and what was added, each delivery once."),
    ("blocked_got_nothing", "Nobody on the blacklist holds an order."),
    ("moves_kept", "Whoever was told that an order is paid, cancelled or expired finds it so."),
];

/// What a promise says; empty for one that has no words here.
pub fn meaning(name: &str) -> &'static str {
    MEANINGS.iter().find(|(known, _)| *known == name).map_or("", |(_, meaning)| meaning)
}

pub fn section(report: &Report) -> Markup {
    html! {
        h2 { "The promises" }
        (table(&report.promises))
        @if !report.checks.is_empty() {
            h2 { "Checks of this run" }
            (table(&report.checks))
        }
    }
}

fn table(findings: &[Finding]) -> Markup {
    html! {
        div .card {
            table .promises {
                @for finding in findings {
                    @let (class, word) = match finding.holds {
                        CheckResult::Holds => ("pass", "holds"),
                        CheckResult::Broken => ("fail", "broken"),
                        CheckResult::Unknown => ("open", "not checked"),
                    };
                    tr {
                        th scope="row" { (finding.name) small { (meaning(finding.name)) } }
                        td .stand { span .badge .(class) { (word) } }
                        td { (finding.detail) }
                    }
                }
            }
        }
    }
}
