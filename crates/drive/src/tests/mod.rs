//! The virtual users and the verdict against a shop whose faults are known.

mod post_purchase;

mod shop;

use std::sync::Arc;
use std::time::{Duration, Instant};

use secrecy::SecretString;

use self::shop::{Fault, Shop, sale};
use super::checks::Rules;
use super::client::{Client, Limits};
use super::demand::{Bots, Demand, Plan, Shape};
use super::observer::{NoAccess, StoreObserver};
use super::record::ClientRecord;
use super::report::{NoAnswer, Report, Setup, Verdict};
use super::timeline::{Bucket, StoreSampler};
use super::tokens::Tokens;
use super::verdict::{Evaluation, Timeouts};
use super::virtual_users::{Pacing, VirtualUsers};
use seckill::promises::CheckResult;

const SECRET: &str = "a secret that is only used in tests, never elsewhere";

fn plan(demand: &Demand) -> Plan {
    let tokens = Tokens::new(&SecretString::from(SECRET)).expect("a usable secret");
    Plan::draw(demand, &tokens).expect("a plan")
}

fn demand() -> Demand {
    Demand {
        buyers: 300,
        window: Duration::from_millis(200),
        hasty: 0.3,
        early: 0.1,
        lead: Duration::from_millis(50),
        keyed: 0.3,
        max_quantity: 2,
        ..Demand::default()
    }
}

struct TestRun {
    plan: Arc<Plan>,
    client: Arc<Client>,
    record: ClientRecord,
}

async fn run_users(shop: &Shop, demand: &Demand, in_flight: usize) -> TestRun {
    let plan = Arc::new(plan(demand));
    let limits = Limits { connections: in_flight, ..Limits::default() };
    let client = Arc::new(Client::new(&[&shop.url, &shop.url], limits).expect("a base URL"));
    let start = Instant::now() + Duration::from_millis(100);
    let (follow_up_timeout, follow_up_pause) = (Duration::from_secs(20), Duration::from_millis(5));
    let pacing = Pacing { in_flight, follow_up_timeout, follow_up_pause, closed_loop: false, fresh_connections: false };
    let users = VirtualUsers::with_post_purchase(
        Arc::clone(&client),
        Arc::clone(&plan),
        sale(),
        start,
        pacing,
        demand.post_purchase,
    )
    .expect("virtual users");
    users.run_observed(shop).await;
    TestRun { plan, client, record: users.into_record().expect("nobody else holds them") }
}

async fn evaluate<W: StoreObserver>(run: &TestRun, observer: &W, stock: u32) -> Report {
    let timeouts = Timeouts { settle: Duration::from_secs(2), recheck: Duration::from_millis(1) };
    let setup = Setup { broker: "none".into(), redis_fsync: "none".into(), nodes: 2, stock };
    let TestRun { plan, client, record } = run;
    let evaluation = Evaluation { observer, client, plan, sale: sale(), record, setup, timeouts };
    evaluation.evaluate().await.expect("a verdict")
}

async fn verdict(stock: u32, fault: Fault) -> Report {
    let shop = Shop::open(stock, fault);
    let run = run_users(&shop, &demand(), 32).await;
    evaluate(&run, &shop, stock).await
}

