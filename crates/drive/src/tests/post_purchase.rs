//! Buyers who pay, cancel, forget, and retry.

use std::time::Duration;

use super::shop::{Fault, Shop};
use super::*;
use crate::demand::PostPurchase;
use crate::record::StopReason;

const PAY_WITHIN: Duration = Duration::from_secs(1);

fn active_buyers() -> Demand {
    let post_purchase = PostPurchase {
        cancel: 0.2,
        forget: 0.1,
        regret: 0.5,
        decide_within: Duration::from_millis(50),
        pay_within: PAY_WITHIN,
        timeout: Duration::from_secs(20),
    };
    Demand { post_purchase: Some(post_purchase), ..demand() }
}

async fn run_and_evaluate(stock: u32, fault: Fault, demand: &Demand) -> (TestRun, Report) {
    let shop = Shop::paid_within(stock, PAY_WITHIN, fault);
    let run = run_users(&shop, demand, 32).await;
    let report = evaluate(&run, &shop, stock).await;
    (run, report)
}

fn with_short_timeout() -> Demand {
    let post_purchase = active_buyers()
        .post_purchase
        .map(|post_purchase| PostPurchase { timeout: Duration::from_secs(2), ..post_purchase });
    Demand { post_purchase, ..active_buyers() }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_cancelled_or_forgotten_is_sold_again() {
    let (run, report) = run_and_evaluate(100, Fault::None, &active_buyers()).await;
    assert_eq!((report.verdict, broken(&report)), (Verdict::Pass, vec![]), "{:?}", report.checks);
    let after = report.afterwards;
    assert!(after.cancelled > 0 && after.expired > 0, "{after:?}");
    // Whether retries or late first clicks get these units depends on the machine's speed.
    assert_eq!((after.unfinished, report.unsold), (0, Some(0)));
    assert!(after.still_wanted > 0, "most buyers get no unit");
    assert_eq!(report.orders.get("created"), None, "nothing is left unpaid");
    assert_eq!(report.orders.values().sum::<u64>(), report.accepted);
    assert_eq!(run.record.final_state.map(|state| state.stop_reason), Some(StopReason::Completed));
    let refused: u64 = report.refused.values().sum();
    let counted = run.record.accepted_answers + refused + report.unconfirmed + report.client_errors;
    assert_eq!(report.requests, counted);
    assert_eq!(report.requests, run.plan.clicks.len() as u64 + after.came_again);
}

#[tokio::test(flavor = "multi_thread")]
async fn units_that_nobody_wants_any_more_are_no_fault() {
    let (_, report) = run_and_evaluate(1000, Fault::None, &active_buyers()).await;
    assert_eq!((report.verdict, broken(&report)), (Verdict::Pass, vec![]), "{:?}", report.checks);
    assert!(report.unsold > Some(0));
    assert_eq!(report.afterwards.still_wanted, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_that_keeps_cancelled_units_to_itself_fails() {
    let (run, report) = run_and_evaluate(100, Fault::KeepsWhatComesBack, &with_short_timeout()).await;
    assert_eq!((report.verdict, broken(&report)), (Verdict::Fail, vec!["no_undersell"]));
    assert_eq!(run.record.final_state.map(|state| state.stop_reason), Some(StopReason::TimedOut));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_that_lets_nothing_expire_fails() {
    let (_, report) = run_and_evaluate(100, Fault::NeverExpires, &with_short_timeout()).await;
    assert_eq!(report.verdict, Verdict::Fail);
    let ended = report.checks.iter().find(|check| check.name == "orders_ended").expect("it is listed");
    assert_eq!(ended.holds, CheckResult::Broken, "{}", ended.detail);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_that_stops_answering_fails() {
    let (run, report) = run_and_evaluate(100, Fault::StopsAnswering, &with_short_timeout()).await;
    assert_eq!(report.verdict, Verdict::Fail);
    let decided = report.checks.iter().find(|check| check.name == "everybody_decided").expect("it is listed");
    assert_eq!(decided.holds, CheckResult::Broken, "{}", decided.detail);
    assert_eq!(report.gave_up, run.record.gave_up.len() as u64);
    assert!(broken(&report).contains(&"no_undersell"), "buyers who gave up wanted a unit: {:?}", report.promises);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_that_forgets_payments_fails() {
    let (_, report) = run_and_evaluate(100, Fault::ForgetsPayments, &active_buyers()).await;
    assert_eq!(report.verdict, Verdict::Fail);
    let kept = report.checks.iter().find(|check| check.name == "moves_kept").expect("it is listed");
    assert_eq!(kept.holds, CheckResult::Broken, "{}", kept.detail);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_stopped_early_is_evaluated_by_the_answers_until_then() {
    let shop = Shop::paid_within(100, PAY_WITHIN, Fault::None);
    let demand = Demand { window: Duration::from_secs(600), shape: Shape::Steady, early: 0.0, ..active_buyers() };
    let plan = Arc::new(plan(&demand));
    let client = Arc::new(Client::new(&[&shop.url], Limits::default()).expect("a base URL"));
    let (sale, pacing) = (sale(), Pacing::default());
    let users = VirtualUsers::with_post_purchase(
        Arc::clone(&client),
        Arc::clone(&plan),
        sale,
        Instant::now(),
        pacing,
        demand.post_purchase,
    )
    .expect("virtual users");
    let sending = async {
        while users.recorder.tally.accepted.load(std::sync::atomic::Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        users.stop();
    };
    tokio::join!(users.run_observed(&shop), sending);
    let run = TestRun { plan, client, record: users.into_record().expect("nobody else holds them") };
    let report = evaluate(&run, &shop, 100).await;
    assert_eq!((report.verdict, broken(&report)), (Verdict::Pass, vec![]), "{:?}", report.checks);
    assert!(report.requests < run.plan.clicks.len() as u64);
}
