//! The actions in the cluster that a decision requests. Contains no policy.

use super::Memory;
use crate::split::Weights;

/// The fields of the spec that a decision sets, always together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredSplit {
    /// The split, written as percentage and exact weights.
    pub split: Weights,
    /// The value for `spec.oldDraining`.
    pub old_draining: bool,
}

/// One write. Writes are idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write this memory into the status, which is otherwise left as it is: new has failed the analysis.
    RecordFailure(Box<Memory>),
    /// Write the split and `oldDraining` into the resource.
    SetSplit(DesiredSplit),
}

impl Action {
    /// Whether both write the same fields, possibly with different values: after `other` was rejected, `self` counts as another
    /// attempt.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Whether the following actions must be skipped if it fails.
    #[must_use]
    pub const fn is_required(&self) -> bool {
        match self {
            Self::SetSplit(_) => true,
            // The process remembers it, too, and traffic must not wait for it.
            Self::RecordFailure(_) => false,
        }
    }
}
