//! Every shipped scenario with small sizes, against real servers: each keeps the promises and its own rules.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use loadtest::demo::{Cluster, ClusterSpec, Program, relaxed_limits, with_time_to_pay};
use secrecy::ExposeSecret;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// With small sizes; all of them run on one private service.
const SHARED: [(&str, &[&str]); 7] = [
    ("rush", &["--stock", "100", "--buyers", "400"]),
    ("flood", &["--stock", "80", "--buyers", "400", "--seconds", "1"]),
    ("replay", &["--stock", "60", "--buyers", "150", "--seconds", "1"]),
    ("drip", &["--stock", "40", "--buyers", "100", "--seconds", "2"]),
    ("restock", &["--stock", "60", "--buyers", "400", "--seconds", "2"]),
    ("mixed", &["--stock", "30", "--buyers", "200", "--seconds", "1"]),
    ("storm", &["--stock", "50", "--buyers", "500"]),
];

/// Runs at the same time: each mostly waits for the start of its sale and for orders to expire.
const AT_ONCE: usize = 3;
const PAY_WITHIN: Duration = Duration::from_secs(3);

fn loadtest() -> Command {
    Command::new(env!("CARGO_BIN_EXE_loadtest"))
}

fn report_of(scenario: &str) -> PathBuf {
    std::env::temp_dir().join(format!("seckill-{scenario}-{}.json", std::process::id()))
}

fn read(file: &Path) -> Value {
    let json = std::fs::read(file).expect("a report");
    std::fs::remove_file(file).expect("the report is ours");
    serde_json::from_slice(&json).expect("JSON")
}

/// Runs a scenario to its report; panics with all that it printed when it does not succeed.
fn run(mut command: Command, scenario: &str) -> (Value, String) {
    let file = report_of(scenario);
    let output = command.arg("--report").arg(&file).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scenario}\n{text}");
    (read(&file), text)
}

/// `loadtest run SCENARIO` against a service that runs.
fn against(cluster: &Cluster, scenario: &str, seed: usize) -> Command {
    let settings = &cluster.settings;
    let mut command = loadtest();
    command.args(["run", scenario, "--seed", &seed.to_string()]);
    command.args(cluster.urls.iter().flat_map(|url| ["--url", url]));
    command.args(["--postgres", settings.postgres.url.expose_secret(), "--redis", settings.redis.url.expose_secret()]);
    command.args(["--kafka", &settings.kafka.brokers, "--pay-within-s", &PAY_WITHIN.as_secs().to_string()]);
    command.env("SECKILL__AUTH__JWT_SECRET", settings.auth.jwt_secret.expose_secret());
    command.env("SECKILL__KAFKA__TOPIC", &settings.kafka.topic);
    command.env("SECKILL__KAFKA__DEAD_LETTER_TOPIC", &settings.kafka.dead_letter_topic);
    command.env("SECKILL__KAFKA__GROUP", &settings.kafka.group);
    command
}

fn holds(report: &Value, list: &str, name: &str) -> Option<bool> {
    let findings = report[list].as_array().expect("a list");
    findings.iter().find(|finding| finding["name"] == name).and_then(|finding| finding["holds"].as_bool())
}

/// What every run must show.
fn check(scenario: &str, report: &Value, text: &str) {
    assert_eq!(report["verdict"], "pass", "{text}");
    assert_eq!(report["promises"].as_array().map(Vec::len), Some(10), "{text}");
    assert_eq!(holds(report, "checks", "refusals_allowed"), Some(true), "{text}");
    assert_eq!(holds(report, "checks", "orders_ended"), Some(true), "{text}");
    assert_eq!((&report["oversold"], &report["lost"]), (&Value::from(0), &Value::from(0)), "{text}");
    let by_status: u64 = report["http"].as_object().expect("a map").values().filter_map(Value::as_u64).sum();
    let unheard: u64 = report["no_answer"].as_object().expect("a map").values().filter_map(Value::as_u64).sum();
    assert_eq!(report["requests"], by_status + unheard, "{scenario}: each purchase is counted once");
    assert!(text.contains("per second") && text.contains("Verdict  pass"), "{text}");
}

