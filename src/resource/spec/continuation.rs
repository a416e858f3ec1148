//! The fields of the spec for continuing streams on another server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::continuation::Mode;

/// Which frontends may continue a stream that breaks after its first content.
// No doc comments on the variants: the schema is then a plain list of names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum ContinuationMode {
    #[default]
    Off,
    #[cfg_attr(feature = "cli", value(alias = "SameGeneration"))]
    SameGeneration,
    #[cfg_attr(feature = "cli", value(alias = "AnyGeneration"))]
    AnyGeneration,
}

impl From<ContinuationMode> for Mode {
    fn from(mode: ContinuationMode) -> Self {
        match mode {
            ContinuationMode::Off => Self::Off,
            ContinuationMode::SameGeneration => Self::SameGeneration,
            ContinuationMode::AnyGeneration => Self::AnyGeneration,
        }
    }
}

/// What happens to a stream that breaks after its first content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContinuationSpec {
    /// Which frontends may continue a broken stream: none (`"Off"`), others of the stream's own generation (`SameGeneration`), or
    /// also those of the other generation (`AnyGeneration`). Quote `"Off"`, because YAML may read it as a boolean.
    pub mode: ContinuationMode,
    /// The maximum amount of generated text that is kept per stream for a continuation, in bytes. Longer streams are not
    /// continued.
    #[schemars(range(min = 1024, max = 67_108_864))]
    pub max_text_bytes: u64,
    /// How many times one stream may be continued.
    #[schemars(range(min = 1, max = 100))]
    pub max_per_stream: u32,
    /// Whether an SSE comment marks the point in the stream at which another frontend takes over.
    pub comment: bool,
}

impl Default for ContinuationSpec {
    fn default() -> Self {
        Self {
            mode: ContinuationMode::Off,
            max_text_bytes: 256 * 1024,
            max_per_stream: 2,
            comment: true,
        }
    }
}

/// What happens to streams that are still open on the old generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainSpec {
    /// How long streams may stay on the old generation after all requests go to the new one, in seconds; fractions are allowed.
    /// After that, they are moved: the new generation continues them. Needs `failover.continuation.mode: AnyGeneration`. By
    /// default, streams are not moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub move_after_seconds: Option<f64>,
    /// The maximum number of streams that each proxy moves per second.
    #[schemars(range(min = 1, max = 10_000))]
    pub move_rate: u32,
}

impl Default for DrainSpec {
    fn default() -> Self {
        Self {
            move_after_seconds: None,
            move_rate: 10,
        }
    }
}
