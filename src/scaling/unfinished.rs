//! Writes of an earlier leader that may still arrive. Each is conditional on the object being unchanged, so an unchanged object is
//! no proof that the write has failed.

use super::{
    RolloutObservation, ScalingAction, Sizes, Wait,
    progress::{Next, Progress},
};
use crate::split::Generation;

/// A write that an earlier leader may have sent, and that may still arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnfinishedWrite {
    /// These sizes of a generation.
    Resize {
        generation: Generation,
        sizes: Sizes,
    },
    /// Retiring the objects of old.
    Retire,
}

impl UnfinishedWrite {
    /// Whether the objects show its result. Then nothing of it can arrive any more.
    fn is_carried_out(&self, seen: &RolloutObservation) -> bool {
        match self {
            Self::Resize { generation, sizes } => {
                let roles = &seen.generations.of(*generation).roles;
                sizes.iter().all(|(role, size)| {
                    let workers = roles.get(role);
                    workers.is_none_or(|workers| workers.desired == *size)
                })
            }
            Self::Retire => seen.clients.retired,
        }
    }

    /// Whether a step is safe although this write may still arrive: the same write, of which only one can take effect, or a step
    /// that neither writes anything nor reports an end.
    fn permits(&self, progress: Progress, next: &Next) -> bool {
        let action = match next {
            Next::Act(action, _) => action,
            Next::Wait(_) => {
                return !matches!(
                    progress,
                    Progress::Complete | Progress::RolledBack | Progress::Partition
                );
            }
        };
        match (self, action) {
            // It changes no size.
            (_, ScalingAction::Mark { .. }) => true,
            (
                Self::Resize { generation, sizes },
                ScalingAction::Grow {
                    generation: of,
                    sizes: to,
                }
                | ScalingAction::Shrink {
                    generation: of,
                    sizes: to,
                },
            ) => (generation, sizes) == (of, to),
            (Self::Retire, ScalingAction::Retire(_)) => true,
            _ => false,
        }
    }
}

/// What to do instead of `next` until no write of an earlier leader can arrive.
pub(super) fn hold_back(seen: &RolloutObservation, progress: Progress, next: Next) -> Next {
    let mut unfinished = { seen.unfinished.iter() }.filter(|write| !write.is_carried_out(seen));
    match unfinished.all(|write| write.permits(progress, &next)) {
        true => next,
        false => Next::Wait(vec![Wait::EarlierLeader]),
    }
}