fn broken(report: &Report) -> Vec<&'static str> {
    report.promises.iter().filter(|f| f.holds == CheckResult::Broken).map(|f| f.name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_honest_shop_passes_and_every_request_is_counted_once() {
    let shop = Shop::open(100, Fault::None);
    let run = run_users(&shop, &demand(), 32).await;
    let report = evaluate(&run, &shop, 100).await;
    assert_eq!(broken(&report), Vec::<&str>::new());
    assert_eq!(report.verdict, Verdict::Pass);
    assert_eq!((report.oversold, report.lost, report.duplicates, report.dishonoured), (Some(0), 0, Some(0), 0));
    let refused: u64 = report.refused.values().sum();
    let counted = run.record.accepted_answers + refused + report.unconfirmed + report.client_errors;
    assert_eq!(
        (report.requests, report.requests),
        (counted, run.plan.clicks.len() as u64),
        "{:?}",
        run.record.unexpected_texts
    );
    assert_eq!(report.orders["created"], report.accepted);
    assert!(report.latency_ms.accepted.p50 > 0.0);
    let over_time = StoreSampler::default().timeline(&run.record.over_time);
    let in_bucket = |b: &Bucket| b.accepted + b.refused.values().sum::<u64>() + b.unconfirmed + b.client_errors;
    assert_eq!(over_time.buckets.iter().map(in_bucket).sum::<u64>(), report.requests);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rate_of_orders_ends_with_the_stock_of_the_start() {
    let one_each = Demand { max_quantity: 1, ..demand() };
    let mut run = run_users(&Shop::open(1000, Fault::None), &one_each, 32).await;
    run.record.accepted_at = (0..40).map(|n| (Duration::from_secs(if n < 20 { 1 } else { 100 }), n)).collect();
    run.record.drop_resold_orders(&run.plan, 20);
    assert_eq!((run.record.accepted_at.len(), run.record.accepted_per_second()), (20, 19));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_that_sells_a_unit_twice_fails() {
    let report = verdict(51, Fault::SellsTwice).await;
    assert_eq!((report.verdict, report.oversold), (Verdict::Fail, Some(1)));
    assert!(broken(&report).contains(&"no_oversell"), "{:?}", report.promises);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_that_strands_a_unit_fails() {
    let report = verdict(51, Fault::KeepsOne).await;
    assert_eq!((report.verdict, report.unsold), (Verdict::Fail, Some(1)));
    assert_eq!(broken(&report), ["no_undersell"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_that_loses_an_accepted_order_fails() {
    let report = verdict(50, Fault::Loses).await;
    assert_eq!((report.verdict, report.lost), (Verdict::Fail, 1));
    assert!(broken(&report).contains(&"nothing_lost"), "{:?}", report.promises);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_that_rejects_an_accepted_order_fails() {
    let report = verdict(50, Fault::Rejects).await;
    assert_eq!((report.verdict, report.dishonoured), (Verdict::Fail, 1));
    assert!(broken(&report).contains(&"honoured"), "{:?}", report.promises);
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_that_never_arrive_are_no_pass() {
    let report = verdict(50, Fault::Stuck).await;
    assert_eq!(broken(&report), Vec::<&str>::new());
    assert_eq!(report.verdict, Verdict::Fail);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_never_came_are_unconfirmed_and_no_fault_of_the_orders() {
    let report = verdict(100, Fault::Mute).await;
    assert_eq!(broken(&report), Vec::<&str>::new());
    assert!(report.unconfirmed > 0 && report.http_5xx == report.unconfirmed);
    assert!(report.orders["created"] > report.accepted, "orders of buyers without a 202: {report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn buyers_of_a_busy_shop_ask_until_they_know() {
    let shop = Shop::open(1000, Fault::Busy);
    let run = run_users(&shop, &demand(), 32).await;
    let report = evaluate(&run, &shop, 1000).await;
    assert_eq!((report.accepted, report.gave_up), (300, 0), "there was enough for everybody");
    assert!(report.unconfirmed > 0);
    let undersold = report.promises.iter().find(|f| f.name == "no_undersell").expect("it is listed");
    assert_eq!(undersold.holds, CheckResult::Unknown, "demand did not reach the stock");
    assert_eq!(report.verdict, Verdict::Pass);
}

#[tokio::test(flavor = "multi_thread")]
async fn latency_counts_from_the_intended_start_of_a_click() {
    let shop = Shop::open(1000, Fault::Slow(Duration::from_millis(10)));
    let demand = Demand { buyers: 30, window: Duration::from_millis(1), hasty: 0.0, early: 0.0, ..demand() };
    let run = run_users(&shop, &demand, 1).await;
    // All clicks are due at once and go one by one: the last one waits for all others.
    assert!(run.record.accepted_us.max() >= 300_000, "{}", run.record.accepted_us.max());
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_closed_loop_the_times_of_the_plan_do_not_count() {
    let shop = Shop::open(1000, Fault::None);
    let demand = Demand { buyers: 30, window: Duration::from_secs(3600), hasty: 0.0, early: 0.0, ..demand() };
    let plan = Arc::new(plan(&demand));
    let client = Arc::new(Client::new(&[&shop.url], Limits::default()).expect("a base URL"));
    let pacing = Pacing { in_flight: 2, closed_loop: true, fresh_connections: true, ..Pacing::default() };
    let users = VirtualUsers::new(client, plan, sale(), Instant::now(), pacing).expect("virtual users");
    users.run().await;
    let record = users.into_record().expect("nobody else holds them");
    assert_eq!((record.accepted.len(), record.client_errors), (30, 0), "within the hour");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_purchase_is_counted_by_its_status_or_as_unanswered() {
    let report = verdict(100, Fault::Mute).await;
    let by_status: u64 = report.http.values().sum();
    let NoAnswer { not_sent, timeouts, resets } = report.no_answer;
    assert_eq!(report.requests, by_status + not_sent + timeouts + resets);
    assert_eq!((report.http[&503], report.http_5xx), (report.unconfirmed, report.unconfirmed));
    assert!(report.unanswered_orders > 0, "orders whose 202 never arrived");
}

#[test]
fn scripts_share_addresses_and_the_first_of_them_are_blocked() {
    let bots = Bots { users: 4, clicks: 10, addresses: 2, blocked: 1 };
    let demand = Demand { bots: Some(bots), hasty: 0.0, early: 0.0, ..demand() };
    let plan = plan(&demand);
    assert_eq!((plan.buyers.len(), plan.clicks.len()), (304, 340));
    let addresses: std::collections::HashSet<_> =
        plan.buyers[300..].iter().map(|bot| bot.caller.forwarded_for.clone()).collect();
    assert_eq!(addresses.len(), 2);
    let blocked: Vec<_> = plan.blocked(&demand).cloned().collect();
    assert_eq!(blocked, [plan.buyers[300].user.clone()]);
    assert!(plan.clicks.is_sorted_by_key(|click| click.at_us));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_of_the_run_counts_like_a_promise() {
    let shop = Shop::open(50, Fault::None);
    let run = run_users(&shop, &demand(), 32).await;
    let verdict_under = async |allowed: &[&str], expected: &[&str]| {
        let words = |codes: &[&str]| codes.iter().map(|code| (*code).to_owned()).collect::<Vec<_>>();
        let mut report = evaluate(&run, &shop, 50).await;
        let rules = Rules { allowed: Some(words(allowed)), expected: words(expected) };
        report.add_checks(rules.check(&report.refused, &run.record));
        report.verdict
    };
    let all = ["sold_out", "not_enough_left", "already_purchased"];
    assert_eq!(verdict_under(&all, &["sold_out"]).await, Verdict::Pass);
    assert_eq!(verdict_under(&all[1..], &[]).await, Verdict::Fail, "sold_out was ruled out");
    assert_eq!(verdict_under(&all, &["rate_limited"]).await, Verdict::Fail, "nobody was limited");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_store_access_only_what_buyers_can_read_is_checked() {
    let checked = |report: &Report| -> Vec<_> {
        report.promises.iter().filter(|f| f.holds != CheckResult::Unknown).map(|f| (f.name, f.holds)).collect()
    };
    let shop = Shop::open(50, Fault::None);
    let report = evaluate(&run_users(&shop, &demand(), 32).await, &NoAccess, 50).await;
    assert_eq!(checked(&report), [("nothing_lost", CheckResult::Holds), ("honoured", CheckResult::Holds)]);
    assert_eq!((report.verdict, report.unsold), (Verdict::Pass, None));
    assert_eq!((report.oversold, report.duplicates), (None, None), "nobody counted them");
    let shop = Shop::open(50, Fault::Loses);
    let report = evaluate(&run_users(&shop, &demand(), 32).await, &NoAccess, 50).await;
    assert_eq!(checked(&report), [("nothing_lost", CheckResult::Broken), ("honoured", CheckResult::Holds)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_store_access_a_rejection_as_second_order_counts_unless_there_is_a_first() {
    let shop = Shop::open(50, Fault::RejectsAsSecond);
    let report = evaluate(&run_users(&shop, &demand(), 32).await, &NoAccess, 50).await;
    assert_eq!((report.verdict, report.dishonoured, broken(&report)), (Verdict::Fail, 1, vec!["honoured"]));
}

#[test]
fn the_same_seed_draws_the_same_plan_and_every_buyer_has_an_address_of_its_own() {
    let (one, two, other) = (plan(&demand()), plan(&demand()), plan(&Demand { seed: 2, ..demand() }));
    assert_eq!(one.clicks, two.clicks);
    assert_ne!(one.clicks, other.clicks);
    assert!(one.clicks.is_sorted_by_key(|click| click.at_us));
    assert!(one.clicks[0].at_us < 0, "somebody comes early");
    let addresses: std::collections::HashSet<_> =
        one.buyers.iter().map(|buyer| buyer.caller.forwarded_for.clone().expect("an address")).collect();
    assert_eq!(addresses.len(), one.buyers.len());
    let steady = plan(&Demand { shape: Shape::Steady, hasty: 0.0, early: 0.0, ..demand() });
    assert_eq!(steady.clicks.len(), 300);
}
