//! The demo as a person runs it: the real program, with nothing running beforehand.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// Each demo starts a whole cluster: a machine with two cores runs one at a time.
static CLUSTER: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    CLUSTER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `loadtest demo` with these options and returns whether it succeeded, what it printed, and its report.
fn demo(options: &[&str]) -> (bool, String, Value) {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadtest"));
    command.arg("demo").args(options).arg("--report").arg(&file);
    let output = command.output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let report = std::fs::read(&file).map(|json| serde_json::from_slice(&json).expect("JSON"));
    (output.status.success(), text, report.unwrap_or_default())
}

#[test]
fn the_demo_sells_the_whole_stock_once_and_again_what_comes_back_and_keeps_every_promise() {
    // One percent of it is the reserve, which must be sold, too.
    let (success, text, report) = demo(&["--stock", "200", "--buyers", "1200", "--nodes", "2"]);
    assert!(success, "{text}");
    assert_eq!(report["verdict"], "pass", "{text}");
    for zero in ["oversold", "unsold", "duplicates", "lost", "dishonoured", "http_5xx", "client_errors"] {
        assert_eq!(report[zero], 0, "{zero}\n{text}");
    }
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let (orders, after) = (&report["orders"], &report["afterwards"]);
    // Every unit is paid in the end: units of cancelled and expired orders were sold again.
    assert_eq!((count(&orders["paid"]), count(&orders["created"])), (200, 0), "{text}");
    assert!(count(&orders["cancelled"]) > 0 && count(&orders["expired"]) > 0, "{text}");
    assert_eq!(report["accepted"], count(&orders["paid"]) + count(&orders["cancelled"]) + count(&orders["expired"]));
    assert!(count(&after["bought_again"]) > 0 && count(&after["still_wanted"]) > 0, "{text}");
    assert_eq!((&report["nodes"], &report["stock"]), (&Value::from(2), &Value::from(200)));
    let promises = report["promises"].as_array().expect("a list");
    assert_eq!(promises.len(), seckill::promises::NAMES.len());
    for finding in promises.iter().chain(report["checks"].as_array().expect("a list")) {
        assert_eq!(finding["holds"], true, "{finding}");
    }
    for latency in ["p50", "p99", "p999"] {
        assert!(report["latency_ms"]["accepted"][latency].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
    }
    let buckets = report["timeline"]["buckets"].as_array().expect("a list");
    let accepted: u64 = buckets.iter().filter_map(|bucket| bucket["accepted"].as_u64()).sum();
    assert!(accepted >= 200, "{report}");
    for (figure, last) in [("remaining", 0), ("sold", 200)] {
        assert_eq!(buckets.iter().rev().find_map(|bucket| bucket[figure].as_i64()), Some(last), "{figure}");
    }
    assert!(report["latency_distribution"]["refused"][0][0].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
    assert!(report["machine"]["versions"]["redis"].is_string(), "{report}");
    // Most buyers are refused, with a reason.
    assert!(count(&report["refused"]["sold_out"]) >= 800, "{text}");
    assert!(count(&report["refused"]["sale_not_started"]) > 0, "{text}");
    assert!(text.contains("Verdict  pass: every promise holds"), "{text}");
}

/// The last buyers get the reserve. Units that are cancelled at the end may stay unsold: every buyer has had one.
#[test]
fn a_crowd_as_large_as_the_stock_leaves_over_only_what_nobody_wants_any_more() {
    let (success, text, report) = demo(&["--stock", "400", "--buyers", "400", "--nodes", "1"]);
    assert!(success, "{text}");
    assert_eq!((&report["verdict"], &report["oversold"]), (&Value::from("pass"), &Value::from(0)), "{text}");
    let paid = report["orders"]["paid"].as_u64().expect("a figure");
    assert_eq!(report["unsold"], 400 - paid, "{text}");
    assert!(report["unsold"] == 0 || report["afterwards"]["still_wanted"] == 0, "{text}");
    assert!(report["accepted"].as_u64() >= Some(400), "everybody was served: {text}");
}

/// A person can try there what a `kill -9` does.
#[test]
fn a_demo_that_stays_starts_again_what_is_killed_by_hand_and_ends_in_good_order() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadtest"));
    command.args(["demo", "--stock", "20", "--buyers", "60", "--nodes", "1", "--stay"]).stdout(Stdio::piped());
    let _alone = alone();
    let mut demo = Ends(command.spawn().expect("the program runs"));
    let mut lines = BufReader::new(demo.0.stdout.take().expect("its output")).lines().map_while(Result::ok);
    let mut line = |what: &str| lines.find(|line| line.contains(what)).unwrap_or_else(|| panic!("nothing of {what}"));
    let kill = |signal: &str, process: &str| {
        assert!(Command::new("kill").args([signal, process]).status().expect("a signal").success());
    };
    let relay = line("relay  ");
    line("logs in");
    kill("-9", relay.split(' ').next_back().expect("a process"));
    line("relay has ended (signal: 9 (SIGKILL)); restarted as process");
    kill("-INT", &demo.0.id().to_string());
    assert!(demo.0.wait().expect("it ends").success());
}

/// Also where the test fails.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        // It has ended, as a rule.
        let _ = self.0.kill();
    }
}
