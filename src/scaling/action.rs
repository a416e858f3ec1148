//! The actions of a rollout, and their names in metrics.

use super::{Retire, Sizes};
use crate::rollout::Role;
use crate::split::{Generation, Weights};

/// A change of the cluster that a decision requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScalingAction {
    /// Write the split.
    Split(Weights),
    /// Raise the sizes of a generation.
    Grow {
        generation: Generation,
        sizes: Sizes,
    },
    /// Mark these pods, and no others of the role, to be removed first.
    Mark {
        generation: Generation,
        role: Role,
        pods: Vec<String>,
    },
    /// Lower the sizes of a generation.
    Shrink {
        generation: Generation,
        sizes: Sizes,
    },
    /// Delete these pods of a generation, which their owner replaces with pods of the other generation.
    Replace {
        generation: Generation,
        role: Role,
        pods: Vec<String>,
    },
    /// Save the selector of the clients' Service.
    SaveSelector,
    /// Make the clients' Service select the frontends of this generation.
    Retarget(Generation),
    /// Retire the objects of old.
    Retire(Retire),
}

/// Defines the labels from one table. A kind of action without a label does not compile.
macro_rules! labels {
    ($($kind:ident => $label:literal,)*) => {
        impl ScalingAction {
            /// The labels of all kinds of actions.
            pub const LABELS: &[&str] = &[$($label),*];

            /// The kind of the action, as a label of metrics.
            #[must_use]
            pub const fn label(&self) -> &'static str {
                match self {
                    $(Self::$kind { .. } => $label,)*
                }
            }
        }
    };
}

labels! {
    Split => "split",
    Grow => "grow",
    Mark => "mark",
    Shrink => "shrink",
    Replace => "replace",
    SaveSelector => "save_selector",
    Retarget => "move_clients",
    Retire => "retire",
}
