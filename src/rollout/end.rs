//! The end of an update, in its order: old weight 0, applied by all, draining, no stream left, complete.
//!
//! Must not know how the split was decided.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Settings, Timestamp, proxies::Proxies};
use crate::split::Weights;

/// How far an update is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// All requests go to old: new is not there yet, or not any more.
    #[default]
    Pending,
    /// New gets requests; old gets some, too, or is kept as a fallback.
    Progressing,
    /// New gets all and every proxy knows; old is no fallback any more and ends its streams.
    Draining,
    /// Old has no stream left, or its time is over, and no proxy sends anything to it.
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

    /// Is old no fallback any more?
    #[must_use]
    pub const fn old_drains(self) -> bool {
        matches!(self, Self::Draining | Self::Complete)
    }
}

/// What the phase follows from.
pub(super) struct Ending<'a> {
    pub before: Phase,
    pub since: Timestamp,
    pub now: Timestamp,
    pub settings: &'a Settings,
    /// The split in the resource.
    pub present: Weights,
    /// The split that it will have after this step.
    pub next: Weights,
    /// Is old's share 0 because that is wanted, and not because its workers fell over?
    pub is_meant: bool,
    /// Does the resource say that old drains?
    pub told: bool,
    /// Has the deadline ended the last drain?
    pub overdue: bool,
    pub proxies: &'a Proxies,
}

impl Ending<'_> {
    /// The phase, and whether a deadline has ended the drain.
    pub fn phase(&self) -> (Phase, bool) {
        let phase = self.next_phase();
        let has_ended = phase == Phase::Complete && self.before != Phase::Complete;
        let overdue = match phase {
            Phase::Complete if has_ended => !self.proxies.old_is_empty(),
            _ => self.overdue && phase == Phase::Complete,
        };
        (phase, overdue)
    }

    fn next_phase(&self) -> Phase {
        if self.next.is_all_old() {
            return Phase::Pending;
        }
        if !self.has_left_old() {
            return Phase::Progressing;
        }
        // Nobody found is nobody who agrees. Only of what is complete the frontends may be gone, too.
        if self.proxies.are_none() {
            return match self.before {
                Phase::Complete => Phase::Complete,
                _ => Phase::Progressing,
            };
        }
        if self.settings.losses_only {
            return match self.before {
                begun if begun.old_drains() => begun,
                _ => Phase::Progressing,
            };
        }
        let all_left = self.proxies.have_left_old();
        let all_drain = self.told && self.proxies.let_old_drain();
        let is_empty = self.proxies.old_is_empty();
        match self.before {
            // One that came later may send to old.
            Phase::Complete if all_drain && (is_empty || self.overdue) => Phase::Complete,
            Phase::Complete => Phase::Draining,
            // Each phase is seen, if only for a moment.
            Phase::Draining if self.now <= self.since => Phase::Draining,
            // Until all know that old is no fallback a request could still be on its way there.
            Phase::Draining if all_drain && (is_empty || self.is_overdue()) => Phase::Complete,
            Phase::Draining => Phase::Draining,
            _ if all_left => Phase::Draining,
            _ => Phase::Progressing,
        }
    }

    fn is_overdue(&self) -> bool {
        self.deadline().is_some_and(|end| self.now >= end)
    }

    /// Does only the word of a proxy keep old from draining?
    pub fn waits_for_proxies(&self) -> bool {
        self.has_left_old() && !self.proxies.lagging_alive.is_empty()
    }

    /// When streams on old are waited for no longer, if old drains and there is a limit.
    pub fn deadline(&self) -> Option<Timestamp> {
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
