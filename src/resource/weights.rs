//! The split, written as a ratio.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;

/// The split as an exact ratio, for example `{old: 3, new: 1}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::weights()))]
pub struct WeightsSpec {
    /// The part of the old generation. Not both parts may be 0.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub old: u32,
    /// The part of the new generation. Not both parts may be 0.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub new: u32,
}
