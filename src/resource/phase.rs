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
    /// The split is held by `paused`, or by a maximum split.
    Paused,
    /// All requests go to the new generation; the old one still has open streams.
    Draining,
    /// The old generation has no requests or streams left.
    Complete,
    /// Another update of the same deployment takes precedence.
    Superseded,
    /// A problem prevents the update from making progress.
    Degraded,
}

impl UpdatePhase {
    /// Whether requests that fail on the new generation are no longer retried on the old one.
    #[must_use]
    pub fn old_drains(self) -> bool {
        matches!(self, Self::Draining | Self::Complete)
    }
}
