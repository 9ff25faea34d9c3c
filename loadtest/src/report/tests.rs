//! What the page guarantees whatever the report holds.

use std::collections::BTreeMap;

use drive::checks::NAMES as CHECKS;
use drive::distribution::{Distribution, Distributions};
use drive::machine::Machine;
use drive::report::{Afterwards, Latencies, NoAnswer, Quantiles, Rates, SaleReport};
use drive::timeline::{Bucket, Timeline};
use seckill::promises::{CheckResult, Finding, NAMES};

use super::promises::meaning;
use super::*;
use crate::report::FaultResult;

const STYLE: &str = include_str!("style.css");

fn heading(name: &str) -> Heading {
    Heading { name: name.to_owned(), about: "7 units, 9 buyers".to_owned() }
}

/// Nothing happened, nothing is known.
fn empty() -> Report {
    Report { settled: true, ..Report::default() }
}

/// Every figure is another one, so that each can be found.
fn full() -> Report {
    let refused = BTreeMap::from([("sold_out", 40_001), ("already_purchased", 402), ("sale_not_started", 403)]);
    let bucket = |at_ms: i64| Bucket {
        at_ms,
        accepted: if at_ms < 0 { 0 } else { 30 },
        refused: if at_ms < 0 { BTreeMap::from([("sale_not_started", 5)]) } else { refused.clone() },
        unconfirmed: u64::from(at_ms == 300),
        client_errors: u64::from(at_ms == 400),
        remaining: (at_ms != 500).then(|| (1200 - at_ms).max(0)),
        sold: Some(at_ms.clamp(0, 1500)),
    };
    let points = |fastest: f64| {
        (0..40_u32).map(move |n| (fastest * 1.2_f64.powf(f64::from(n)), 1.0 - 0.7_f64.powf(f64::from(n))))
    };
    let distribution = |fastest| Distribution(points(fastest).chain([(fastest * 3000.0, 1.0)]).collect());
    Report {
        broker: "apache-kafka".to_owned(),
        redis_fsync: "always".to_owned(),
        nodes: 2,
        stock: 1_501,
        requests: 44_111,
        accepted: 1_502,
        refused: refused.clone(),
        http: BTreeMap::from([(202, 1_041), (409, 1_042)]),
        no_answer: NoAnswer { not_sent: 1_043, timeouts: 1_044, resets: 1_045 },
        unanswered_orders: 1_046,
        unconfirmed: 404,
        gave_up: 405,
        orders: BTreeMap::from([("created", 1_503), ("rejected", 12)]),
        afterwards: Afterwards {
            paid: 1_031,
            cancelled: 1_032,
            expired: 1_033,
            came_again: 1_034,
            bought_again: 1_035,
            unfinished: 1_036,
            still_wanted: 1_037,
        },
        oversold: Some(13),
        unsold: Some(14),
        duplicates: Some(15),
        lost: 16,
        dishonoured: 17,
        http_5xx: 18,
        client_errors: 19,
        rates: Rates { accepted: 2_021, refused: 2_022, persisted: 2_023 },
        latency_ms: Latencies {
            accepted: Quantiles { p50: 3.1, p99: 33.2, p999: 333.0 },
            refused: Quantiles { p50: 0.41, p99: 4.2, p999: 44.3 },
        },
        latency_distribution: Distributions { accepted: distribution(0.9), refused: distribution(0.2) },
        timeline: Timeline { bucket_ms: 100, buckets: (-5..40).map(|n| bucket(n * 100)).collect() },
        // Not the machine of the tests: the page must be the same on each.
        machine: Machine {
            cpu: Some("A processor".to_owned()),
            cores: Some(8),
            memory_bytes: Some(16 << 30),
            kernel: Some("6.1.0".to_owned()),
            build: "release",
            versions: BTreeMap::from([("redis", "7.0.15".to_owned()), ("rustc", "1.94.0".to_owned())]),
        },
        promises: NAMES
            .map(|name| Finding { name, holds: CheckResult::Holds, detail: format!("the figures of {name}") })
            .to_vec(),
        checks: CHECKS
            .map(|name| Finding { name, holds: CheckResult::Holds, detail: format!("the figures of {name}") })
            .to_vec(),
        verdict: Verdict::Pass,
        settled: true,
        ..Report::default()
    }
}

