//! The split, written as a ratio.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;
use crate::split::Weights;

/// The split as an exact ratio, for example `{old: 3, new: 1}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::weights()))]
pub struct WeightsSpec {
    /// The weight of the old generation. The two weights must not both be 0.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub old: u32,
    /// The weight of the new generation. The two weights must not both be 0.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub new: u32,
}

/// The split that a resource gives as `weights` or, if it has none, in `percent`; `None` if it gives no valid split.
#[must_use]
pub fn requested_split(weights: Option<WeightsSpec>, percent: Option<u8>) -> Option<Weights> {
    let split = match weights {
        Some(WeightsSpec { old, new }) => Weights::new(old, new),
        None => Weights::percent(percent?),
    };
    split.ok()
}
