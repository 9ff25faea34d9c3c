//! The figures that no picture shows, and what the run ran on.

use seckill::drive::report::{Afterwards, Quantiles, Report};

use super::html::Text;
use super::plot::{number, put};

pub fn section(out: &mut String, report: &Report) {
    out.push_str("<h2>All figures</h2>\n");
    pairs(out, &figures(report));
    out.push_str("<h2>The machine</h2>\n");
    pairs(out, &machine(report));
    let note = "The buyers ran on this machine. Where the service ran there too, both shared its processors: such \
                figures compare versions of the service and do not tell what it can do alone.";
    put(out, format_args!("<p class=\"note\">{note}</p>\n"));
}

type Pair = (String, String);

fn pairs(out: &mut String, pairs: &[Pair]) {
    out.push_str("<dl class=\"card pairs\">\n");
    for (name, value) in pairs {
        put(out, format_args!("<div><dt>{}</dt><dd>{}</dd></div>\n", Text(name), Text(value)));
    }
    out.push_str("</dl>\n");
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
        count("left without a decision", report.unconfirmed),
        count("of these with a status (5xx)", report.http_5xx),
        count("not sent, or not understood", report.client_errors),
    ]);
    all.extend(report.orders.iter().map(|(state, n)| count(&format!("orders {state}"), *n)));
    let after = report.afterwards;
    if after != Afterwards::default() {
        all.extend([
            count("told to be paid", after.paid),
            count("told to be cancelled", after.cancelled),
            count("told to be expired", after.expired),
            count("neither paid nor closed", after.unfinished),
            count("purchases of who came again", after.came_again),
            count("orders that came of them", after.bought_again),
            count("buyers left without a unit", after.still_wanted),
        ]);
    }
    all.extend([
        ("units oversold".to_owned(), number(report.oversold as f64)),
        ("units unsold".to_owned(), report.unsold.map_or_else(|| "not known".to_owned(), |n| number(n as f64))),
        count("orders lost", report.lost),
        count("orders dishonoured", report.dishonoured),
        count("duplicates", report.duplicates),
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
