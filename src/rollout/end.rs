//! The end of an update, in its order: old weight 0, applied by all, draining, no stream left, complete.
//!
//! Must not know how the split was decided.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Moment, Settings, proxies::Proxies};
use crate::split::Weights;

/// How far an update is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// All requests go to old: new is not there yet, or not any more.
    #[default]
    Pending,
    /// New gets requests; old gets some, too, or is kept as a refuge.
    Progressing,
    /// New gets all and every proxy knows; old is no refuge any more and ends its streams.
    Draining,
    /// Old has no stream left, or its time is over.
    Complete,
    /// Another resource rules instead.
    Superseded,
}

impl Phase {
    /// As in the status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Progressing => "Progressing",
            Self::Draining => "Draining",
            Self::Complete => "Complete",
            Self::Superseded => "Superseded",
        }
    }

    /// Is old no refuge any more?
    #[must_use]
    pub const fn old_drains(self) -> bool {
        matches!(self, Self::Draining | Self::Complete)
    }
}

/// What the phase follows from.
pub(super) struct Ending<'a> {
    pub before: Phase,
    pub since: Moment,
    pub now: Moment,
    pub settings: &'a Settings,
    /// The split in the resource.
    pub present: Weights,
    /// The split that it will have after this step.
    pub next: Weights,
    /// Is old's share 0 because that is wanted, and not because its workers fell over?
    pub is_meant: bool,
    /// Does the resource say that old drains?
    pub told: bool,
    pub proxies: &'a Proxies,
}

impl Ending<'_> {
    pub fn phase(&self) -> Phase {
        if self.next.is_all_old() {
            return Phase::Pending;
        }
        if !self.has_left_old() {
            return Phase::Progressing;
        }
        let all_applied = self.proxies.lagging_alive.is_empty();
        match self.before {
            Phase::Complete => Phase::Complete,
            // Each phase is seen, if only for a moment.
            Phase::Draining if self.now <= self.since => Phase::Draining,
            // Until all know that old is no refuge a request could still be on its way there.
            Phase::Draining if self.told && all_applied && self.proxies.old_is_empty() => {
                Phase::Complete
            }
            Phase::Draining if self.deadline().is_some_and(|end| self.now >= end) => {
                Phase::Complete
            }
            Phase::Draining => Phase::Draining,
            _ if all_applied => Phase::Draining,
            _ => Phase::Progressing,
        }
    }

    /// Does only the word of a proxy keep old from draining?
    pub fn waits_for_proxies(&self) -> bool {
        self.has_left_old() && !self.before.old_drains() && !self.proxies.lagging_alive.is_empty()
    }

    /// When streams on old are waited for no longer, if old drains and there is a limit.
    pub fn deadline(&self) -> Option<Moment> {
        let limit = self.settings.drain_deadline?;
        // A drain that begins with this step has all of it.
        let since = if self.before == Phase::Draining {
            self.since
        } else {
            self.now
        };
        Some(since.after(limit))
    }

    fn has_left_old(&self) -> bool {
        self.is_meant && self.next.is_all_new() && self.present.is_all_new()
    }
}
