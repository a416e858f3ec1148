//! The end of a rollout: routing the clients, and retiring old.

use super::{
    ClientHandover, Retire, ScalingAction, Wait,
    assessment::Assessment,
    obstacles,
    progress::{Next, Progress},
};
use crate::split::Generation;

/// Routes clients back to the frontends of old before new loses a worker, if the rollout had routed them to new.
pub(super) fn clients_back(assessment: &Assessment) -> Option<Next> {
    let clients = &assessment.seen.clients;
    let has_moved =
        assessment.settings.handover.clients == ClientHandover::Automatic && clients.selector_saved;
    if !has_moved || assessment.targets.old == 0 || clients.service != Some(Generation::New) {
        return None;
    }
    Some(match assessment.seen.generations.old.frontends {
        // Until then, the frontends of new serve the clients.
        0 => Next::Wait(vec![Wait::Frontend(Generation::Old)]),
        // After an undo, the proxies of old follow the split again, and may still send requests to their earlier targets.
        _ if !assessment.is_applied() && !assessment.is_out(Generation::New) => {
            Next::Wait(vec![assessment.unapplied()])
        }
        _ => Next::Act(ScalingAction::Retarget(Generation::Old), Vec::new()),
    })
}

/// The next step of the end, once both generations have their target sizes.
pub(super) fn end(assessment: &Assessment) -> Option<(Option<Progress>, Next)> {
    for generation in Generation::ALL {
        let target = assessment
            .settings
            .shape
            .sizes(generation, *assessment.targets.of(generation));
        if assessment.units(generation).sizes != target {
            return None;
        }
    }
    let is_empty = |generation: Generation| *assessment.targets.of(generation) == 0;
    let ends =
        |generation: Generation| is_empty(generation) && assessment.units(generation).occupied > 0;
    if let Some(generation) = Generation::ALL
        .into_iter()
        .find(|generation| ends(*generation))
    {
        return Some((None, Next::Wait(vec![Wait::Terminating(generation)])));
    }
    if assessment.goes_back {
        let waits = without_frontend(assessment, Generation::Old);
        return Some((Some(Progress::RolledBack), Next::Wait(waits)));
    }
    if !is_empty(Generation::Old) {
        return Some(at_target(assessment));
    }
    Some(hand_over(assessment))
}

/// Without a ready frontend, a generation serves nothing, whatever its workers.
fn without_frontend(assessment: &Assessment, generation: Generation) -> Vec<Wait> {
    match assessment.seen.generations.of(generation).frontends {
        0 => vec![Wait::Frontend(generation)],
        _ => Vec::new(),
    }
}

/// New has reached its current target.
fn at_target(assessment: &Assessment) -> (Option<Progress>, Next) {
    let units = assessment.settings.shape.units();
    let partition = assessment.settings.strategy.partition.min(units);
    match assessment.targets.old == partition {
        true => (Some(Progress::Partition), Next::Wait(Vec::new())),
        false => (None, Next::Wait(vec![Wait::Step(assessment.targets.new)])),
    }
}

fn hand_over(assessment: &Assessment) -> (Option<Progress>, Next) {
    let clients = &assessment.seen.clients;
    let handover = assessment.settings.handover;
    let complete = || {
        let waits = without_frontend(assessment, Generation::New);
        (Some(Progress::Complete), Next::Wait(waits))
    };
    if clients.retired {
        return complete();
    }
    let act = |action| (None, Next::Act(action, Vec::new()));
    let wait = |wait| (None, Next::Wait(vec![wait]));
    if clients.service != Some(Generation::New) {
        return match handover.clients {
            ClientHandover::Manual => wait(Wait::Clients),
            // Its owner has intentionally changed it since.
            ClientHandover::Automatic if clients.handed_over => wait(Wait::Clients),
            ClientHandover::Automatic if assessment.seen.generations.new.frontends == 0 => {
                wait(Wait::Frontend(Generation::New))
            }
            ClientHandover::Automatic if !clients.selector_saved => {
                act(ScalingAction::SaveSelector)
            }
            ClientHandover::Automatic => act(ScalingAction::Retarget(Generation::New)),
        };
    }
    if let Some(retire_obstacle) = obstacles::retire_obstacle(assessment) {
        return wait(retire_obstacle);
    }
    match handover.retire {
        Retire::Keep => complete(),
        _ if !clients.safe_to_delete_old => wait(Wait::Unsafe),
        retire => act(ScalingAction::Retire(retire)),
    }
}
