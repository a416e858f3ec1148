//! Is new good enough? Compares new with old on the same traffic at the same time.
//!
//! [`Memory::look`] takes what both generations did since the last look and returns a [`Verdict`]. It may be called as often and as
//! long as one likes: with sides that are equal, or with a new side that is worse by no more than the margins of the [`Rules`], the
//! probability that it ever says [`Verdict::Fail`] is at most `1 - confidence`. See [`evidence`] for the method.
//!
//! - Requests are compared within strata (API class and size of the body), so a different mix on the two sides decides nothing.
//! - Failures: new fails if its rate exceeds old's by more than `max_failure_rate_increase`.
//! - Latencies: a request of old counts as slow if it takes longer than a threshold near old's quantile, one of new if it takes
//!   longer than `ratio` times that. New fails if it has the larger share of slow ones. The threshold is chosen before the look that
//!   it is used for, and old is held against it as well, so its error matters for the power of the test only. A confidence sequence
//!   for the quantile itself (Howard and Ramdas, *Sequential estimation of quantiles with applications to A/B testing*, Bernoulli
//!   28(3), 2022) would have to be added to the error budget.
//! - The error budget is divided over the metrics.
//!
//! The unit of all of this is a request. Requests that fail or are slow from one cause at one time are not independent; therefore
//! a look raises the evidence on latencies by a limited factor, and the margins should not be zero.
//!
//! Pure.

mod accumulate;
mod counts;
mod evidence;
mod figures;
mod replay;
mod text;
mod window;

use std::time::Duration;

pub use self::accumulate::{Accumulator, Reading};
pub use self::counts::{Counts, MAX_STRATA, Side, Stratum};
use self::evidence::{Block, Evidence, Law};
pub use self::figures::Row;
pub use self::replay::replay;
use self::window::Window;
use crate::latency::{ENOUGH, Scale, Sketch};

/// What is asked of new.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// The figures, and what is required for a pass, are those of a window of this length.
    pub window: Duration,
    /// Requests that each side must have begun within the window for a pass, and values of a latency that new must have for a fail.
    pub min_samples: u64,
    /// By how much new's failure rate may exceed old's, 0 to 1.
    pub max_failure_rate_increase: f64,
    /// How many times as long as with old the time to the first token may take.
    pub ttft_ratio: f64,
    /// The same for gaps between tokens, and for the time per token.
    pub gap_ratio: f64,
    /// One minus the probability of ever failing a new side that keeps to the margins.
    pub confidence: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(300),
            min_samples: 200,
            max_failure_rate_increase: 0.005,
            ttft_ratio: 1.25,
            gap_ratio: 1.25,
            confidence: 0.99,
        }
    }
}

/// In what respect new is compared with old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// The share of requests that failed or were cut.
    Failures,
    FirstTokenP50,
    FirstTokenP95,
    GapP99,
    TimePerToken,
}

impl Metric {
    /// Every metric, in declaration order.
    pub const ALL: [Self; 5] = [
        Self::Failures,
        Self::FirstTokenP50,
        Self::FirstTokenP95,
        Self::GapP99,
        Self::TimePerToken,
    ];

    /// The name in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failures => "failureRate",
            Self::FirstTokenP50 => "ttftP50",
            Self::FirstTokenP95 => "ttftP95",
            Self::GapP99 => "gapP99",
            Self::TimePerToken => "timePerTokenP50",
        }
    }

    /// Its share of the error budget.
    const fn budget(self) -> f64 {
        match self {
            Self::Failures => 0.4,
            _ => 0.15,
        }
    }

    /// The quantile that is compared; 0 for a rate.
    const fn quantile(self) -> f64 {
        match self {
            Self::Failures => 0.0,
            Self::FirstTokenP50 | Self::TimePerToken => 0.5,
            Self::FirstTokenP95 => 0.95,
            Self::GapP99 => 0.99,
        }
    }

    const fn ratio(self, rules: &Rules) -> f64 {
        match self {
            Self::FirstTokenP50 | Self::FirstTokenP95 => rules.ttft_ratio,
            _ => rules.gap_ratio,
        }
    }

    /// The values of a latency; `None` for a rate.
    const fn values(self, side: &Side) -> Option<&Sketch> {
        match self {
            Self::Failures => None,
            Self::FirstTokenP50 | Self::FirstTokenP95 => Some(&side.first_event),
            Self::GapP99 => Some(&side.gap),
            Self::TimePerToken => Some(&side.per_token),
        }
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Both sides have enough requests, new's figures keep to the margins, and there is no evidence against it.
    Pass,
    /// New is worse than the margins allow. It stays so.
    Fail(Row),
    Inconclusive(Why),
}

