//! A report for people: the funnel, the orders, the speed, every promise with its figures, and the verdict.

use std::fmt::{self, Display};

use super::answer::STAGES;
use super::report::{Afterwards, Quantiles, Report, Verdict};
use seckill::promises::CheckResult;

/// Prints a report, aligned, in at most 120 columns.
pub struct TextReport<'a>(pub &'a Report);

impl Display for TextReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.funnel(f)?;
        self.by_status(f)?;
        self.afterwards(f)?;
        self.orders(f)?;
        self.speed(f)?;
        self.promises(f)
    }
}

impl TextReport<'_> {
    fn funnel(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        writeln!(f, "\nThe funnel")?;
        line(f, "purchases sent", report.requests, "")?;
        for (stage, codes) in STAGES {
            let met: Vec<_> = codes.iter().filter_map(|code| report.refused.get_key_value(*code)).collect();
            let sum: u64 = met.iter().map(|(_, count)| **count).sum();
            if sum > 0 {
                let detail: Vec<_> = met.iter().map(|(code, count)| format!("{code} {count}")).collect();
                line(f, stage, sum, &detail.join(", "))?;
            }
        }
        line(f, "no decision", report.unconfirmed, "5xx, timeouts, resets; these buyers asked again")?;
        if report.gave_up > 0 {
            line(f, "buyers who gave up", report.gave_up, "they never got a decision")?;
        }
        if report.unanswered_orders > 0 {
            line(f, "orders without an answer", report.unanswered_orders, "in the ledger; their 202 never arrived")?;
        }
        line(f, "client errors", report.client_errors, "no connection, or an answer outside the contract")?;
        line(f, "accepted", report.accepted, "distinct orders answered 202")
    }

    /// The same purchases by what came back.
    fn by_status(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        let mut words: Vec<_> = report.http.iter().map(|(status, count)| format!("{status}: {count}")).collect();
        let none = report.no_answer;
        for (what, count) in [("timeout", none.timeouts), ("reset", none.resets), ("not sent", none.not_sent)] {
            if count > 0 {
                words.push(format!("{what}: {count}"));
            }
        }
        writeln!(f, "  by status                     {}", words.join(", "))
    }

    fn afterwards(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = self.0.afterwards;
        if after == Afterwards::default() {
            return Ok(());
        }
        writeln!(f, "\nAfter the purchase")?;
        line(f, "paid", after.paid, "")?;
        line(f, "cancelled", after.cancelled, "by the buyer; the units went back on sale")?;
        line(f, "expired", after.expired, "not paid in time; the units went back on sale")?;
        if after.unfinished > 0 {
            line(f, "neither paid nor closed", after.unfinished, "")?;
        }
        line(f, "retries", after.came_again, "purchases sent because the sale showed units again")?;
        line(f, "orders from retries", after.bought_again, "units sold again, or moved out of the reserve")?;
        line(f, "buyers without a unit", after.still_wanted, "")
    }

    fn orders(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        writeln!(f, "\nOrders of {} units", report.stock)?;
        for (state, count) in &report.orders {
            line(f, state, *count, "")?;
        }
        for (what, count) in [("lost", report.lost), ("dishonoured", report.dishonoured)] {
            line(f, what, count, "")?;
        }
        for (what, units) in [("units oversold", report.oversold), ("units unsold", report.unsold)] {
            match units {
                Some(units) => line(f, what, units, "")?,
                None => line(f, what, "?", "no access to the ledger")?,
            }
        }
        Ok(())
    }

    fn speed(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        if report.verdict != Verdict::Pass {
            return writeln!(f, "\nSpeed is shown only with the verdict \"pass\".");
        }
        writeln!(f, "\nSpeed")?;
        writeln!(f, "  {:<12}{:>12}{:>12}{:>12}{:>12}", "", "per second", "p50 ms", "p99 ms", "p99.9 ms")?;
        let row = |f: &mut fmt::Formatter<'_>, what: &str, rate: u64, q: Quantiles| {
            writeln!(f, "  {what:<12}{rate:>12}{:>12.2}{:>12.2}{:>12.2}", q.p50, q.p99, q.p999)
        };
        row(f, "accepted", report.rates.accepted, report.latency_ms.accepted)?;
        row(f, "refused", report.rates.refused, report.latency_ms.refused)?;
        writeln!(f, "  {:<12}{:>12}", "persisted", report.rates.persisted)
    }

    fn promises(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nPromises")?;
        for finding in self.0.promises.iter().chain(&self.0.checks) {
            let holds = match finding.holds {
                CheckResult::Holds => "holds",
                CheckResult::Broken => "BROKEN",
                CheckResult::Unknown => "not checked",
            };
            writeln!(f, "  {:<22}{holds:<13}{}", finding.name, finding.detail)?;
        }
        let word = if self.0.verdict == Verdict::Pass { "pass" } else { "fail" };
        write!(f, "\nVerdict  {word}: {}", verdict_in_words(self.0))
    }
}

/// Why the verdict is what it is.
pub fn verdict_in_words(report: &Report) -> String {
    let open = report.promises.iter().filter(|finding| finding.holds == CheckResult::Unknown).count();
    match report.verdict {
        Verdict::Pass if open == 0 => "every promise holds".to_owned(),
        Verdict::Pass => format!("no promise is broken, {open} not checked"),
        Verdict::Fail if report.accepted == 0 => "nothing was bought".to_owned(),
        Verdict::Fail if !report.settled => "orders were still in flight when the timeout passed".to_owned(),
        Verdict::Fail if report.promises.iter().any(|finding| finding.holds == CheckResult::Broken) => {
            "a promise is broken".to_owned()
        }
        Verdict::Fail => "every promise holds, but a check of this run failed".to_owned(),
    }
}

fn line(f: &mut fmt::Formatter<'_>, what: &str, count: impl Display, detail: &str) -> fmt::Result {
    let text = format!("  {what:<28}{count:>9}  {detail}");
    writeln!(f, "{}", text.trim_end())
}
