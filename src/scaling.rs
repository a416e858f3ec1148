//! Decides how a managed update scales both generations: maps an observation of the cluster to at most one action.
//!
//! One pure function, [`decide`], maps [`RolloutSettings`] and the observed state ([`RolloutObservation`]) to a
//! [`ScalingDecision`]. The caller carries out the one [`ScalingAction`], reads the cluster again, and decides again. A decision
//! needs only what is in the cluster, so a restarted controller continues where the previous one stopped.
//!
//! # Two numbers
//!
//! A rollout is two numbers: the units of new and the units of old. A unit is the smallest set of workers that keeps the
//! proportion of the roles ([`Shape`]), and both numbers are read back from `spec.replicas`. If a whole generation has `u`
//! units:
//!
//! - `new + old ≤ u + maxSurge`, where a terminating pod still counts;
//! - `ready new + ready old ≥ u − maxUnavailable`.
//!
//! Fractions of a replica are rounded up in each generation: prefill 4 and decode 2 with a surge of 1 may have one decode
//! worker more than half of five. `gpuBudget` is exact.
//!
//! # One action at a time
//!
//! The first rule that applies:
//!
//! 1. All requests are moved away from a generation that cannot serve, no matter what the settings are.
//! 2. The observation may be outdated, the owner holds the rollout, or another client has set a size: no action.
//!    The same applies while a write of an earlier leader may still arrive, except that this write may be repeated
//!    ([`UnfinishedWrite`]).
//! 3. Before the first write: stop if the limits make the end unreachable, or if workers get less time to terminate than streams
//!    need.
//! 4. The split follows the ready units; new units count once they are warm.
//! 5. A generation that needs more units grows, as far as surge, budget and quota allow.
//! 6. A generation that needs fewer units shrinks, as far as capacity allows. Requests are moved away first: the split gives
//!    the generation only what its remaining units can serve, every proxy has applied that, and the open streams fit. The last
//!    unit is removed after its last stream. Without workers of one role, a generation serves nothing, so its remaining
//!    workers are removed to make room, except for one worker of each role until the other generation serves.
//! 7. New serves everything: clients are routed to its frontends, and old is retired.
//!
//! Rolling back is the same with the generations swapped, without analysis and steps. A third generation starts after the
//! second has been rolled back. An undo after the end is a rollout in which the caller swaps the generations.
//!
//! # In place
//!
//! If one object has the workers of both generations, `new + old` is always `u`: what one generation loses, the other
//! generation gains. So there is no separate action to grow a generation, there is no surge, and `maxUnavailable` must be at
//! least one unit. Everything else is the same. An object that has created a pod of new does not revert it by itself: the pod
//! is deleted once it may be removed ([`ScalingAction::Replace`]).
//!
//! # For the caller
//!
//! - Make each write conditional on the `resourceVersion` that was read. Wait for the result of a write. If there is none, wait
//!   until the write can no longer take effect, and read again: [`RolloutObservation::is_current`] indicates this.
//! - Record a size after writing it. A size that is neither recorded nor written by the rollout was set by another client.
//! - Remember a failed verdict until the owner decides: once all requests are back on old, nothing is compared.

mod action;
mod assessment;
mod decide;
mod ending;
mod feasible;
mod limits;
mod observation;
mod obstacles;
mod progress;
mod settings;
mod shape;
mod shrink;
mod unfinished;
mod wait;

pub use self::{
    action::ScalingAction,
    decide::{ScalingDecision, decide},
    feasible::feasible_path,
    observation::{
        ClientRouting, GenerationObservation, LastWorker, Pod, PodToReplace, RemovalOrder,
        RoleReplicas, RolloutObservation, Serves, Traffic,
    },
    progress::Progress,
    settings::{RolloutSettings, ScaleStep, Strategy},
    shape::{Shape, Sizes},
    unfinished::UnfinishedWrite,
    wait::Wait,
};

pub use crate::resource::{Amount, ClientHandover, Handover, Intent, Retire};
pub use crate::rollout::{OnFailure, TrialVerdict};

#[cfg(test)]
mod tests;
