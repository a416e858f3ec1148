//! What both sides did in the last minutes.

use std::collections::VecDeque;
use std::time::Duration;

use super::Counts;

/// Steps of a window.
const STEPS: u32 = 10;

/// A sliding window. It covers up to a step more than its length.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    steps: VecDeque<Step>,
}

#[derive(Clone, Debug)]
struct Step {
    begin: Duration,
    end: Duration,
    counts: Counts,
}

impl Window {
    /// Adds what was counted from `begin` to `end`, and forgets what is older than `length`.
    pub(super) fn add(&mut self, counts: Counts, begin: Duration, end: Duration, length: Duration) {
        match self.steps.back_mut() {
            Some(last) if end.saturating_sub(last.begin) <= length / STEPS => {
                last.counts.add(&counts);
                last.end = end;
            }
            _ => self.steps.push_back(Step { begin, end, counts }),
        }
        while let Some(first) = self.steps.front()
            && end.saturating_sub(first.end) >= length
        {
            self.steps.pop_front();
        }
    }

    /// The sum, and the time that it covers.
    pub(super) fn total(&self) -> (Counts, Duration) {
        let mut total = Counts::default();
        for step in &self.steps {
            total.add(&step.counts);
        }
        let ends = self.steps.front().zip(self.steps.back());
        let length = ends.map(|(first, last)| last.end.saturating_sub(first.begin));
        (total, length.unwrap_or_default())
    }
}
