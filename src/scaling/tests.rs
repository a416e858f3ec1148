//! Tests the decision on a modelled cluster: as tables, and in long random histories.

#[cfg(test)]
mod cluster;
#[cfg(test)]
mod simulator;
#[cfg(test)]
mod tables;

use std::time::Duration;

use self::cluster::Cluster;
use super::*;
use crate::rollout::{PerGeneration, Role};
use crate::split::{Generation, Weights};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Settings for two generations of the same shape.
fn settings(roles: &[(Role, u32)]) -> RolloutSettings {
    let sizes: Sizes = roles.iter().copied().collect();
    let gpus: std::collections::BTreeMap<_, _> = roles.iter().map(|(role, _)| (*role, 8)).collect();
    RolloutSettings {
        given: [].into(),
        shape: Shape::of(PerGeneration {
            old: sizes.clone(),
            new: sizes,
        })
        .expect("sizes are not 0"),
        gpus: PerGeneration {
            old: gpus.clone(),
            new: gpus,
        },
        strategy: Strategy::default(),
        intent: Intent::Run,
        superseded: false,
        handover: Handover::default(),
        in_place: false,
    }
}
