//! The timeline of a run in buckets of a tenth of a second: answers by outcome, units left in Redis, units in rows.
//!
//! Answers are counted where they are recorded anyway, under the same lock. The stores are asked ten times a second
//! from outside, each by a loop of its own: a store that does not answer leaves a gap in its line, not in the other's.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use super::answer::Answer;
use super::observer::StoreObserver;
use super::rate::per_second;
use seckill::domain::SaleId;

const BUCKET: Duration = Duration::from_millis(100);
const BUCKET_MS: i64 = BUCKET.as_millis() as i64;

/// The whole run, without gaps between its first and its last bucket. Empty when nothing happened.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Timeline {
    /// Length of a bucket, in milliseconds.
    pub bucket_ms: i64,
    pub buckets: Vec<Bucket>,
}

impl Timeline {
    /// Adds the course of another sale that went on at the same time.
    pub fn add(&mut self, other: Self) {
        let by_time = |buckets: Vec<Bucket>| -> BTreeMap<i64, Bucket> {
            buckets.into_iter().map(|bucket| (bucket.at_ms, bucket)).collect()
        };
        let (mut ours, mut theirs) = (by_time(std::mem::take(&mut self.buckets)), by_time(other.buckets));
        let times: BTreeSet<i64> = ours.keys().chain(theirs.keys()).copied().collect();
        let (mut remaining, mut sold) = (Levels::default(), Levels::default());
        let sum = |at_ms| {
            let bucket = theirs.remove(&at_ms).unwrap_or_default();
            let mut sum = Bucket { at_ms, ..ours.remove(&at_ms).unwrap_or_default() };
            sum.accepted += bucket.accepted;
            sum.unconfirmed += bucket.unconfirmed;
            sum.client_errors += bucket.client_errors;
            for (code, count) in bucket.refused {
                *sum.refused.entry(code).or_default() += count;
            }
            sum.remaining = remaining.sum(sum.remaining, bucket.remaining);
            sum.sold = sold.sum(sum.sold, bucket.sold);
            sum
        };
        *self = Self { bucket_ms: BUCKET_MS, buckets: times.into_iter().map(sum).collect() };
    }

    /// Units per second that became rows, to nine tenths of the most that rows ever held: the last ones may be units
    /// that came back and went again.
    pub fn persisted_per_second(&self) -> u64 {
        let most = self.buckets.iter().filter_map(|bucket| bucket.sold).max().unwrap_or(0);
        let reached = self.buckets.iter().find(|bucket| bucket.sold.is_some_and(|sold| sold * 10 >= most * 9));
        let end = |bucket: &Bucket| u64::try_from(bucket.at_ms + self.bucket_ms).unwrap_or(0);
        reached
            .map_or(0, |bucket| per_second(bucket.sold.unwrap_or(0).unsigned_abs(), Duration::from_millis(end(bucket))))
    }
}

/// The last known levels of two sales. Two sales are not always sampled within the same bucket, and a level without a
/// sample has not changed.
#[derive(Default)]
struct Levels(Option<i64>, Option<i64>);

impl Levels {
    /// The sum, if one was sampled now and the other one at any time.
    fn sum(&mut self, one: Option<i64>, two: Option<i64>) -> Option<i64> {
        (self.0, self.1) = (one.or(self.0), two.or(self.1));
        one.or(two)?;
        Some(self.0? + self.1?)
    }
}

/// What happened within one bucket. The answers of all buckets add up to the requests of the report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// Where the bucket begins, in milliseconds from the start of the sale; negative before it.
    pub at_ms: i64,
    /// Purchases answered 202, replays included.
    pub accepted: u64,
    /// Decided refusals by code.
    pub refused: BTreeMap<&'static str, u64>,
    /// Answers that decide nothing.
    pub unconfirmed: u64,
    /// Connections that could not be made, and answers outside the contract.
    pub client_errors: u64,
    /// Units that Redis still had when it was last asked within the bucket; null if it was not asked or did not
    /// answer.
    pub remaining: Option<i64>,
    /// Units that live orders held in the ledger, likewise.
    pub sold: Option<i64>,
}

/// Buckets that something was counted in, by number; number 0 begins with the sale.
#[derive(Clone, Debug, Default)]
pub struct Buckets(BTreeMap<i64, Bucket>);

impl Buckets {
    fn at(&mut self, start: Instant, now: Instant) -> &mut Bucket {
        let number = number(start, now);
        self.0.entry(number).or_insert_with(|| Bucket { at_ms: number * BUCKET_MS, ..Bucket::default() })
    }

    /// Counts one answer to one purchase.
    pub fn count(&mut self, start: Instant, now: Instant, answer: &Answer) {
        let bucket = self.at(start, now);
        match answer {
            Answer::Accepted(_) => bucket.accepted += 1,
            Answer::Refused(refusal) => *bucket.refused.entry(refusal.code).or_default() += 1,
            Answer::Undecided { .. } => bucket.unconfirmed += 1,
            Answer::NotSent(_) | Answer::Unexpected(_) => bucket.client_errors += 1,
        }
    }
}

fn number(start: Instant, now: Instant) -> i64 {
    let whole = |nanos: u128| i64::try_from(nanos).unwrap_or(i64::MAX);
    match now.checked_duration_since(start) {
        Some(after) => whole(after.as_nanos() / BUCKET.as_nanos()),
        // Rounded away from the start: bucket -1 ends where the sale begins.
        None => -whole((start - now).as_nanos().div_ceil(BUCKET.as_nanos())),
    }
}