async fn cluster() -> Cluster {
    let program = Program { path: env!("CARGO_BIN_EXE_loadtest").into(), leading_args: vec!["role".to_owned()] };
    let configure = |settings| with_time_to_pay(relaxed_limits(settings), PAY_WITHIN);
    Cluster::configured(&program, ClusterSpec::standard(2), configure).await.expect("a service")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_keeps_every_promise_and_its_own_rules() {
    let cluster = Arc::new(cluster().await);
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut runs = JoinSet::new();
    for (seed, (scenario, sizes)) in SHARED.into_iter().enumerate() {
        let (cluster, turns) = (Arc::clone(&cluster), Arc::clone(&turns));
        runs.spawn(async move {
            let _turn = turns.acquire_owned().await.expect("nobody closes it");
            let blocking = move || {
                let mut command = against(&cluster, scenario, seed + 1);
                command.args(sizes);
                (scenario, run(command, scenario))
            };
            tokio::task::spawn_blocking(blocking).await.expect("the run ends")
        });
    }
    let mut names = Vec::new();
    while let Some(done) = runs.join_next().await {
        let (scenario, (report, text)) = done.expect("the run ends");
        check(scenario, &report, &text);
        match scenario {
            "restock" => {
                assert_eq!(report["stock"], 60 + 5 * 8, "{text}");
                assert_eq!(holds(&report, "checks", "stock_as_delivered"), Some(true), "{text}");
                assert_eq!(report["unsold"], 0, "{text}");
            }
            "mixed" => assert_eq!(report["sales"].as_array().map(Vec::len), Some(4), "{text}"),
            "replay" => assert!(report["refused"]["already_purchased"].as_u64() > Some(0), "{text}"),
            _ => {}
        }
        names.push(scenario);
    }
    assert_eq!(names.len(), SHARED.len());
    cluster.check().expect("every role still runs");

    // Ctrl-C stops the buyers, and their answers until then are still checked.
    let file = report_of("stopped");
    let mut command = against(&cluster, "drip", 100);
    command.args(["--stock", "5000", "--buyers", "6000", "--seconds", "600", "--report"]).arg(&file);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    // Standard error holds the progress lines, and has to be read to the end.
    let mut interrupted = false;
    for line in lines.map_while(Result::ok) {
        let accepted = line.split("accepted").nth(1).and_then(|rest| rest.split_whitespace().next());
        if !interrupted && accepted.and_then(|count| count.parse::<u64>().ok()) > Some(0) {
            interrupted =
                Command::new("kill").args(["-INT", &child.id().to_string()]).status().is_ok_and(|it| it.success());
        }
    }
    assert!(interrupted && child.wait().expect("it ends").success());
    let report = read(&file);
    assert_eq!(report["verdict"], "pass", "{report}");
    assert!(report["requests"].as_u64() < Some(6000) && report["accepted"].as_u64() > Some(0), "{report}");
    assert_eq!(holds(&report, "checks", "orders_ended"), None, "nobody stayed to see it");
}

/// With the default limits, on servers of its own.
#[test]
fn limits_hold_scripts_and_the_blacklist_holds_whoever_is_on_it() {
    let mut command = loadtest();
    command.args(["run", "bots", "--sandbox", "--stock", "40", "--buyers", "100", "--seconds", "2"]);
    let (report, text) = run(command, "bots");
    check("bots", &report, &text);
    for check in ["refusals_expected", "blocked_got_nothing", "only_scripts_limited"] {
        assert_eq!(holds(&report, "checks", check), Some(true), "{text}");
    }
    // A quarter of the scripts is blocked, each with every purchase.
    assert_eq!(report["refused"]["blocked"], 5 * 67, "{text}");
}

/// A rule that is broken fails the run, whatever the promises say, and a run that fails shows no speed.
#[test]
fn a_refusal_that_the_scenario_rules_out_fails_the_run() {
    let file = std::env::temp_dir().join(format!("seckill-strict-{}.toml", std::process::id()));
    let strict = "about = \"a stock that must not run out\"\nallows = [\"sale_not_started\"]\n\
        [[sales]]\nname = \"strict\"\nstock = 10\nbuyers = 100\nseconds = 0\n";
    std::fs::write(&file, strict).expect("a file");
    let run = loadtest().arg("run").arg(&file).args(["--sandbox", "--nodes", "1"]).output().expect("it starts");
    std::fs::remove_file(&file).expect("the file is ours");
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(!run.status.success(), "{text}");
    assert!(text.contains("refusals_allowed      BROKEN") && text.contains("sold_out"), "{text}");
    assert!(!text.contains("per second"), "{text}");
}

#[test]
fn the_scenarios_are_listed_and_an_unknown_one_is_refused() {
    let list = loadtest().arg("scenarios").output().expect("it starts");
    assert!(list.status.success());
    assert_eq!(String::from_utf8_lossy(&list.stdout).lines().count(), SHARED.len() + 1);
    let unknown = loadtest().args(["run", "no-such-thing", "--sandbox"]).output().expect("it starts");
    assert!(!unknown.status.success());
}
