//! The memory of a dry run, which sees its own decisions as if they had been written.
//!
//! Contains no policy.

use super::job::Job;
use crate::rollout::{DesiredSplit, Memory, Observation};

/// The state that an update would have if decisions were written.
pub(super) struct DryRun {
    pub memory: Memory,
    /// The last message that was logged.
    pub last_message: String,
    /// The spec fields as they were found, and as the last decisions would have written them.
    found: Option<DesiredSplit>,
    wanted: Option<DesiredSplit>,
}

impl DryRun {
    /// The state after `job`.
    pub fn of(job: &Job, before: Option<&Self>) -> Self {
        let status = &job.status;
        let earlier = before.filter(|before| before.found == job.found);
        let wanted = job.desired().or(earlier.and_then(|earlier| earlier.wanted));
        let mut last_message = status.message.clone().unwrap_or_default();
        if let Some(phase) = status.phase {
            last_message = format!("{last_message} [{phase:?}");
            let drains = wanted.or(job.found).is_some_and(|spec| spec.old_draining);
            last_message += if drains { ", oldDraining: true]" } else { "]" };
        }
        Self {
            memory: status.memory.clone().unwrap_or_default(),
            last_message,
            found: job.found,
            wanted,
        }
    }

    /// Overlays the last decision on the observation as if it had been written, unless the spec has changed since.
    pub fn overlay(&self, found: DesiredSplit, seen: &mut Observation) {
        if let Some(wanted) = self.wanted.filter(|_| self.found == Some(found)) {
            (seen.split, seen.old_draining) = (wanted.split, wanted.old_draining);
            (seen.split_is_ours, seen.split_is_incomplete) = (true, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::{Lengths, PerGeneration};
    use crate::split::Weights;

    fn spec(percent: u8) -> DesiredSplit {
        DesiredSplit {
            split: Weights::percent(percent).unwrap(),
            old_draining: false,
        }
    }

    #[test]
    fn a_decision_counts_as_written_until_a_user_writes() {
        let dry_run = DryRun {
            memory: Memory::default(),
            last_message: String::new(),
            found: Some(spec(0)),
            wanted: Some(spec(20)),
        };
        for (found, seen) in [(0, 20), (7, 7)] {
            let mut observation = Observation {
                resource_generation: 1,
                split: spec(found).split,
                split_is_ours: false,
                split_is_incomplete: false,
                old_draining: false,
                superseded_by: None,
                workers: PerGeneration::default(),
                frontends: PerGeneration::default(),
                proxies: Vec::new(),
                clients: Default::default(),
                updates_to_old: None,
                sees_elsewhere: true,
                is_being_deleted: false,
                goes_back: Some(false),
                is_current: true,
                lengths: Lengths::default(),
                trial_result: None,
            };
            dry_run.overlay(spec(found), &mut observation);
            assert_eq!(observation.split, spec(seen).split);
            assert_eq!(observation.split_is_ours, found != seen);
        }
    }
}
