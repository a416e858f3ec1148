//! The counts of both generations in the last minutes, as differences between totals.
//!
//! It adds nothing to the request path. Each reader also advances the record; in a process with an admin port, this happens every
//! second.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::latency::Sketch;

/// The windows.
pub const MINUTE: Duration = Duration::from_secs(60);
pub const FIVE_MINUTES: Duration = Duration::from_secs(300);
/// Step of the sliding windows: they cover up to this much more than their length.
const STEP: Duration = Duration::from_secs(5);

/// The counts of one generation since some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Exchanges that ended, in the order of [`Outcome::ALL`](crate::sse::Outcome::ALL), by their first assignment.
    pub outcomes: [u64; 4],
    /// Those of them that another attempt has completed although the generation had failed them.
    pub completed_by_another: u64,
    pub first_event: Sketch,
    pub gap: Sketch,
}

impl Totals {
    fn since(&self, before: &Self) -> Self {
        let mut outcomes = self.outcomes;
        for (now, before) in outcomes.iter_mut().zip(before.outcomes) {
            *now = now.saturating_sub(before);
        }
        let by_another = self.completed_by_another;
        Self {
            outcomes,
            completed_by_another: by_another.saturating_sub(before.completed_by_another),
            first_event: self.first_event.since(&before.first_event),
            gap: self.gap.since(&before.gap),
        }
    }

    fn add(&mut self, other: &Self) {
        for (all, more) in self.outcomes.iter_mut().zip(other.outcomes) {
            *all = all.saturating_add(more);
        }
        let by_another = &mut self.completed_by_another;
        *by_another = by_another.saturating_add(other.completed_by_another);
        self.first_event.add(&other.first_event);
        self.gap.add(&other.gap);
    }
}

/// The counts of both generations within a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    /// The time that the window covers: less after a start, up to five seconds more otherwise.
    pub length: Duration,
    /// In the order of [`Generation::ALL`](crate::split::Generation::ALL).
    pub generations: [Totals; 2],
}

/// The record of the last five minutes.
#[derive(Debug)]
pub struct Windows(Mutex<Record>);

#[derive(Debug)]
struct Record {
    /// When the last step ended, and the totals at that time.
    last: Instant,
    counted: [Totals; 2],
    steps: VecDeque<Interval>,
}

#[derive(Debug)]
struct Interval {
    begin: Instant,
    end: Instant,
    generations: [Totals; 2],
}

impl Windows {
    /// A record that begins `now`, with all totals 0.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self(Mutex::new(Record {
            last: now,
            counted: Default::default(),
            steps: VecDeque::new(),
        }))
    }

    /// The counts within the last `windows`. `counted` is the totals at `now`.
    #[must_use]
    pub fn read<const N: usize>(
        &self,
        now: Instant,
        counted: [Totals; 2],
        windows: [Duration; N],
    ) -> [Recent; N] {
        // No panic can occur in the middle of a change.
        let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since_last = difference(&counted, &record.counted);
        let recent = windows.map(|window| record.within(now, window, since_last.clone()));
        if now.saturating_duration_since(record.last) >= STEP {
            record.end_step(now, since_last, counted);
        }
        recent
    }
}

impl Record {
    fn within(&self, now: Instant, window: Duration, since_last: [Totals; 2]) -> Recent {
        let mut begin = self.last;
        let mut generations = since_last;
        let reaches_back = |step: &&Interval| now.saturating_duration_since(step.end) < window;
        for step in self.steps.iter().rev().take_while(reaches_back) {
            begin = step.begin;
            for (all, more) in generations.iter_mut().zip(&step.generations) {
                all.add(more);
            }
        }
        Recent {
            length: now.saturating_duration_since(begin),
            generations,
        }
    }

    fn end_step(&mut self, now: Instant, generations: [Totals; 2], counted: [Totals; 2]) {
        self.steps.push_back(Interval {
            begin: self.last,
            end: now,
            generations,
        });
        (self.last, self.counted) = (now, counted);
        while let Some(first) = self.steps.front()
            && now.saturating_duration_since(first.end) >= FIVE_MINUTES
        {
            self.steps.pop_front();
        }
    }
}

fn difference(now: &[Totals; 2], before: &[Totals; 2]) -> [Totals; 2] {
    [now[0].since(&before[0]), now[1].since(&before[1])]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The completed exchanges of new within a minute and five, and the length of the first, when each second there is one.
    fn seconds(until: u64, reads: impl Fn(u64) -> bool) -> (u64, u64, Duration) {
        let start = Instant::now();
        let windows = Windows::new(start);
        let mut last = Default::default();
        for second in 0..=until {
            if !reads(second) && second != until {
                continue;
            }
            let mut counted: [Totals; 2] = Default::default();
            counted[1].outcomes[0] = second;
            let now = start + Duration::from_secs(second);
            let [one, five] = windows.read(now, counted, [MINUTE, FIVE_MINUTES]);
            let completed = |recent: &Recent| recent.generations[1].outcomes[0];
            last = (completed(&one), completed(&five), one.length);
        }
        last
    }

    #[test]
    fn a_window_slides_and_says_what_it_covers() {
        assert_eq!(seconds(7, |_| true), (7, 7, Duration::from_secs(7)));
        let (one, five, length) = seconds(1000, |_| true);
        assert_eq!(Duration::from_secs(one), length, "one a second");
        assert!((60..=65).contains(&one), "{one}");
        assert!((300..=305).contains(&five), "{five}");
    }

    #[test]
    fn a_window_that_is_read_rarely_reports_its_length() {
        let (one, _, length) = seconds(1000, |second| second % 90 == 0);
        assert_eq!(Duration::from_secs(one), length);
        assert!(one >= 60, "{one}");
    }

    #[test]
    fn old_steps_are_forgotten() {
        let start = Instant::now();
        let windows = Windows::new(start);
        for second in 0..10_000 {
            let now = start + Duration::from_secs(second);
            let _ = windows.read(now, Default::default(), [MINUTE]);
        }
        assert!(windows.0.lock().unwrap().steps.len() <= 61);
    }
}
