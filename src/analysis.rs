//! Is new good enough? Compares new with old on the same traffic at the same time.
//!
//! [`Memory::look`] takes what both generations did since the last look and returns a [`Verdict`]. It may be called as often
//! and for as long as the caller likes: if both generations are equal, or new is worse by no more than the [`Margins`] allow,
//! the probability that it ever returns [`Verdict::Fail`] is at most `1 - confidence`. See [`evidence`] for the method.
//!
//! - Requests are compared within strata (API class and size of the body), so a different mix in the two generations does not
//!   affect the verdict.
//! - Failures: new fails if its rate exceeds old's by more than `max_failure_rate_increase`. [`Memory::interim_look`] checks only
//!   failures, so that a crash is detected within seconds. New's first requests are also compared with what old did before; see
//!   [`crash`]. A crash at any later time also has a separate test; see [`late_crash`].
//! - Latencies: a request of old counts as slow if it takes longer than a threshold near old's quantile; a request of new counts
//!   as slow if it takes longer than `ratio` times that threshold. New fails if it has the larger share of slow requests. The
//!   threshold is chosen before the look that uses it, and old is compared with it as well, so an error in the threshold affects
//!   only the power of the test. A confidence sequence for the quantile itself (Howard and Ramdas, *Sequential estimation of
//!   quantiles with applications to A/B testing*, Bernoulli 28(3), 2022) would have to be charged to the error budget.
//! - The error budget is divided among the metrics.
//!
//! The unit is always a request. Requests that fail or are slow at the same time for the same cause are not independent;
//! therefore the evidence on latencies is raised only by a limited factor per second, and the margins should not be zero.
//!
//! Pure.

mod accumulate;
mod classes;
mod counts;
mod crash;
mod evidence;
mod failures;
mod figures;
mod late_crash;
mod margins;
mod outcomes;
mod reason;
mod replay;
mod text;
mod window;

use std::time::Duration;

pub use self::accumulate::{Accumulator, Reading};
#[cfg(test)]
pub use self::counts::requests;
pub use self::counts::{Attempts, Counts, GenerationCounts, MAX_STRATA, Stratum};
use self::crash::Crash;
use self::evidence::{Block, Evidence, Law};
use self::failures::Failures;
pub use self::figures::Row;
use self::late_crash::LateCrash;
pub use self::margins::{Margins, Metric};
pub use self::outcomes::Outcomes;
pub use self::reason::Reason;
pub use self::replay::replay;
use self::window::Window;
use crate::latency::{ENOUGH, Scale, Sketch};

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Both generations have enough requests, new completed enough of its own, its figures are within the margins, and there
    /// is no evidence against it.
    Pass,
    /// New is worse than the margins allow. This verdict is final.
    Fail(Row),
    Inconclusive(NoVerdict),
}

/// Why there is no verdict.
#[derive(Clone, Debug, PartialEq)]
pub enum NoVerdict {
    /// No request was received within the window.
    NoTraffic,
    /// A generation has too few requests: its name, how many it has, and how many are needed.
    TooFew(&'static str, u64, u64),
    /// This many of new's requests have neither failed nor succeeded, a larger share than of old's: they are still in flight
    /// without content, or they failed in a session and old did not answer them.
    InFlight(u64),
    /// There are enough requests but not enough values of this metric: few requests are streams, or most are in flight. The name
    /// of the generation, how many values it has, and how many are needed.
    TooFewValues(Metric, &'static str, u64, u64),
    /// New looks worse, but there is not enough evidence for it.
    Unclear(Row),
    /// New is no worse than old, but completed too few requests (both may be down): how many, and how many are needed.
    FewCompleted(u64, u64),
    /// New is no worse than old over all requests, but fails most requests of this API class.
    MostFail(Box<str>, Row),
}

/// The result of a look.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub verdict: Verdict,
    pub rows: Vec<Row>,
    /// The time that the figures cover.
    pub covers: Duration,
}

/// The state from earlier looks.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    last: Option<Duration>,
    window: Window,
    evidence: [Evidence; Metric::ALL.len()],
    failures: Failures,
    crash: Crash,
    late_crash: LateCrash,
    /// Old's counts from before the first look.
    earlier: Counts,
    unweighed: Unweighed,
    /// What interim looks have counted since the last look.
    taken: Outcomes,
    /// When the last product of the evidence on failures began.
    product_began: Option<Duration>,
    /// The number of values per latency that new has had since the first look.
    seen: [u64; Metric::ALL.len()],
    failed: Option<Row>,
}

/// What has been counted since the latencies were last weighed.
#[derive(Clone, Debug, Default)]
struct Unweighed {
    since: Option<Duration>,
    counts: Counts,
    /// The window at that time, from which the thresholds are chosen.
    before: Counts,
}