/// Samples the stores while a run goes on.
#[derive(Debug, Default)]
pub struct StoreSampler {
    samples: Mutex<Buckets>,
}

impl StoreSampler {
    /// Samples until dropped.
    pub async fn run<W: StoreObserver>(&self, observer: &W, sale: SaleId, start: Instant) -> Infallible {
        tokio::select! {
            never = self.sample_rows(observer, sale, start) => never,
            never = self.sample_redis(observer, sale, start) => never,
        }
    }

    async fn sample_rows<W: StoreObserver>(&self, observer: &W, sale: SaleId, start: Instant) -> Infallible {
        let mut ticks = ticks();
        loop {
            ticks.tick().await;
            // A ledger that does not answer now is asked again at the next tick.
            let Ok(Some(sold)) = observer.sold(sale).await else { continue };
            self.note(start, |bucket| bucket.sold = Some(sold));
        }
    }

    async fn sample_redis<W: StoreObserver>(&self, observer: &W, sale: SaleId, start: Instant) -> Infallible {
        let mut ticks = ticks();
        loop {
            ticks.tick().await;
            let Ok(Some(remaining)) = observer.remaining(sale).await else { continue };
            self.note(start, |bucket| bucket.remaining = Some(remaining));
        }
    }

    fn note(&self, start: Instant, note: impl FnOnce(&mut Bucket)) {
        note(self.samples.lock().unwrap_or_else(PoisonError::into_inner).at(start, Instant::now()));
    }

    /// The samples together with the answers, from the first to the last of both.
    pub fn timeline(&self, answers: &Buckets) -> Timeline {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = |buckets: &Buckets| Some((*buckets.0.first_key_value()?.0, *buckets.0.last_key_value()?.0));
        let Some((first, last)) = [ends(answers), ends(&samples)]
            .into_iter()
            .flatten()
            .reduce(|(first, last), (from, to)| (first.min(from), last.max(to)))
        else {
            return Timeline::default();
        };
        let bucket = |number: i64| {
            let mut bucket = answers.0.get(&number).cloned().unwrap_or_default();
            bucket.at_ms = number * BUCKET_MS;
            if let Some(sample) = samples.0.get(&number) {
                (bucket.remaining, bucket.sold) = (sample.remaining, sample.sold);
            }
            bucket
        };
        Timeline { bucket_ms: BUCKET_MS, buckets: (first..=last).map(bucket).collect() }
    }
}

fn ticks() -> tokio::time::Interval {
    let mut ticks = interval(BUCKET);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Refusal;

    const OPEN: Answer = Answer::Undecided { status: Some(503), retry_after: None };

    #[test]
    fn buckets_meet_at_the_start_of_the_sale() {
        let start = Instant::now() + Duration::from_secs(1);
        let ms = Duration::from_millis;
        assert_eq!(number(start, start - Duration::from_micros(1)), -1);
        assert_eq!(number(start, start - ms(100)), -1);
        assert_eq!(number(start, start - ms(101)), -2);
        assert_eq!(number(start, start), 0);
        assert_eq!(number(start, start + ms(99)), 0);
        assert_eq!(number(start, start + ms(100)), 1);
    }

    #[test]
    fn a_timeline_has_every_answer_once_every_sample_and_no_gaps() {
        let start = Instant::now();
        let (sampler, mut answers) = (StoreSampler::default(), Buckets::default());
        let refused = || Answer::Refused(Refusal { code: "sold_out", order: None });
        for (ms, answer) in [(0, OPEN), (10, refused()), (320, refused())] {
            answers.count(start, start + Duration::from_millis(ms), &answer);
        }
        sampler.samples.lock().expect("no panic").at(start, start + Duration::from_millis(510)).sold = Some(7);
        let timeline = sampler.timeline(&answers);
        let at: Vec<_> = timeline.buckets.iter().map(|bucket| bucket.at_ms).collect();
        assert_eq!(at, [0, 100, 200, 300, 400, 500]);
        assert_eq!((timeline.buckets[0].unconfirmed, timeline.buckets[0].refused["sold_out"]), (1, 1));
        assert_eq!(timeline.buckets[3].refused["sold_out"], 1);
        assert_eq!((timeline.buckets[5].sold, timeline.buckets[4].sold), (Some(7), None));
    }

    #[test]
    fn levels_of_two_sales_add_up_though_they_are_not_sampled_together() {
        let bucket = |at_ms, remaining| Bucket { at_ms, accepted: 1, remaining, ..Bucket::default() };
        let line = |buckets| Timeline { bucket_ms: BUCKET_MS, buckets };
        let mut all = line(vec![bucket(0, Some(5)), bucket(100, None), bucket(200, Some(3)), bucket(300, None)]);
        all.add(line(vec![bucket(100, Some(10)), bucket(200, None), bucket(300, None), bucket(400, Some(0))]));
        let seen: Vec<_> = all.buckets.iter().map(|bucket| (bucket.accepted, bucket.remaining)).collect();
        assert_eq!(seen, [(1, None), (2, Some(15)), (2, Some(13)), (2, None), (1, Some(3))]);
    }

    #[test]
    fn a_run_in_which_nothing_happened_has_no_timeline() {
        assert!(StoreSampler::default().timeline(&Buckets::default()).buckets.is_empty());
    }
}
