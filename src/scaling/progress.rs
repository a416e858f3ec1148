//! The progress of a rollout, and its next step.

use super::{ScalingAction, Wait};

/// The progress of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing was written, and nothing will be until the reported obstacle is removed.
    Refused,
    /// Moving to new.
    Forward,
    /// It goes back to old.
    Back,
    /// Its owner holds it.
    Held,
    /// Scaled by another client.
    Contested,
    /// A worker is not ready in time.
    Stalled,
    /// The units beyond the partition are new.
    Partition,
    /// New serves everything, and old has been retired as requested.
    Complete,
    /// Old serves everything, and new has no worker.
    RolledBack,
}

/// An action or what it waits for.
pub(super) enum Next {
    Act(ScalingAction, Vec<Wait>),
    Wait(Vec<Wait>),
}
