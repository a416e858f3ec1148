//! The requirements on new, and the metrics that they apply to.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::counts::GenerationCounts;
use crate::latency::Sketch;

/// The requirements on new.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margins {
    /// The length of the window for the figures and for the requirements of a pass.
    pub window: Duration,
    /// The minimum for a verdict within the window: for a pass, requests that each generation must have received and new must
    /// have completed; for a fail, new's values of a latency.
    pub min_samples: u64,
    /// By how much new's failure rate may exceed old's, 0 to 1.
    pub max_failure_rate_increase: f64,
    /// The maximum time to the first token, as a multiple of old's.
    pub ttft_ratio: f64,
    /// The same for gaps between tokens, and for the time per token.
    pub gap_ratio: f64,
    /// One minus the probability of ever failing a new generation that is within the margins.
    pub confidence: f64,
}

impl Margins {
    /// The bounds of [`Self::window`], in seconds.
    pub const WINDOW: RangeInclusive<f64> = 10.0..=3600.0;
    /// The bounds of [`Self::ttft_ratio`] and [`Self::gap_ratio`].
    pub const RATIO: RangeInclusive<f64> = 1.0..=100.0;
    /// The bounds of [`Self::confidence`].
    pub const CONFIDENCE: RangeInclusive<f64> = 0.5..=0.999_999;

    /// Whether all values are within the bounds that a plan and the flags have.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        Self::WINDOW.contains(&self.window.as_secs_f64())
            && (1..=1_000_000).contains(&self.min_samples)
            && (0.0..=1.0).contains(&self.max_failure_rate_increase)
            && Self::RATIO.contains(&self.ttft_ratio)
            && Self::RATIO.contains(&self.gap_ratio)
            && Self::CONFIDENCE.contains(&self.confidence)
    }
}

impl Default for Margins {
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

    /// The shares of the error budget for a crash within the first requests, and for a later one.
    pub(super) const BUDGET_OF_CRASH: f64 = 0.4;
    pub(super) const BUDGET_OF_LATE_CRASH: f64 = 0.3;

    /// Its share of the error budget. All shares add up to 1.
    pub(super) const fn budget(self) -> f64 {
        match self {
            Self::Failures => 0.1,
            _ => 0.05,
        }
    }

    /// The quantile that is compared; 0 for a rate.
    pub(super) const fn quantile(self) -> f64 {
        match self {
            Self::Failures => 0.0,
            Self::FirstTokenP50 | Self::TimePerToken => 0.5,
            Self::FirstTokenP95 => 0.95,
            Self::GapP99 => 0.99,
        }
    }

    pub(super) const fn ratio(self, margins: &Margins) -> f64 {
        match self {
            Self::FirstTokenP50 | Self::FirstTokenP95 => margins.ttft_ratio,
            _ => margins.gap_ratio,
        }
    }

    /// The values of a latency; `None` for a rate.
    pub(super) const fn values(self, generation: &GenerationCounts) -> Option<&Sketch> {
        match self {
            Self::Failures => None,
            Self::FirstTokenP50 | Self::FirstTokenP95 => Some(&generation.first_event),
            Self::GapP99 => Some(&generation.gap),
            Self::TimePerToken => Some(&generation.per_token),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_budget_is_spent_once() {
        let metrics: f64 = Metric::ALL.into_iter().map(Metric::budget).sum();
        let all = metrics + Metric::BUDGET_OF_CRASH + Metric::BUDGET_OF_LATE_CRASH;
        assert!((all - 1.0).abs() < 1e-12, "{all}");
    }
}
