//! Counts of both generations per kind of request, for comparing them ([`analysis`](crate::analysis)).
//!
//! A record is created with the first request of its stratum. All records together take at most 1.3 MB, and the remembered counts
//! at most six times as much, if the latencies are spread over the whole scale.
//!
//! The counts of one new generation say nothing about another, so a new series of counts begins with each change of the plan's
//! new generation, and only requests that begin in a series count in it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::latency::Histogram;
use crate::analysis::{Attempts, Counts, GenerationCounts, Outcomes, Stratum};
use crate::split::Generation;
use crate::sse::Api;

/// Size classes of request bodies.
const SIZES: usize = 8;
const KINDS: usize = Api::ALL.len() * SIZES;
/// The interval of remembered counts, and their number.
const STEP: Duration = Duration::from_secs(60);
const STEPS: usize = 5;

/// The size class of a body: 0 if its size is unknown until it has been read, 1 up to 1 KiB, then in powers of four up to 6 for 1
/// MiB, and 7 for larger ones.
#[must_use]
pub fn size_class(bytes: Option<u64>) -> u8 {
    let Some(bytes) = bytes else {
        return 0;
    };
    let kib = bytes.div_ceil(1024).max(1);
    let bits = u64::BITS - (kib - 1).leading_zeros();
    u8::try_from(1 + bits.div_ceil(2).min(6)).unwrap_or(7)
}

/// How a first attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// It got a complete response without an error.
    Completed,
    /// The client or the proxy ended it.
    Abandoned,
    /// It failed in a way for which requests are retried on the other generation.
    Failed,
    /// It failed in another way: it was rejected as invalid (4xx), or its response was truncated or ended with an error.
    FailedForGood,
}

/// The counters behind a [`GenerationCounts`]: atomics, because every thread counts in the same ones.
#[derive(Default)]
pub struct Record {
    started: AtomicU64,
    decided: AtomicU64,
    ended: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    unanswered: AtomicU64,
    retried: AtomicU64,
    retries_failed: AtomicU64,
    first_event: Histogram,
    gap: Histogram,
    per_token: Histogram,
}

