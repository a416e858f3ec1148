//! The phases of an update.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The phase of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdatePhase {
    /// Not started: the new generation cannot serve yet.
    Pending,
    /// The split follows the workers.
    Progressing,
    /// Held by `paused` or by the cap.
    Paused,
    /// All requests go to the new generation; streams still run on the old one.
    Draining,
    /// Nothing is left on the old generation.
    Complete,
    /// Another update of the same deployment rules.
    Superseded,
    /// Something keeps the update from going on.
    Degraded,
}

impl UpdatePhase {
    /// Whether the old generation is no longer a fallback for requests that the new one fails.
    #[must_use]
    pub fn old_drains(self) -> bool {
        matches!(self, Self::Draining | Self::Complete)
    }
}
