//! The Events of a rollout: each change of its phase, each stop, each step, and each action. Pure.

use super::status::action_text;
use crate::k8s::{Notice, Object};
use crate::printable::counted;
use crate::resource::rollout_status::{DynamoRolloutStatus, RolloutPhase, condition};
use crate::resource::{Identity, ROLLOUT_KIND};
use crate::scaling::ScalingAction;

/// Which rollout the Events are about, and when they occur.
pub(super) struct About {
    identity: Identity,
    /// In milliseconds since the epoch. Distinguishes Events of one reason.
    occasion: u64,
}

impl About {
    pub fn of(rollout: &Object, occasion: u64) -> Self {
        let metadata = &rollout.metadata;
        Self {
            identity: Identity {
                namespace: metadata.namespace.clone(),
                name: metadata.name.clone(),
                uid: metadata.uid.clone(),
                generation: metadata.generation,
            },
            occasion,
        }
    }

    fn notice(&self, reason: &'static str, note: String, warning: bool) -> Notice {
        Notice {
            about: self.identity.clone(),
            kind: ROLLOUT_KIND,
            reason,
            note,
            warning,
            occasion: self.occasion,
        }
    }
}

/// The Events for the changes between two statuses.
pub(super) fn changes(
    about: &About,
    before: &DynamoRolloutStatus,
    after: &DynamoRolloutStatus,
) -> Vec<Notice> {
    let mut notices = Vec::new();
    let note = || after.message.clone().unwrap_or_default();
    let phase = after.phase.filter(|phase| before.phase != Some(*phase));
    if let Some(phase) = phase {
        notices.push(match phase {
            RolloutPhase::Pending => {
                let accepted = after.accepted.as_ref();
                let units = accepted.map_or(0, |accepted| accepted.units);
                let undo = accepted.and_then(|accepted| accepted.undo_to);
                let undo = undo.map(|number| format!(", to go back to revision {number}"));
                let units = counted(units.into(), "unit");
                let note = format!("accepted with {units}{}", undo.unwrap_or_default());
                about.notice("Accepted", note, false)
            }
            _ => about.notice(phase.as_str(), note(), is_bad(phase)),
        });
    }
    // A stop has already been reported as a phase.
    let is_reported = phase.is_some_and(is_bad);
    if stalls(after) && !stalls(before) && !is_reported {
        notices.push(about.notice(RolloutPhase::Stalled.as_str(), note(), true));
    }
    let next = |status: &DynamoRolloutStatus| status.step.map(|step| step.next);
    if let (Some(from), Some(to)) = (next(before), next(after))
        && from != to
    {
        let to = counted(to.into(), "unit");
        let note = format!("the target of new changed from {from} to {to}");
        notices.push(about.notice("StepChanged", note, false));
    }
    notices
}

/// An action that was carried out.
pub(super) fn acted(about: &About, action: &ScalingAction) -> Notice {
    let reason = match action {
        ScalingAction::Split(_) => "SplitChanged",
        ScalingAction::Grow { .. } => "ScaledUp",
        ScalingAction::Shrink { .. } => "ScaledDown",
        ScalingAction::Mark { .. } => "PodsMarked",
        ScalingAction::Replace { .. } => "PodsReplaced",
        ScalingAction::SaveSelector => "SelectorSaved",
        ScalingAction::Retarget(_) => "ClientsMoved",
        ScalingAction::Retire(_) => "Retired",
    };
    about.notice(reason, action_text(action), false)
}

const fn is_bad(phase: RolloutPhase) -> bool {
    matches!(
        phase,
        RolloutPhase::Refused | RolloutPhase::Contested | RolloutPhase::Stalled
    )
}

fn stalls(status: &DynamoRolloutStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|known| known.type_ == condition::STALLED && known.status == "True")
}