/// The time for which latencies are weighed together, about five seconds. The limited factor caps what a look adds to the evidence
/// but not what it takes away, so many short looks, each with a few values, would lose most of it.
const LATENCY_BLOCK: Duration = Duration::from_millis(4500);
/// The logarithm of the factor by which a second may raise the evidence on a latency. Therefore, a verdict on a latency takes at
/// least half a minute, so that a single pause cannot decide it.
const MAX_PER_SECOND: f64 = 0.3;
/// Longer looks count as this long.
const LONGEST: f64 = 60.0;
/// Old's counts from before the first look are used until the looks cover this time.
const EARLIER: Duration = Duration::from_secs(60);
/// Products of the evidence on failures begin at least this far apart, because interim looks would divide the weight among too
/// many.
const BETWEEN_PRODUCTS: Duration = Duration::from_millis(500);

impl Memory {
    /// Begins a comparison. New's first requests are compared with what old did before.
    #[must_use]
    pub fn after(earlier: Counts) -> Self {
        Self {
            earlier,
            ..Self::default()
        }
    }

    /// Learns how often old fails.
    fn learn(&mut self, total: &Counts, covers: Duration) {
        if covers >= EARLIER {
            self.earlier = Counts::default();
        }
        if self.earlier.0.is_empty() {
            self.failures.learn(total);
            self.crash.learn(total);
            return;
        }
        let mut known = self.earlier.clone();
        known.add(total);
        self.failures.learn(&known);
        self.crash.learn(&known);
    }

    /// Processes the counts since the last look. The first look only sets the time. `now` is from any monotonic clock.
    pub fn look(&mut self, margins: &Margins, counts: Counts, now: Duration) -> Report {
        let last = *self.last.get_or_insert(now);
        if now > last {
            self.weigh_failures(margins, &(&counts).into(), now, false);
            self.taken = Outcomes::default();
            self.weigh_latencies(margins, &counts, last, now);
            self.last = Some(now);
            self.window.add(counts, last, now, margins.window);
        }
        let (total, covers) = self.window.total();
        self.learn(&total, covers);
        let rows: Vec<Row> = Metric::ALL
            .into_iter()
            .map(|metric| figures::row(metric, margins, (&total, covers), self.confidence(metric)))
            .collect();
        self.latch(margins, &rows);
        Report {
            verdict: self.verdict(margins, &total, &rows),
            rows,
            covers,
        }
    }

    /// The failure that has been detected, if any.
    #[must_use]
    pub const fn failed(&self) -> Option<&Row> {
        self.failed.as_ref()
    }

    /// One minus the p-value of a metric, corrected for the number of metrics.
    fn confidence(&self, metric: Metric) -> f64 {
        let p = self.evidence[metric as usize].p_value() / metric.budget();
        let crash = match metric {
            Metric::Failures => {
                let first = self.crash.p_value() / Metric::BUDGET_OF_CRASH;
                first.min(self.late_crash.p_value() / Metric::BUDGET_OF_LATE_CRASH)
            }
            _ => 1.0,
        };
        1.0 - p.min(crash).min(1.0)
    }

    /// Processes only how requests have ended since the last look. May be called many times between two looks, each time with a
    /// larger part of what the next look gets. Returns whether the evidence is sufficient now; a look should then follow
    /// immediately, and returns the verdict.
    pub fn interim_look(&mut self, margins: &Margins, outcomes: &Outcomes, now: Duration) -> bool {
        if self.last.is_none_or(|last| now <= last) {
            return false;
        }
        self.weigh_failures(margins, outcomes, now, true);
        self.taken = outcomes.clone();
        self.failed.is_none() && self.confidence(Metric::Failures) >= margins.confidence
    }

    fn weigh_failures(&mut self, margins: &Margins, all: &Outcomes, now: Duration, interim: bool) {
        let outcomes = all.since(&self.taken);
        self.crash.add(&outcomes, margins.max_failure_rate_increase);
        let blocks = self.failures.add(&outcomes, now, interim);
        if blocks.is_empty() {
            return;
        }
        let evidence = &mut self.evidence[Metric::Failures as usize];
        let age = self.product_began.map(|began| now.saturating_sub(began));
        if age.is_none_or(|age| age >= BETWEEN_PRODUCTS) {
            evidence.begin();
            self.product_began = Some(now);
        }
        let margin = margins.max_failure_rate_increase;
        evidence.multiply(Law::Failed { margin }, &blocks, f64::INFINITY);
        self.late_crash.add(&blocks, margin, now);
    }

    fn weigh_latencies(
        &mut self,
        margins: &Margins,
        counts: &Counts,
        last: Duration,
        now: Duration,
    ) {
        let unweighed = &mut self.unweighed;
        if unweighed.since.is_none() {
            (unweighed.before, _) = self.window.total();
        }
        let since = *unweighed.since.get_or_insert(last);
        unweighed.counts.add(counts);
        let time = now.saturating_sub(since);
        if time < LATENCY_BLOCK {
            return;
        }
        let Unweighed { counts, before, .. } = std::mem::take(unweighed);
        let most = MAX_PER_SECOND * time.as_secs_f64().min(LONGEST);
        for metric in Metric::ALL {
            if metric == Metric::Failures {
                continue;
            }
            let index = metric as usize;
            for [_, new] in counts.0.values() {
                let values = metric.values(new).map_or(0, Sketch::count);
                self.seen[index] = self.seen[index].saturating_add(values);
            }
            let blocks = slow(metric, margins, &counts, &before);
            if !blocks.is_empty() {
                self.evidence[index].begin();
                self.evidence[index].multiply(Law::Slow, &blocks, most);
            }
        }
    }

