//! The drill itself: the short list runs, and the report has a verdict on every promise.

use std::process::Command;

use serde_json::Value;

/// Failure modes in brief: a node, Redis, Kafka, PostgreSQL and a reconciler that fail in mid-sale cost no promise, and
/// a Redis that forgets costs what only it knew.
#[test]
fn the_short_drill_keeps_every_promise_and_says_what_a_lost_redis_cost() {
    let folder = std::env::temp_dir().join(format!("seckill-drill-{}", std::process::id()));
    let drill = Command::new(env!("CARGO_BIN_EXE_loadtest"))
        .args(["faults", "--quick", "--report"])
        .arg(&folder)
        .output()
        .expect("the drill starts");
    let text = String::from_utf8_lossy(&drill.stdout).into_owned() + &String::from_utf8_lossy(&drill.stderr);
    assert!(drill.status.success(), "{text}");
    let report: Value = serde_json::from_slice(&std::fs::read(&folder).expect("a report")).expect("JSON");
    std::fs::remove_file(&folder).expect("the report is ours");
    assert_eq!(report["verdict"], "pass");
    let faults = report["faults"].as_array().expect("a list");
    assert!(faults.len() >= 5, "{text}");
    for fault in faults {
        assert_eq!(fault["promises"].as_array().map(Vec::len), Some(10), "{fault}");
        assert!(fault["injected_at"].is_u64() && fault["figures"]["accepted"].as_u64() > Some(0), "{fault}");
        let may_lose = !fault["excused"].as_array().expect("a list").is_empty();
        assert_eq!(fault["figures"]["known_to_redis_alone"].is_u64(), may_lose, "{fault}");
    }
}

#[test]
fn the_list_names_at_least_25_faults() {
    let list = Command::new(env!("CARGO_BIN_EXE_loadtest")).args(["faults", "--list"]).output().expect("it starts");
    assert!(list.status.success());
    assert!(String::from_utf8_lossy(&list.stdout).lines().count() >= 25);
}

#[test]
fn an_unknown_fault_is_refused() {
    let asked = Command::new(env!("CARGO_BIN_EXE_loadtest")).args(["faults", "--only", "none"]).output();
    assert!(!asked.expect("it starts").status.success());
}
