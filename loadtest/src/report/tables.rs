//! The figures that no picture shows, and what the run ran on.

use drive::report::{Afterwards, Quantiles, Report, SaleReport};
use maud::{Markup, html};
use seckill::promises::CheckResult;

use super::plot::number;

pub fn section(report: &Report) -> Markup {
    html! {
        @if !report.sales.is_empty() { (sales(&report.sales)) }
        h2 { "All figures" }
        (pairs(&figures(report)))
        h2 { "The machine" }
        (pairs(&machine(report)))
        p .note {
            "The buyers ran on this machine. Where the service ran there too, both shared its processors: such figures \
             compare versions of the service and do not tell what it can do alone."
        }
    }
}

/// Each of several sales in a line of its own.
fn sales(sales: &[SaleReport]) -> Markup {
    html! {
        h2 { "The sales" }
        div .card {
            table .promises {
                @for sale in sales { (sale_row(sale)) }
            }
        }
    }
}

fn sale_row(sale: &SaleReport) -> Markup {
    let findings = || sale.promises.iter().chain(&sale.checks);
    let broken: Vec<_> = findings().filter(|f| f.holds == CheckResult::Broken).map(|f| f.name).collect();
    let open = findings().filter(|f| f.holds == CheckResult::Unknown).count();
    let (class, word) = match (broken.is_empty(), open) {
        (false, _) => ("fail", "broken"),
        (true, 0) => ("pass", "holds"),
        (true, _) => ("open", "not all checked"),
    };
    let count = |n: u64| number(n as f64);
    let mut said = vec![format!("{} purchases", count(sale.requests)), format!("{} accepted", count(sale.accepted))];
    said.extend(sale.oversold.map(|units| format!("{} units oversold", number(units as f64))));
    said.extend(sale.unsold.map(|unsold| format!("{} unsold", number(unsold as f64))));
    said.extend(sale.orders.iter().map(|(state, n)| format!("{} {state}", count(*n))));
    said.extend((!broken.is_empty()).then(|| format!("broken: {}", broken.join(", "))));
    html! {
        tr {
            th scope="row" {
                (sale.name)
                small { "sale " (sale.sale) ", " (number(sale.stock.into())) " units" }
            }
            td .stand { span .badge .(class) { (word) } }
            td { (said.join(", ")) }
        }
    }
}

type Pair = (String, String);

fn pairs(pairs: &[Pair]) -> Markup {
    html! {
        dl .card .pairs {
            @for (name, value) in pairs {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

fn figures(report: &Report) -> Vec<Pair> {
    let count = |name: &str, n: u64| (name.to_owned(), number(n as f64));
    let latency = |name: &str, q: Quantiles| {
        let text = format!("{} / {} / {} ms", number(q.p50), number(q.p99), number(q.p999));
        (format!("{name}: p50 / p99 / p99.9"), text)
    };
    let mut all = vec![count("purchases sent", report.requests), count("accepted", report.accepted)];
    all.extend(report.refused.iter().map(|(code, n)| count(code, *n)));
    all.extend([
        count("no decision", report.unconfirmed),
        count("of these with a status (5xx)", report.http_5xx),
        count("timeouts", report.no_answer.timeouts),
        count("broken connections", report.no_answer.resets),
        count("never sent: no connection", report.no_answer.not_sent),
        count("buyers who gave up", report.gave_up),
        count("client errors", report.client_errors),
    ]);
    all.extend(report.http.iter().map(|(status, n)| count(&format!("answers of status {status}"), *n)));
    all.extend(report.orders.iter().map(|(state, n)| count(&format!("orders {state}"), *n)));
    let after = report.afterwards;
    if after != Afterwards::default() {
        all.extend([
            count("told to be paid", after.paid),
            count("told to be cancelled", after.cancelled),
            count("told to be expired", after.expired),
            count("neither paid nor closed", after.unfinished),
            count("retries", after.came_again),
            count("orders from retries", after.bought_again),
            count("buyers without a unit", after.still_wanted),
        ]);
    }
    let known = |n: Option<f64>| n.map_or_else(|| "not known".to_owned(), number);
    all.extend([
        ("units oversold".to_owned(), known(report.oversold.map(|n| n as f64))),
        ("units unsold".to_owned(), known(report.unsold.map(|n| n as f64))),
        count("orders of buyers without an answer", report.unanswered_orders),
        count("orders lost", report.lost),
        count("orders dishonoured", report.dishonoured),
        ("duplicates".to_owned(), known(report.duplicates.map(|n| n as f64))),
        count("accepted a second", report.rates.accepted),
        count("refused a second", report.rates.refused),
        count("rows a second", report.rates.persisted),
        latency("accepted", report.latency_ms.accepted),
        latency("refused", report.latency_ms.refused),
    ]);
    all
}

fn machine(report: &Report) -> Vec<Pair> {
    let machine = &report.machine;
    let pair = |name: &str, value: Option<String>| value.map(|value| (name.to_owned(), value));
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let known = [
        pair("processor", machine.cpu.clone()),
        pair("cores", machine.cores.map(|n| n.to_string())),
        pair("memory", machine.memory_bytes.map(gib)),
        pair("kernel", machine.kernel.clone()),
        pair("build of the buyers", Some(machine.build.to_owned()).filter(|build| !build.is_empty())),
        pair("HTTP nodes", Some(report.nodes.to_string())),
        pair("units on sale", Some(number(report.stock.into()))),
        pair("broker", Some(report.broker.clone())),
        pair("Redis appendfsync", Some(report.redis_fsync.clone())),
    ];
    let versions = machine.versions.iter().map(|(name, version)| ((*name).to_owned(), version.clone()));
    known.into_iter().flatten().chain(versions).collect()
}
