//! How a rollout proceeds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{amount::AmountSpec, rules};

/// How a rollout proceeds. One unit is the smallest set of workers that keeps the proportion of the roles; with one role it is
/// one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::strategy()))]
pub struct StrategySpec {
    /// By how many units both generations together may exceed the full size, counting terminating pods: a number, or a percentage
    /// that is rounded up. With `100%`, a whole new generation runs next to the old one.
    pub max_surge: AmountSpec,
    /// By how many units the ready capacity may fall below the full size: a number, or a percentage that is rounded down. One
    /// unit always stays.
    pub max_unavailable: AmountSpec,
    /// How many units stay in the old generation.
    #[schemars(range(min = 0, max = 100_000))]
    pub partition: u32,
    /// How many GPUs both generations may use together, counting terminating pods. No limit by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub gpu_budget: Option<u32>,
    /// The time after which a worker that is not ready is reported, in seconds.
    #[schemars(range(min = 1, max = 604_800))]
    pub ready_timeout_seconds: u32,
    /// The minimum time between two changes of size, in seconds.
    #[schemars(range(min = 0, max = 604_800))]
    pub step_interval_seconds: u32,
    /// How long a shrinking generation may have more open streams than its remaining workers can serve, in seconds, before
    /// workers are removed anyway. No limit by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub drain_deadline_seconds: Option<u32>,
    /// Remove workers even if their `terminationGracePeriodSeconds` is shorter than their streams, so that streams may be cut.
    pub allow_short_grace: bool,
}

/// A size of the new generation at which a rollout pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScaleStepSpec {
    /// The size of the new generation at which the rollout pauses, in percent of its full size.
    #[schemars(range(min = 1, max = 100))]
    pub percent: u8,
    /// How long the rollout pauses once the new generation is ready at this size, in seconds.
    #[serde(default)]
    #[schemars(range(min = 0, max = 604_800))]
    pub hold_seconds: u32,
}

impl Default for StrategySpec {
    fn default() -> Self {
        Self {
            max_surge: AmountSpec::Count(1),
            max_unavailable: AmountSpec::Count(0),
            partition: 0,
            gpu_budget: None,
            ready_timeout_seconds: 1800,
            step_interval_seconds: 0,
            drain_deadline_seconds: None,
            allow_short_grace: false,
        }
    }
}
