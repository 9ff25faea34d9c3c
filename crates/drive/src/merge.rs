//! One report of several sales that ran at the same time.
//!
//! Figures are sums, latencies are those of all buyers, and a promise holds only if it holds for every sale. `sales`
//! keeps the findings of each sale.

use std::collections::BTreeMap;

use anyhow::Context;

use super::distribution::Distribution;
use super::report::{Afterwards, NoAnswer, Quantiles, Report, SaleReport, Verdict};
use super::run::FinishedRun;
use seckill::promises::{CheckResult, Finding};

/// Makes one report of all. The report of a single sale stays as it is.
///
/// # Errors
/// When there is no run.
pub fn merge_reports(finished: Vec<FinishedRun>) -> anyhow::Result<Report> {
    let mut all = finished.into_iter();
    let FinishedRun { name, open_sale, mut record, mut report, .. } = all.next().context("no run was finished")?;
    let rest: Vec<_> = all.collect();
    if rest.is_empty() {
        return Ok(report);
    }
    let mut sales = vec![sale_report(name, open_sale.id, &report)];
    for FinishedRun { name, open_sale, record: other, report: theirs, .. } in rest {
        record.merge(&other)?;
        sales.push(sale_report(name, open_sale.id, &theirs));
        add(&mut report, theirs);
    }
    let latencies = &mut report.latency_ms;
    (latencies.accepted, latencies.refused) = (Quantiles::of(&record.accepted_us), Quantiles::of(&record.refused_us));
    let spread = &mut report.latency_distribution;
    (spread.accepted, spread.refused) = (Distribution::of(&record.accepted_us), Distribution::of(&record.refused_us));
    report.rates.accepted = record.accepted_per_second();
    report.rates.refused = record.refused_per_second();
    report.rates.persisted = report.timeline.persisted_per_second();
    report.promises = merge_findings(&sales, |sale| &sale.promises);
    report.checks = merge_findings(&sales, |sale| &sale.checks);
    // A sale in which nothing was bought is fine, as long as something was bought in another one.
    report.verdict = Verdict::of(report.promises.iter().chain(&report.checks), report.accepted, report.settled);
    report.sales = sales;
    Ok(report)
}

fn sale_report(name: String, sale: seckill::domain::SaleId, report: &Report) -> SaleReport {
    SaleReport {
        name,
        sale,
        stock: report.stock,
        requests: report.requests,
        accepted: report.accepted,
        orders: report.orders.clone(),
        oversold: report.oversold,
        unsold: report.unsold,
        promises: report.promises.clone(),
        checks: report.checks.clone(),
    }
}

fn add(to: &mut Report, other: Report) {
    to.stock += other.stock;
    to.requests += other.requests;
    to.accepted += other.accepted;
    to.unconfirmed += other.unconfirmed;
    to.gave_up += other.gave_up;
    to.unanswered_orders += other.unanswered_orders;
    to.oversold = to.oversold.zip(other.oversold).map(|(one, two)| one + two);
    to.unsold = to.unsold.zip(other.unsold).map(|(one, two)| one + two);
    to.duplicates = to.duplicates.zip(other.duplicates).map(|(one, two)| one + two);
    to.lost += other.lost;
    to.dishonoured += other.dishonoured;
    to.http_5xx += other.http_5xx;
    to.client_errors += other.client_errors;
    add_counts(&mut to.refused, other.refused);
    add_counts(&mut to.http, other.http);
    add_counts(&mut to.orders, other.orders);
    let NoAnswer { not_sent, timeouts, resets } = other.no_answer;
    to.no_answer.not_sent += not_sent;
    to.no_answer.timeouts += timeouts;
    to.no_answer.resets += resets;
    let Afterwards { paid, cancelled, expired, came_again, bought_again, unfinished, still_wanted } = other.afterwards;
    let after = &mut to.afterwards;
    after.paid += paid;
    after.cancelled += cancelled;
    after.expired += expired;
    after.came_again += came_again;
    after.bought_again += bought_again;
    after.unfinished += unfinished;
    after.still_wanted += still_wanted;
    to.settled &= other.settled;
    to.timeline.add(other.timeline);
}

fn add_counts<K: Ord>(to: &mut BTreeMap<K, u64>, other: BTreeMap<K, u64>) {
    for (key, count) in other {
        *to.entry(key).or_default() += count;
    }
}

/// One finding per name: broken if it is broken in any sale, not checked if it is so in any, and it names those sales.
fn merge_findings(sales: &[SaleReport], of: impl Fn(&SaleReport) -> &Vec<Finding>) -> Vec<Finding> {
    let mut names = Vec::new();
    for finding in sales.iter().flat_map(&of) {
        if !names.contains(&finding.name) {
            names.push(finding.name);
        }
    }
    let one = |name: &'static str| {
        let details_of = |standing: CheckResult| -> Vec<String> {
            let mut details = Vec::new();
            for sale in sales {
                let fits = of(sale).iter().filter(|finding| finding.name == name && finding.holds == standing);
                details.extend(fits.map(|finding| format!("{}: {}", sale.name, finding.detail)));
            }
            details
        };
        for standing in [CheckResult::Broken, CheckResult::Unknown] {
            let details = details_of(standing);
            if !details.is_empty() {
                return Finding { name, holds: standing, detail: details.join("; ") };
            }
        }
        let details = details_of(CheckResult::Holds);
        let detail = match details.as_slice() {
            [one, _, ..] => format!("in each of {} sales; {one}", details.len()),
            some => some.join("; "),
        };
        Finding { name, holds: CheckResult::Holds, detail }
    };
    names.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use seckill::domain::SaleId;

    fn sale(name: &str, holds: CheckResult) -> SaleReport {
        let finding = Finding { name: "covered", holds, detail: format!("as {name} shows") };
        let report = Report { promises: vec![finding], ..Report::default() };
        sale_report(name.to_owned(), SaleId::new(1).expect("a sale id"), &report)
    }

    #[test]
    fn a_promise_holds_only_if_it_holds_for_every_sale() {
        let standing = |sales: &[SaleReport]| {
            let findings = merge_findings(sales, |sale| &sale.promises);
            assert_eq!(findings.len(), 1);
            (findings[0].holds, findings[0].detail.clone())
        };
        let (hot, cold) = (sale("hot", CheckResult::Holds), sale("cold", CheckResult::Holds));
        assert_eq!(
            standing(&[hot.clone(), cold]),
            (CheckResult::Holds, "in each of 2 sales; hot: as hot shows".to_owned())
        );
        let open = sale("cold", CheckResult::Unknown);
        assert_eq!(standing(&[hot.clone(), open.clone()]), (CheckResult::Unknown, "cold: as cold shows".to_owned()));
        let broken = sale("third", CheckResult::Broken);
        assert_eq!(standing(&[hot, open, broken]).0, CheckResult::Broken);
    }

    #[test]
    fn figures_of_several_sales_are_summed() {
        let one = |unsold| Report {
            stock: 10,
            accepted: 3,
            refused: BTreeMap::from([("sold_out", 5)]),
            unsold,
            settled: true,
            ..Report::default()
        };
        let mut all = one(Some(1));
        add(&mut all, one(Some(2)));
        assert_eq!((all.stock, all.accepted, all.refused["sold_out"], all.unsold), (20, 6, 10, Some(3)));
        add(&mut all, one(None));
        assert_eq!(all.unsold, None, "one that is not known makes the sum unknown");
    }
}