/// Why there is no verdict.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// No request began within the window.
    NoTraffic,
    /// A side has too few requests: its name, how many it has, and how many are needed.
    TooFew(&'static str, u64, u64),
    /// Few streams: there are requests enough, but not enough values of this metric.
    TooFewValues(Metric, u64),
    /// New looks worse, and there is not enough evidence that it is.
    Unclear(Row),
}

/// The result of a look.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub verdict: Verdict,
    pub rows: Vec<Row>,
    /// The time that the figures cover.
    pub covers: Duration,
}

/// What earlier looks left.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    last: Option<Duration>,
    window: Window,
    evidence: [Evidence; Metric::ALL.len()],
    /// Values of each metric that new had since the first look.
    seen: [u64; Metric::ALL.len()],
    failed: Option<Row>,
}

/// The logarithm of the factor by which a second may raise the evidence on a latency. A verdict on a latency then takes half a
/// minute at least, so that a single pause decides nothing.
const MOST_PER_SECOND: f64 = 0.3;
/// Longer looks count as this long.
const LONGEST: f64 = 60.0;
/// Requests of old that its estimated failure rate begins with, and the rate that those have.
const PRIOR: f64 = 100.0;
const PRIOR_RATE: f64 = 0.005;
/// The weight of the rate over all strata in the estimate for one.
const POOLED: f64 = 50.0;

/// How many requests each one that began now stands for: 1 or more.
///
/// Failures come later than the requests that they belong to. While new gets ever more requests, that only delays them. If it gets
/// fewer than before, the failures of earlier requests must not count against the few that begin now; then more requests end than
/// begin, by more than chance explains (two standard deviations).
fn stands_for(started: u64, ended: u64) -> f64 {
    let (started, ended) = (started as f64, ended as f64);
    if started <= 0.0 {
        return 1.0;
    }
    let by_chance = 2.0 * (started + ended).sqrt();
    1.0 + (ended - started - by_chance).max(0.0) / started
}

impl Memory {
    /// Takes in what was counted since the last look. The first look only sets the time. `now` is of any clock that only advances.
    pub fn look(&mut self, rules: &Rules, counts: Counts, now: Duration) -> Report {
        let last = *self.last.get_or_insert(now);
        let seconds = now.saturating_sub(last).as_secs_f64();
        if seconds > 0.0 {
            self.weigh(rules, &counts, seconds);
            self.last = Some(now);
            self.window.add(counts, last, now, rules.window);
        }
        let (total, covers) = self.window.total();
        let rows: Vec<Row> = Metric::ALL
            .into_iter()
            .map(|metric| figures::row(metric, rules, (&total, covers), self.confidence(metric)))
            .collect();
        self.latch(rules, &rows);
        Report {
            verdict: self.verdict(rules, &total.total(), &rows),
            rows,
            covers,
        }
    }

    /// The failure that was found, if any.
    #[must_use]
    pub const fn failed(&self) -> Option<&Row> {
        self.failed.as_ref()
    }

    /// One minus the p-value of a metric, corrected for the number of metrics.
    fn confidence(&self, metric: Metric) -> f64 {
        let p = self.evidence[metric as usize].p_value() / metric.budget();
        1.0 - p.min(1.0)
    }

