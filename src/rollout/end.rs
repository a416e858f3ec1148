//! Advances an update through its phases: old has weight 0, all proxies apply it, old drains, no stream is left, and the update
//! is complete.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Timestamp, UpdateSettings, proxies::ProxySummary};
use crate::split::Weights;

/// The progress of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// All requests go to old, because new cannot serve yet, or can no longer serve.
    #[default]
    Pending,
    /// New gets requests; old gets some, too, or is kept as a fallback.
    Progressing,
    /// New gets all requests, and every proxy knows this; old is no longer a fallback and finishes its streams.
    Draining,
    /// Old has no streams left, or the deadline has passed, and no proxy sends requests to it.
    Complete,
    /// Another resource takes precedence.
    Superseded,
}

impl Phase {
    /// The name, as in the status.
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

    /// Whether old is no longer a fallback.
    #[must_use]
    pub const fn old_drains(self) -> bool {
        matches!(self, Self::Draining | Self::Complete)
    }
}

/// The inputs that determine the phase.
pub(super) struct Ending<'a> {
    pub before: Phase,
    pub since: Timestamp,
    pub now: Timestamp,
    pub settings: &'a UpdateSettings,
    /// The split in the resource as observed.
    pub present: Weights,
    /// The split after this step.
    pub next: Weights,
    /// Whether old's share is 0 intentionally, and not because its workers crashed.
    pub is_meant: bool,
    /// `spec.oldDraining` as observed.
    pub old_drains: bool,
    /// Whether the deadline ended the last drain.
    pub overdue: bool,
    /// Whether proxies have confirmed a complete update with the present `newFrontendService`.
    pub was_confirmed: bool,
    pub proxies: &'a ProxySummary,
}

impl Ending<'_> {
    /// Returns the next phase, and whether a deadline ended the drain.
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
        // No proxies means no confirmation. Only a complete update may lose its frontends, and then it may not send elsewhere.
        if self.proxies.are_none() {
            return match self.was_confirmed {
                true => Phase::Complete,
                false => Phase::Progressing,
            };
        }
        if self.settings.losses_only {
            return match self.before {
                begun if begun.old_drains() => begun,
                _ => Phase::Progressing,
            };
        }
        let all_left = self.proxies.have_left_old();
        let all_drain = self.old_drains && self.proxies.let_old_drain();
        let is_empty = self.proxies.old_is_empty();
        match self.before {
            // A proxy that started later may send to old.
            Phase::Complete if all_drain && (is_empty || self.overdue) => Phase::Complete,
            Phase::Complete => Phase::Draining,
            // Report every phase, even if only briefly.
            Phase::Draining if self.now <= self.since => Phase::Draining,
            // Until all proxies know that old is not a fallback, a request may still be on its way to it.
            Phase::Draining if all_drain && (is_empty || self.is_overdue()) => Phase::Complete,
            Phase::Draining => Phase::Draining,
            _ if all_left => Phase::Draining,
            _ => Phase::Progressing,
        }
    }

    /// The `newFrontendService` with which the update is complete, to be remembered after this `phase`; `known` was remembered
    /// before.
    pub fn complete_with(&self, phase: Phase, known: Option<String>) -> Option<String> {
        let is_kept = self.proxies.are_none() && self.has_left_old();
        let may_end = self.proxies.let_old_drain_or_end();
        match phase {
            Phase::Complete if self.proxies.are_none() || self.settings.losses_only => {
                known.or_else(|| Some(self.settings.new_frontends.clone()))
            }
            Phase::Complete => Some(self.settings.new_frontends.clone()),
            // An edit that is undone changes nothing.
            Phase::Progressing if is_kept => known,
            // A proxy ends a moment before its pod is gone. Without the silent ones, the update is complete as before.
            Phase::Draining if may_end => known,
            _ => None,
        }
    }

    fn is_overdue(&self) -> bool {
        self.deadline().is_some_and(|end| self.now >= end)
    }

    /// Whether old would drain if only the lagging proxies confirmed it.
    pub fn waits_for_proxies(&self) -> bool {
        self.has_left_old() && !self.proxies.lagging_alive.is_empty()
    }

    /// When the drain deadline expires, if there is one.
    pub fn deadline(&self) -> Option<Timestamp> {
        let limit = self.settings.drain_deadline?;
        // A drain that begins in this step gets the full time.
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
