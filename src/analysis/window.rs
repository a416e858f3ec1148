//! The counts of both generations in the last minutes.

use std::collections::VecDeque;
use std::time::Duration;

use super::Counts;

/// Steps of a window.
const STEPS: u32 = 10;

/// A sliding window. It covers up to a step more than its length.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    steps: VecDeque<CountedInterval>,
    /// The sum of all steps except the last, kept because it rarely changes while looks are frequent.
    finished: Counts,
}

#[derive(Clone, Debug)]
struct CountedInterval {
    begin: Duration,
    end: Duration,
    counts: Counts,
}

impl Window {
    /// Adds what was counted from `begin` to `end`, and forgets what is older than `length`.
    pub(super) fn add(&mut self, counts: Counts, begin: Duration, end: Duration, length: Duration) {
        let mut is_changed = false;
        match self.steps.back_mut() {
            Some(last) if end.saturating_sub(last.begin) <= length / STEPS => {
                last.counts.add(&counts);
                last.end = end;
            }
            _ => {
                self.steps.push_back(CountedInterval { begin, end, counts });
                is_changed = true;
            }
        }
        while let Some(first) = self.steps.front()
            && end.saturating_sub(first.end) >= length
        {
            self.steps.pop_front();
            is_changed = true;
        }
        if is_changed {
            self.finished = Counts::default();
            let finished = self.steps.len().saturating_sub(1);
            for step in self.steps.iter().take(finished) {
                self.finished.add(&step.counts);
            }
        }
    }

    /// The sum, and the time that it covers.
    pub(super) fn total(&self) -> (Counts, Duration) {
        let mut total = self.finished.clone();
        if let Some(last) = self.steps.back() {
            total.add(&last.counts);
        }
        let ends = self.steps.front().zip(self.steps.back());
        let length = ends.map(|(first, last)| last.end.saturating_sub(first.begin));
        (total, length.unwrap_or_default())
    }
}
