//! How the new generation is compared with the old one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::analysis::Margins;
use crate::resource::rules;
pub use crate::rollout::OnFailure;

/// The annotation that requests a retry of a new generation that has failed. Its value is the time, as with `kubectl rollout
/// restart`. It is not part of the spec, so tools that apply the spec from a repository do not see it.
pub const RETRIED_AT: &str = "crossfade/retried-at";

/// How much worse than the old generation the new one may be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AnalysisSpec {
    /// How long, in seconds, the latencies of a newly added frontend of the new generation are ignored, because its
    /// caches are cold.
    #[schemars(range(min = 0, max = 86_400))]
    pub warmup_seconds: u32,
    /// The period that the figures cover, in seconds.
    #[schemars(range(min = 10, max = 3600))]
    pub window_seconds: u32,
    /// How many requests each generation must have received, and the new one must have completed, within `windowSeconds` for a
    /// pass.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub min_samples: u32,
    /// By how many percentage points the share of failed requests of the new generation may exceed that of the old one; fractions
    /// are allowed.
    #[schemars(range(min = 0, max = 100))]
    pub max_failure_rate_increase_percent: f64,
    /// The maximum time to the first token of the new generation, as a multiple of the old one's, at the median and at the 95th
    /// percentile.
    #[schemars(range(min = 1, max = 100))]
    pub ttft_p95_ratio: f64,
    /// The maximum gap between tokens (at the 99th percentile) and time per token of the new generation, as a multiple of the old
    /// one's.
    #[schemars(range(min = 1, max = 100))]
    pub gap_p99_ratio: f64,
    /// One minus the probability that the analysis ever fails a new generation that stays within these margins.
    #[schemars(range(min = 0.5, max = 0.999_999), extend("x-kubernetes-validations" = rules::confidence()))]
    pub confidence: f64,
    /// What happens if the new generation fails: with `Hold`, it keeps at most its current share; with `RollBack`, all requests
    /// go to the old one. In a cluster, the controller acts, until you retry (with `crossfade retry`; for a DynamoRollout, with
    /// `crossfade rollout retry`) or the spec names a different new generation. Without a cluster, the proxy acts (`Hold` leaves
    /// the split as it is), until the plan names a different new generation; it sends no requests back to an old generation that
    /// drains (`oldDraining`).
    pub on_failure: OnFailure,
}

impl Default for AnalysisSpec {
    fn default() -> Self {
        Self {
            warmup_seconds: 60,
            window_seconds: 300,
            min_samples: 200,
            max_failure_rate_increase_percent: 0.5,
            ttft_p95_ratio: 1.25,
            gap_p99_ratio: 1.25,
            confidence: 0.99,
            on_failure: OnFailure::Hold,
        }
    }
}

impl AnalysisSpec {
    /// The margins of the verdict.
    #[must_use]
    pub fn margins(&self) -> Margins {
        Margins {
            window: std::time::Duration::from_secs(self.window_seconds.into()),
            min_samples: self.min_samples.into(),
            max_failure_rate_increase: self.max_failure_rate_increase_percent / 100.0,
            ttft_ratio: self.ttft_p95_ratio,
            gap_ratio: self.gap_p99_ratio,
            confidence: self.confidence,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_verdict() {
        assert_eq!(AnalysisSpec::default().margins(), Margins::default());
    }
}