/// Fails unless every element is closed in order and every attribute is quoted.
fn check_well_formed(page: &str) {
    let body = page.strip_prefix("<!DOCTYPE html>").expect("a doctype");
    let mut open: Vec<&str> = Vec::new();
    let mut rest = body;
    while let Some(at) = rest.find('<') {
        let text = &rest[..at];
        if open.last() != Some(&"style") {
            assert!(!text.contains('>'), "a stray bracket: {text}");
        }
        let end = rest[at..].find('>').expect("a tag ends") + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
            continue;
        }
        let name = tag.split([' ', '/']).next().expect("a name");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        assert_eq!(tag.matches("=\"").count() * 2, tag.matches('"').count(), "{tag}");
        // These have no end.
        if !tag.ends_with('/') && !["br", "meta"].contains(&name) {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<&str>::new());
    assert_eq!(rest.trim(), "");
}

fn check_self_contained(page: &str) {
    let page = page.to_lowercase();
    for outside in ["http:", "https:", "//", "@import", "url(", "src=", "href=", "<script", "<link", "<iframe", "xmlns"]
    {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn a_page_is_well_formed_and_loads_nothing() {
    for report in [full(), empty()] {
        let page = page(&report, &heading("rush"));
        check_well_formed(&page);
        check_self_contained(&page);
        assert!(!page.contains("NaN") && !page.contains("inf "), "{page}");
    }
}

/// Whoever changes what people see changes a snapshot, too, and sees what they will see.
#[test]
fn the_page_of_a_run_and_its_text_are_as_they_were_agreed_on() {
    // The style has tests of its own.
    insta::assert_snapshot!("run_page", page(&full(), &heading("rush")).replace(STYLE, "/* style.css */"));
    insta::assert_snapshot!("run_text", drive::text_report::TextReport(&full()).to_string());
}

#[test]
fn every_promise_and_every_figure_is_on_the_page() {
    let report = full();
    let page = page(&report, &heading("rush"));
    for name in NAMES.into_iter().chain(CHECKS) {
        assert!(!meaning(name).is_empty(), "{name} is not explained");
        assert!(page.contains(&format!(">{name}<")) && page.contains(&format!("the figures of {name}")), "{name}");
    }
    let numbers = [
        "44,111",
        "40,001",
        "402",
        "403",
        "404",
        "405",
        "1,501",
        "1,502",
        "1,503",
        "12",
        "13",
        "14",
        "15",
        "16",
        "17",
        "18",
        "19",
        "2,021",
        "2,022",
        "2,023",
        "1,031",
        "1,032",
        "1,033",
        "1,034",
        "1,035",
        "1,036",
        "1,037",
        "1,041",
        "1,042",
        "1,043",
        "1,044",
        "1,045",
        "1,046",
        "3.1 / 33.2 / 333 ms",
        "0.41 / 4.2 / 44.3 ms",
    ];
    for figure in numbers {
        assert!(page.contains(&format!("<dd>{figure}</dd>")), "{figure}");
    }
    for word in ["apache-kafka", "always", "7.0.15", "Every promise holds", "sold_out 40,001"] {
        assert!(page.contains(word), "{word}");
    }
    for plot in ["Requests", "Latency", "Stock", "Orders landing"] {
        assert_eq!(page.matches(&format!("role=\"img\" aria-label=\"{plot}\"")).count(), 2, "{plot}, wide and narrow");
    }
}

#[test]
fn a_broken_promise_is_at_the_top_and_in_its_row() {
    let mut report = full();
    report.verdict = Verdict::Fail;
    report.promises[0].holds = CheckResult::Broken;
    let page = page(&report, &heading("rush"));
    assert!(page.contains("class=\"verdict fail\"") && page.contains("A promise is broken"));
    assert_eq!(page.matches("badge fail").count() - STYLE.matches("badge fail").count(), 1);
    assert!(page.contains("card alarm\"><b>13</b>"), "the units oversold are marked");
}

#[test]
fn several_sales_stand_in_lines_of_their_own() {
    let mut report = full();
    let sale = |name: &str, oversold| SaleReport {
        name: name.to_owned(),
        sale: seckill::domain::SaleId::new(7).expect("an id"),
        stock: 10,
        requests: 20,
        accepted: 10,
        orders: BTreeMap::from([("paid", 9)]),
        oversold: Some(oversold),
        unsold: Some(0),
        promises: report.promises.clone(),
        checks: Vec::new(),
    };
    let mut bad = sale("<late>", 3);
    bad.promises[0].holds = CheckResult::Broken;
    report.sales = vec![sale("early", 0), bad];
    let page = page(&report, &heading("mixed"));
    check_well_formed(&page);
    assert!(page.contains("<th scope=\"row\">early<small>sale 7, 10 units</small></th>"));
    assert!(page.contains("&lt;late&gt;") && page.contains("3 units oversold") && page.contains("broken: no_oversell"));
}

#[test]
fn hostile_text_stays_text() {
    let hostile = "</style></title><script src=\"http://x\">alert(1)</script><img onerror='x'>";
    let mut report = full();
    report.broker = hostile.to_owned();
    report.machine.cpu = Some(hostile.to_owned());
    report.promises[0].detail = hostile.to_owned();
    assert!(!super::page(&report, &heading("a\u{0}b")).contains('\u{0}'), "a control character");
    let page = page(&report, &heading(hostile));
    check_well_formed(&page);
    assert!(!page.contains("<script") && !page.contains("<img"));
    assert_eq!(page.matches("&lt;script src=&quot;http").count(), 5);
}

#[test]
fn runs_with_only_one_kind_of_answer_are_drawn() {
    for (accepted, refused) in [(true, false), (false, true)] {
        let mut report = full();
        if !accepted {
            report.latency_distribution.accepted = Distribution::default();
        }
        if !refused {
            report.latency_distribution.refused = Distribution(vec![(0.001, 1.0)]);
        }
        report.timeline.buckets.truncate(1);
        check_well_formed(&page(&report, &heading("half")));
    }
}

#[test]
fn a_drill_shows_every_fault_what_it_broke_and_what_is_excused() {
    let entry = |name, verdict, broken: &'static str| FaultResult {
        name,
        injected_at: Some(1_234),
        promises: NAMES
            .map(|name| {
                let holds = if name == broken { CheckResult::Broken } else { CheckResult::Holds };
                Finding { name, holds, detail: format!("<{name}>") }
            })
            .to_vec(),
        excused: vec!["nothing_lost"],
        verdict,
        figures: serde_json::Map::from_iter([("gave_up".to_owned(), 7.into())]),
        error: None,
    };
    let mut unsettled = entry("slow", Verdict::Fail, "none");
    unsettled.promises[8].holds = CheckResult::Unknown;
    let (lossy, bad) = (entry("lossy", Verdict::Pass, "nothing_lost"), entry("bad", Verdict::Fail, "no_oversell"));
    let page =
        drill_page(&[("loses some", &lossy), ("sells twice", &bad), ("never settles", &unsettled)], Verdict::Fail);
    insta::assert_snapshot!("drill_page", page.replace(STYLE, "/* style.css */"));
    check_well_formed(&page);
    check_self_contained(&page);
    for part in [
        "<b>excused nothing_lost</b>: &lt;nothing_lost&gt;",
        "<b>broken no_oversell</b>",
        "sells twice",
        "gave up 7",
        "<b>not checked agreement</b>",
    ] {
        assert!(page.contains(part), "{part}");
    }
    check_well_formed(&drill_page(&[], Verdict::Fail));
}

/// Value of `--name` in one of the two themes.
fn colour(theme: &str, name: &str) -> [f64; 3] {
    let (_, rest) = theme.split_once(&format!("--{name}: #")).expect("a colour");
    let part = |at: usize| f64::from(u8::from_str_radix(&rest[at..at + 2], 16).expect("two digits")) / 255.0;
    [part(0), part(2), part(4)]
}

/// By the formula of the Web Content Accessibility Guidelines.
fn contrast(one: [f64; 3], other: [f64; 3]) -> f64 {
    let linear = |c: f64| if c <= 0.040_45 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) };
    let luminance = |[r, g, b]: [f64; 3]| 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

#[test]
fn colours_have_enough_contrast_in_light_and_in_dark() {
    let (light, dark) = STYLE.split_once("prefers-color-scheme: dark").expect("two themes");
    for theme in [light, dark] {
        let grounds = [("ink", "page"), ("ink", "card"), ("soft", "page"), ("soft", "card")];
        for (text, ground) in grounds.into_iter().chain([("pass", "pass-ground"), ("fail", "fail-ground")]) {
            let ratio = contrast(colour(theme, text), colour(theme, ground));
            assert!(ratio >= 4.5, "{text} on {ground}: {ratio:.2}");
        }
        for series in ["accepted", "stock", "door", "hours", "malformed", "undecided", "error"] {
            let ratio = contrast(colour(theme, series), colour(theme, "card"));
            assert!(ratio >= 3.0, "{series}: {ratio:.2}");
        }
    }
}
