//! The demo as a person runs it: the real program, with nothing running beforehand.

#![cfg(feature = "demo")]

use std::process::Command;

use serde_json::Value;

/// Runs `seckill demo` with these options and returns whether it succeeded, what it printed, and its report.
fn demo(options: &[&str]) -> (bool, String, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
    command.arg("demo").args(options).arg("--report").arg(&file);
    let output = command.output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let report = std::fs::read(&file).map(|json| serde_json::from_slice(&json).expect("JSON"));
    (output.status.success(), text, report.unwrap_or_default())
}

#[test]
fn the_demo_sells_the_whole_stock_once_and_keeps_every_promise() {
    let (success, text, report) = demo(&["--stock", "50", "--buyers", "400", "--nodes", "2"]);
    assert!(success, "{text}");
    assert_eq!(report["verdict"], "pass", "{text}");
    for zero in ["oversold", "unsold", "duplicates", "lost", "dishonoured", "http_5xx", "client_errors"] {
        assert_eq!(report[zero], 0, "{zero}\n{text}");
    }
    assert_eq!((&report["accepted"], &report["orders"]["created"]), (&Value::from(50), &Value::from(50)), "{text}");
    assert_eq!((&report["nodes"], &report["stock"]), (&Value::from(2), &Value::from(50)));
    let promises = report["promises"].as_array().expect("a list");
    assert_eq!(promises.len(), seckill::promises::NAMES.len());
    for promise in promises {
        assert_eq!(promise["holds"], true, "{promise}");
    }
    for latency in ["p50", "p99", "p999"] {
        assert!(report["latency_ms"]["accepted"][latency].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
    }
    let buckets = report["timeline"]["buckets"].as_array().expect("a list");
    let accepted: u64 = buckets.iter().filter_map(|bucket| bucket["accepted"].as_u64()).sum();
    assert!(accepted >= 50, "{report}");
    for (figure, last) in [("remaining", 0), ("sold", 50)] {
        assert_eq!(buckets.iter().rev().find_map(|bucket| bucket[figure].as_i64()), Some(last), "{figure}");
    }
    assert!(report["latency_distribution"]["refused"][0][0].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
    assert!(report["machine"]["versions"]["redis"].is_string(), "{report}");
    // Losing is the common case: most were refused, and told why.
    assert!(report["refused"]["sold_out"].as_u64().is_some_and(|count| count >= 300), "{text}");
    assert!(report["refused"]["sale_not_started"].as_u64().is_some_and(|count| count > 0), "{text}");
    assert!(text.contains("Verdict  pass: every promise holds"), "{text}");
}
