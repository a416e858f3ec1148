//! Whether old may be deleted, as of the last reconcile of an update. Kept in memory only: a status may be outdated, unwritten,
//! or written by another client.

use std::time::Duration;

use crate::k8s::{BothClocks, Object};
use crate::resource::Identity;
use crate::rollout::{Decision, DeletionRequirement, Phase};
use crate::scaling::LastWorker;

/// How long a check is valid. A complete update is reconciled more often.
const MAX_AGE: Duration = Duration::from_secs(15);

/// Which requirements for deleting old were met at one reconcile of an update.
#[derive(Clone, Debug)]
pub(super) struct DeletionCheck {
    uid: Option<String>,
    generation: Option<i64>,
    at: BothClocks,
    is_complete: bool,
    missing: Vec<DeletionRequirement>,
}

impl DeletionCheck {
    /// The check in `decision`, about the update as it has just been observed.
    pub fn of(update: &Identity, decision: &Decision) -> Self {
        Self {
            uid: update.uid.clone(),
            generation: update.generation,
            at: BothClocks::now(),
            is_complete: decision.phase == Phase::Complete,
            missing: decision.missing.clone(),
        }
    }

    /// Whether the check is recent and about the current state of this update.
    pub fn is_of(&self, update: &Object) -> bool {
        let metadata = &update.metadata;
        let is_it = self.uid.is_some() && self.uid == metadata.uid;
        is_it && self.generation == metadata.generation && self.is_recent(BothClocks::now())
    }

    fn is_recent(&self, now: BothClocks) -> bool {
        self.at.elapsed(now) < MAX_AGE
    }

    /// Whether old may be deleted.
    pub fn is_safe_to_delete_old(&self) -> bool {
        self.missing.is_empty()
    }

    /// What keeps the last worker of old.
    pub fn last_worker(&self) -> LastWorker {
        let missing = { self.missing.iter() }
            .filter(|requirement| DeletionRequirement::FOR_LAST_WORKER.contains(requirement));
        let missing: Vec<DeletionRequirement> = missing.copied().collect();
        match *missing {
            [] => LastWorker::Dispensable,
            [DeletionRequirement::NoStreamOnOld] if self.is_complete => LastWorker::Streams,
            _ => LastWorker::Needed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(missing: &[DeletionRequirement]) -> DeletionCheck {
        DeletionCheck {
            uid: None,
            generation: None,
            at: BothClocks::now(),
            is_complete: true,
            missing: missing.to_vec(),
        }
    }

    #[test]
    fn the_last_worker_waits_for_streams_alone_if_nothing_else_is_missing() {
        let last_worker = |missing: &[DeletionRequirement]| check(missing).last_worker();
        assert_eq!(last_worker(&[]), LastWorker::Dispensable);
        assert_eq!(
            last_worker(&[DeletionRequirement::ClientsLeftOld]),
            LastWorker::Dispensable
        );
        let streams = [
            DeletionRequirement::NoStreamOnOld,
            DeletionRequirement::ClientsLeftOld,
        ];
        assert_eq!(last_worker(&streams), LastWorker::Streams);
        for more in [
            DeletionRequirement::NoLateRequest,
            DeletionRequirement::NoBypass,
            DeletionRequirement::CurrentView,
        ] {
            assert_eq!(
                last_worker(&[DeletionRequirement::NoStreamOnOld, more]),
                LastWorker::Needed
            );
        }
        let incomplete = DeletionCheck {
            is_complete: false,
            ..check(&streams)
        };
        assert_eq!(incomplete.last_worker(), LastWorker::Needed);
    }
}