    fn weigh(&mut self, rules: &Rules, counts: &Counts, seconds: f64) {
        let (before, _) = self.window.total();
        let [_, new] = counts.total();
        let stands_for = stands_for(new.started, new.ended);
        for metric in Metric::ALL {
            let index = metric as usize;
            let (law, blocks, most) = if metric == Metric::Failures {
                let margin = rules.max_failure_rate_increase;
                let blocks = failures(counts, &before, stands_for);
                self.seen[index] = self.seen[index].saturating_add(new.started);
                (Law::Failed { margin }, blocks, f64::INFINITY)
            } else {
                let blocks = slow(metric, rules, counts, &before);
                let values = metric.values(&new).map_or(0, Sketch::count);
                self.seen[index] = self.seen[index].saturating_add(values);
                let most = MOST_PER_SECOND * seconds.min(LONGEST);
                (Law::Slow, blocks, most)
            };
            if !blocks.is_empty() {
                self.evidence[index].look(law, &blocks, most);
            }
        }
    }

    /// Keeps the first failure.
    fn latch(&mut self, rules: &Rules, rows: &[Row]) {
        if self.failed.is_some() {
            return;
        }
        let failed = rows.iter().find(|row| {
            // Evidence on failures needs no minimum: a new side that fails everything must be found at once.
            let enough = row.metric == Metric::Failures
                || self.seen[row.metric as usize] >= rules.min_samples;
            enough && row.confidence >= rules.confidence
        });
        self.failed = failed.cloned();
    }

    fn verdict(&self, rules: &Rules, [old, new]: &[Side; 2], rows: &[Row]) -> Verdict {
        if let Some(row) = &self.failed {
            return Verdict::Fail(row.clone());
        }
        if old.started == 0 && new.started == 0 {
            return Verdict::Inconclusive(Why::NoTraffic);
        }
        for (name, side) in [("new", new), ("old", old)] {
            if side.started < rules.min_samples {
                let why = Why::TooFew(name, side.started, rules.min_samples);
                return Verdict::Inconclusive(why);
            }
        }
        for row in rows {
            if row.is_worse() {
                return Verdict::Inconclusive(Why::Unclear(row.clone()));
            }
            let [old_values, new_values] = row.samples;
            let few = old_values.min(new_values);
            // Streams that are rare among the requests need not be judged.
            let matter = old_values.saturating_mul(10) >= old.started
                || new_values.saturating_mul(10) >= new.started;
            if few < rules.min_samples && matter {
                return Verdict::Inconclusive(Why::TooFewValues(row.metric, few));
            }
        }
        Verdict::Pass
    }
}

/// Requests and failures of each stratum.
fn failures(counts: &Counts, before: &Counts, stands_for: f64) -> Vec<Block> {
    let [known, _] = before.total();
    let pooled = (known.failed as f64 + PRIOR * PRIOR_RATE) / (known.started as f64 + PRIOR);
    let blocks = counts.0.iter().filter_map(|(stratum, [old, new])| {
        if old.started == 0 || new.started == 0 {
            return None;
        }
        let known = before.0.get(stratum).map(|[old, _]| old);
        let (failed, started) = known.map_or((0, 0), |old| (old.failed, old.started));
        let begun = new.started as f64 * stands_for;
        Some(Block {
            n: [old.started as f64, begun],
            k: [old.failed as f64, (new.failed as f64).min(begun)],
            a: ((failed as f64 + POOLED * pooled) / (started as f64 + POOLED)).min(0.9),
        })
    });
    blocks.collect()
}

/// Slow requests of each stratum that old is known in.
fn slow(metric: Metric, rules: &Rules, counts: &Counts, before: &Counts) -> Vec<Block> {
    let quantile = metric.quantile();
    let blocks = counts.0.iter().filter_map(|(stratum, sides)| {
        let [old, new] = [&sides[0], &sides[1]].map(|side| metric.values(side));
        let (old, new) = (old?, new?);
        let known = metric.values(&before.0.get(stratum)?[0])?;
        let all = known.count();
        if all < ENOUGH || old.count() == 0 || new.count() == 0 {
            return None;
        }
        let threshold = known.quantile_bucket(quantile)?;
        let slower = Scale::lower(threshold + 1) * metric.ratio(rules);
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
