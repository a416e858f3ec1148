//! The fields of the spec about streams that outlive the server that began them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::continuation::Mode;

/// Where a stream that breaks after its first content may be continued.
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
    /// Whether another frontend is asked to continue a stream that breaks, and which: `"Off"`: none;
    /// `SameGeneration`: one of the stream's own generation; `AnyGeneration`: also one of the other
    /// generation. Write `"Off"` in quotes, since YAML may take it for a boolean.
    pub mode: ContinuationMode,
    /// The longest text of a stream that is kept so that it can be continued, in bytes. A stream
    /// with more text is not continued.
    #[schemars(range(min = 1024, max = 67_108_864))]
    pub max_text_bytes: u64,
    /// How often one stream may be continued.
    #[schemars(range(min = 1, max = 100))]
    pub max_per_stream: u32,
    /// Whether an SSE comment marks the place in the stream where another frontend goes on.
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

/// How the old generation is emptied of the streams that still run on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainSpec {
    /// How long streams may stay on the old generation after all requests go to the new one, in
    /// seconds; fractions are allowed. Those that are still open then are moved: the new generation
    /// continues them. Needs `failover.continuation.mode: AnyGeneration`. By default no stream is
    /// moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub move_after_seconds: Option<f64>,
    /// How many streams each proxy moves per second at most.
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
