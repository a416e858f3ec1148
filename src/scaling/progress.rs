//! Where a rollout is, and the next thing to do.

use super::{Action, Wait};

/// Where a rollout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing was written, and nothing will be until what is named is changed.
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
    /// New serves everything, and old is retired as asked.
    Complete,
    /// Old serves everything, and new has no worker.
    RolledBack,
}

/// An action or what it waits for.
pub(super) enum Next {
    Act(Action, Vec<Wait>),
    Wait(Vec<Wait>),
}
