//! The verdict fails where it must: counters that are wrong on purpose oversell under the buyers of the load test.

use std::process::Command;

use serde_json::Value;

/// Two thousand buyers at one moment for a hundred units, hundreds of them in flight: no scheduling of them spares a
/// counter that is not atomic.
fn flood(strategy: &str) -> Value {
    let file = std::env::temp_dir().join(format!("seckill-naive-{strategy}-{}", std::process::id()));
    let run = Command::new(env!("CARGO_BIN_EXE_loadtest"))
        .args(["run", "flood", "--stock", "100", "--buyers", "2000", "--max-quantity", "1", "--seconds", "0"])
        .args(["--strategy", strategy, "--report"])
        .arg(&file)
        .output()
        .expect("the load test starts");
    let text = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success(), "the exit status must tell:\n{text}");
    let report: Value = serde_json::from_slice(&std::fs::read(&file).expect(&text)).expect("JSON");
    std::fs::remove_file(&file).expect("the report is ours");
    assert!(text.contains("Verdict  fail: a promise is broken"), "{text}");
    report
}

fn check_oversold(report: &Value) {
    assert_eq!(report["verdict"], "fail");
    let oversold = report["oversold"].as_i64().expect("a number");
    assert!(oversold > 0, "{report}");
    assert_eq!(report["accepted"].as_i64(), Some(100 + oversold), "every unit too many was promised to somebody");
    let promises = report["promises"].as_array().expect("a list");
    let broken: Vec<_> = promises.iter().filter(|promise| promise["holds"] == false).collect();
    let detail = broken[0]["detail"].as_str().expect("words");
    assert_eq!(
        (broken[0]["name"].as_str(), detail.contains(&format!("{oversold} too many"))),
        (Some("no_oversell"), true)
    );
    // The shop is right in everything else, so the verdict finds nothing but the counter.
    assert!(broken[1..].iter().all(|promise| promise["name"] == "ledger_conserved"), "{report}");
}

#[test]
fn a_counter_that_reads_then_writes_oversells_and_fails() {
    check_oversold(&flood("read-then-write"));
}

#[test]
fn a_mutex_in_each_node_oversells_and_fails() {
    let report = flood("local-mutex");
    check_oversold(&report);
    assert_eq!(report["oversold"], 100, "each of the two nodes sells the whole stock");
}

#[test]
fn an_update_without_a_condition_oversells_and_fails() {
    check_oversold(&flood("select-then-update"));
}