    /// Keeps the first failure.
    fn latch(&mut self, margins: &Margins, rows: &[Row]) {
        if self.failed.is_some() {
            return;
        }
        let failed = rows.iter().find(|row| {
            // Evidence on failures needs no minimum: a new generation that fails everything must be detected immediately.
            let enough = row.metric == Metric::Failures
                || self.seen[row.metric as usize] >= margins.min_samples;
            enough && row.confidence >= margins.confidence
        });
        self.failed = failed.cloned();
    }

    fn verdict(&self, margins: &Margins, counts: &Counts, rows: &[Row]) -> Verdict {
        if let Some(row) = &self.failed {
            return Verdict::Fail(row.clone());
        }
        let [old, new] = &counts.outcomes();
        if old.started == 0 && new.started == 0 {
            return Verdict::Inconclusive(NoVerdict::NoTraffic);
        }
        for (name, generation) in [("new", new), ("old", old)] {
            if generation.started < margins.min_samples {
                let why = NoVerdict::TooFew(name, generation.started, margins.min_samples);
                return Verdict::Inconclusive(why);
            }
        }
        if let Some(hung) = in_flight(margins, [old, new]) {
            return Verdict::Inconclusive(NoVerdict::InFlight(hung));
        }
        for row in rows {
            if row.is_worse() {
                return Verdict::Inconclusive(NoVerdict::Unclear(row.clone()));
            }
            let [old_values, new_values] = row.samples;
            let (few, generation) = if old_values < new_values {
                (old_values, "old")
            } else {
                (new_values, "new")
            };
            // Streams that are rare among the requests need no verdict.
            let matter = row.metric == Metric::Failures
                || old_values.saturating_mul(10) >= old.started
                || new_values.saturating_mul(10) >= new.started;
            if few < margins.min_samples && matter {
                let why = NoVerdict::TooFewValues(row.metric, generation, few, margins.min_samples);
                return Verdict::Inconclusive(why);
            }
        }
        // Two generations that are down are equal, and so are two generations that all clients abandon. Equality alone is
        // therefore not a pass.
        if new.completed < margins.min_samples {
            let why = NoVerdict::FewCompleted(new.completed, margins.min_samples);
            return Verdict::Inconclusive(why);
        }
        if let Some((class, of_class)) = classes::fails_most(counts) {
            let covers = rows.first().map_or(Duration::ZERO, |row| row.covers);
            let confidence = self.confidence(Metric::Failures);
            let row = figures::row(Metric::Failures, margins, (&of_class, covers), confidence);
            return Verdict::Inconclusive(NoVerdict::MostFail(class, row));
        }
        Verdict::Pass
    }
}

/// New's requests in flight without content, if there are too many compared with old's: their result is unknown, and they may be
/// stuck.
fn in_flight(margins: &Margins, [old, new]: [&Attempts; 2]) -> Option<u64> {
    let undecided = |generation: &Attempts| generation.started.saturating_sub(generation.decided);
    let share = undecided(old) as f64 / old.started.max(1) as f64;
    let expected = (share + margins.max_failure_rate_increase) * new.started as f64;
    // An excess of three standard deviations is not a coincidence.
    let most = expected + 3.0 * (expected + 1.0).sqrt();
    (undecided(new) as f64 > most).then(|| undecided(new))
}

/// Slow requests of each stratum in which old is known.
fn slow(metric: Metric, margins: &Margins, counts: &Counts, before: &Counts) -> Vec<Block> {
    let quantile = metric.quantile();
    let blocks = counts.0.iter().filter_map(|(stratum, generations)| {
        let [old, new] =
            [&generations[0], &generations[1]].map(|generation| metric.values(generation));
        let (old, new) = (old?, new?);
        let known = metric.values(&before.0.get(stratum)?[0])?;
        let all = known.count();
        if all < ENOUGH || old.count() == 0 || new.count() == 0 {
            return None;
        }
        let threshold = known.quantile_bucket(quantile)?;
        let slower = Scale::lower(threshold + 1) * metric.ratio(margins);
        let threshold_of_new = Scale::index((slower * 1e9) as u64);
        let above = known.count_above(threshold) as f64;
        Some(Block {
            n: [old.count() as f64, new.count() as f64],
            k: [
                old.count_above(threshold) as f64,
                new.count_above(threshold_of_new) as f64,
            ],
            a: (above + 2.0 * (1.0 - quantile)) / (all as f64 + 2.0),
        })
    });
    blocks.collect()
}

#[cfg(test)]
mod tests;
