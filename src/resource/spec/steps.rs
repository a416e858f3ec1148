//! The steps in which the split of an update rises.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A share at which the new generation is tried before it gets more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepSpec {
    /// The maximum share of the new generation until the step is passed, in percent. A step of 100 does not limit it.
    #[schemars(range(min = 1, max = 100))]
    pub percent: u8,
    /// The minimum time that the split stays at the step, in seconds.
    #[serde(default)]
    #[schemars(range(min = 0, max = 604_800))]
    pub hold_seconds: u32,
}