impl Record {
    /// A first attempt begins.
    pub fn started(&self) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }

    /// The response to a first attempt begins with content.
    pub fn answered(&self) {
        self.decided.fetch_add(1, Ordering::Release);
    }

    /// A first attempt has ended. `answered` tells whether its response had begun with content.
    pub fn ended(&self, how: AttemptResult, answered: bool) {
        match how {
            AttemptResult::Completed => {
                self.completed.fetch_add(1, Ordering::Relaxed);
            }
            AttemptResult::Abandoned => {}
            AttemptResult::Failed | AttemptResult::FailedForGood => {
                if how == AttemptResult::Failed && !answered {
                    self.unanswered.fetch_add(1, Ordering::Relaxed);
                }
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        if !answered {
            self.decided.fetch_add(1, Ordering::Release);
        }
        self.ended.fetch_add(1, Ordering::Release);
    }

    /// A first attempt has ended, and has neither failed nor succeeded.
    pub fn ended_undecided(&self) {
        self.ended.fetch_add(1, Ordering::Release);
    }

    /// Records the result of a second attempt after the other generation failed.
    pub fn retried(&self, failed: bool) {
        if failed {
            self.retries_failed.fetch_add(1, Ordering::Relaxed);
        }
        self.retried.fetch_add(1, Ordering::Release);
    }

    /// The time from the attempt to its first event.
    pub fn first_event(&self, after: Duration) {
        self.first_event.observe(after);
    }

    /// A gap of a stream, drawn at random.
    pub fn gap(&self, gap: Duration) {
        self.gap.observe(gap);
    }

    /// The time per token of a stream.
    pub fn per_token(&self, time: Duration) {
        self.per_token.observe(time);
    }

    fn attempts(&self) -> Attempts {
        // This order of reads ensures that everything known about an ended request is included with it, and that no failure is
        // included without its request.
        let ended = self.ended.load(Ordering::Acquire);
        let decided = self.decided.load(Ordering::Acquire);
        let failed = self.failed.load(Ordering::Relaxed).min(decided);
        let retried = self.retried.load(Ordering::Acquire);
        let ended = ended.max(failed);
        let started = self.started.load(Ordering::Relaxed);
        Attempts {
            started: started.max(ended).max(decided),
            decided,
            ended,
            completed: self.completed.load(Ordering::Relaxed),
            failed,
            unanswered: self.unanswered.load(Ordering::Relaxed).min(failed),
            retried,
            retries_failed: self.retries_failed.load(Ordering::Relaxed).min(retried),
        }
    }

    fn counts(&self) -> GenerationCounts {
        GenerationCounts {
            attempts: self.attempts(),
            first_event: self.first_event.sketch(),
            gap: self.gap.sketch(),
            per_token: self.per_token.sketch(),
        }
    }
}

/// The records of both generations.
pub struct Strata {
    records: [[OnceLock<Box<Record>>; KINDS]; 2],
    /// The number of the current series.
    series: AtomicU64,
    past: Mutex<Past>,
}

/// The remembered counts, all of them since the start of the process.
struct Past {
    /// When the series began.
    began: Instant,
    /// The counts at that time.
    before: Counts,
    /// The counts of the last minutes before that.
    earlier: Counts,
    /// The counts of the last minutes of the series, oldest first.
    minutes: VecDeque<(Instant, Counts)>,
}

impl Past {
    fn begin(now: Instant, counts: Counts, earlier: Counts) -> Self {
        Self {
            began: now,
            before: counts.clone(),
            earlier,
            minutes: [(now, counts)].into(),
        }
    }
}

/// The counts of the current series.
#[derive(Clone, Debug)]
pub struct Series {
    /// The number of the series, from 1.
    pub number: u64,
    /// How long ago it began.
    pub age: Duration,
    /// The counts with their age, oldest first. The last ones are the current ones.
    pub counts: Vec<(Duration, Counts)>,
}

impl Strata {
    /// Begins to count at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            records: [const { [const { OnceLock::new() }; KINDS] }; 2],
            series: AtomicU64::new(1),
            past: Mutex::new(Past::begin(now, Counts::default(), Counts::default())),
        }
    }

    /// The number of the current series. A request counts in the series in which it began.
    #[must_use]
    pub fn series(&self) -> u64 {
        self.series.load(Ordering::Relaxed)
    }

    /// Begins a series: the plan names a different new generation.
    pub fn begin_series(&self, now: Instant) {
        let mut past = self.past();
        self.series.fetch_add(1, Ordering::Relaxed);
        let counts = self.counts();
        let first = past.minutes.front();
        let earlier = first.and_then(|(_, first)| counts.since(first));
        *past = Past::begin(now, counts, earlier.unwrap_or_default());
    }

    /// Old's counts in the last minutes before the current series, if that began within the last minute.
    #[must_use]
    pub fn earlier(&self, now: Instant) -> Counts {
        let past = self.past();
        if now.saturating_duration_since(past.began) >= STEP {
            return Counts::default();
        }
        let strata = past.earlier.0.iter();
        let only_old = strata.map(|(stratum, [old, _])| {
            (stratum.clone(), [old.clone(), GenerationCounts::default()])
        });
        Counts(only_old.collect())
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        // No panic can occur in the middle of a change.
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of a stratum.
    pub fn record(&self, generation: Generation, class: Api, size: u8) -> &Record {
        let kind = class as usize * SIZES + usize::from(size).min(SIZES - 1);
        self.records[generation.index()][kind].get_or_init(Box::default)
    }

    /// All counts since the start of the process.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts(self.each(Record::counts).collect())
    }

    /// How the requests that were counted ended.
    #[must_use]
    pub fn outcomes(&self) -> Outcomes {
        Outcomes(self.each(Record::attempts).collect())
    }

    /// Applies `read` to both records of each stratum that has one.
    fn each<T: Default>(&self, read: fn(&Record) -> T) -> impl Iterator<Item = (Stratum, [T; 2])> {
        let kinds = Api::ALL
            .into_iter()
            .flat_map(|class| (0..SIZES).map(move |size| (class, size)));
        kinds.enumerate().filter_map(move |(kind, (class, size))| {
            let [old, new] =
                [&self.records[0], &self.records[1]].map(|generation| generation[kind].get());
            if old.is_none() && new.is_none() {
                return None;
            }
            let stratum = Stratum {
                class: class.as_str().into(),
                size: u8::try_from(size).unwrap_or(u8::MAX),
            };
            let generations = [old, new].map(|generation| {
                generation
                    .map(|generation| read(generation))
                    .unwrap_or_default()
            });
            Some((stratum, generations))
        })
    }

    /// Remembers the counts, if the last ones are a minute old.
    pub fn remember(&self, now: Instant) {
        let minutes = &mut self.past().minutes;
        let is_due = |(at, _): &(Instant, Counts)| now.saturating_duration_since(*at) >= STEP;
        if minutes.back().is_none_or(is_due) {
            minutes.push_back((now, self.counts()));
            if minutes.len() > STEPS {
                minutes.pop_front();
            }
        }
    }

    /// The current counts of the current series and, if `with_past`, those of the last minutes.
    #[must_use]
    pub fn current_series(&self, now: Instant, with_past: bool) -> Series {
        if with_past {
            self.remember(now);
        }
        let past = self.past();
        let minutes = past.minutes.iter().filter(|_| with_past);
        let minutes = minutes.map(|(at, counts)| (now.saturating_duration_since(*at), counts));
        let minutes = minutes.filter(|(age, _)| *age >= Duration::from_secs(1));
        let current = self.counts();
        let counts = minutes.chain([(Duration::ZERO, &current)]);
        // Counts never decrease.
        let counts =
            counts.map(|(age, counts)| (age, counts.since(&past.before).unwrap_or_default()));
        Series {
            number: self.series(),
            age: now.saturating_duration_since(past.began),
            counts: counts.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_classed_by_powers_of_four() {
        for (bytes, class) in [
            (None, 0),
            (Some(0), 1),
            (Some(1024), 1),
            (Some(1025), 2),
            (Some(4096), 2),
            (Some(4097), 3),
            (Some(1 << 20), 6),
            (Some((1 << 20) + 1), 7),
            (Some(u64::MAX), 7),
        ] {
            assert_eq!(size_class(bytes), class, "{bytes:?}");
        }
    }

    #[test]
    fn each_stratum_of_each_generation_is_counted_apart() {
        let strata = Strata::new(Instant::now());
        assert_eq!(strata.counts(), Counts::default());
        let record = strata.record(Generation::New, Api::Chat, 2);
        record.started();
        record.started();
        record.started();
        record.ended(AttemptResult::Failed, false);
        record.answered();
        record.first_event(Duration::from_millis(30));
        strata.record(Generation::Old, Api::Other, 0).started();
        let Counts(counts) = strata.counts();
        let of = |class: &str, size| {
            let class = class.into();
            &counts[&Stratum { class, size }]
        };
        let [old, new] = of("chat", 2);
        assert_eq!(*old, GenerationCounts::default());
        let counted = new.attempts;
        assert_eq!((counted.started, counted.ended, counted.failed), (3, 1, 1));
        assert_eq!(counted.decided, 2, "the third one is in flight");
        record.ended(AttemptResult::Failed, true);
        let [_, new] = strata.counts().outcomes();
        assert_eq!((new.decided, new.ended, new.failed), (2, 2, 2));
        for (how, completed, failed, unanswered) in [
            (AttemptResult::Completed, 1, 2, 1),
            (AttemptResult::Abandoned, 1, 2, 1),
            (AttemptResult::FailedForGood, 1, 3, 1),
            (AttemptResult::Failed, 1, 4, 2),
        ] {
            record.started();
            record.ended(how, false);
            let [_, new] = strata.counts().outcomes();
            let counted = (new.completed, new.failed, new.unanswered);
            assert_eq!(counted, (completed, failed, unanswered), "{how:?}");
        }
        let [_, new] = strata.counts().total();
        assert_eq!(new.first_event.count(), 1);
        assert_eq!(of("other", 0)[0].attempts.started, 1);
        assert_eq!(counts.len(), 2);
        assert_eq!(strata.outcomes(), Outcomes::from(&strata.counts()));
    }

    #[test]
    fn the_last_minutes_are_remembered_and_no_more() {
        let start = Instant::now();
        let strata = Strata::new(start);
        let record = strata.record(Generation::Old, Api::Chat, 1);
        for second in 0..1000 {
            record.started();
            strata.remember(start + Duration::from_secs(second));
        }
        let recent = strata.current_series(start + Duration::from_secs(1000), true);
        let begun: Vec<_> = recent
            .counts
            .iter()
            .map(|(age, counts)| (age.as_secs(), counts.outcomes()[0].started))
            .collect();
        assert_eq!(
            begun,
            [
                (280, 721),
                (220, 781),
                (160, 841),
                (100, 901),
                (40, 961),
                (0, 1000)
            ]
        );
    }

    #[test]
    fn a_series_holds_only_what_was_counted_in_it() {
        let start = Instant::now();
        let strata = Strata::new(start);
        let at = |second| start + Duration::from_secs(second);
        let record = strata.record(Generation::New, Api::Chat, 1);
        record.started();
        record.ended(AttemptResult::Failed, false);
        strata.remember(at(60));
        assert_eq!(strata.current_series(at(70), true).counts.len(), 3);
        strata.begin_series(at(80));
        record.started();
        record.answered();
        for (now, with_past, remembered) in [(80, true, 0), (90, true, 1), (90, false, 0)] {
            let series = strata.current_series(at(now), with_past);
            assert_eq!(series.number, 2);
            assert_eq!(series.age, Duration::from_secs(now - 80));
            assert_eq!(series.counts.len(), remembered + 1);
            let (_, current) = series.counts.last().unwrap();
            let [_, new] = current.outcomes();
            assert_eq!((new.started, new.decided, new.failed), (1, 1, 0));
            let mut past = series.counts.iter().take(remembered);
            assert!(past.all(|(_, counts)| counts.outcomes()[1].started == 0));
        }
        let old = strata.record(Generation::Old, Api::Chat, 1);
        old.started();
        strata.begin_series(at(100));
        for (now, started) in [(100, 1), (159, 1), (160, 0)] {
            let [old, new] = strata.earlier(at(now)).outcomes();
            assert_eq!((old.started, new.started), (started, 0), "{now}");
        }
        assert_eq!(strata.counts().outcomes()[1].started, 2, "of the process");
    }
}
