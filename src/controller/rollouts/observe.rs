//! Collects the inputs for the decisions of a rollout: its objects, the update that moves its traffic, and the proxies.
//!
//! A list that could not be read is an error, not an empty list. Contains no policy.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value as Json;

use super::super::old_frontends::frontends_by_name;
use super::super::spec_fields::SpecFields;
use super::super::{Key, deletion_check::DeletionCheck, observer::Observer, proxies::ProxyReport};
use super::autoscalers::{scaler, scalers};
use super::candidates::candidates;
use super::frontends::{self, Owner};
use super::memory;
use super::objects::{self, Objects};
use super::quota::{gpus_left, pods_left, quotas, resources_left};
use super::services::{leads_to, service_name};
use super::update_status::{new_serves, verdict};
use crate::error_chain::error_chain;
use crate::k8s::Object;
use crate::k8s::kinds::services;
use crate::k8s::workloads::{ScaleDownOrder, Scaled, pod_is_ready};
use crate::resource::rollout_status::{
    AcceptedGeneration, AcceptedStatus, DynamoRolloutStatus, RolloutPhase, ScaledGenerationStatus,
};
use crate::resource::{DynamoUpdateConfigStatus, Retire, read_status};
use crate::rollout::{Lengths, PerGeneration, Role};
use crate::scaling::{
    ClientRouting, GenerationObservation, LastWorker, Pod, PodToReplace, RemovalOrder,
    RoleReplicas, RolloutObservation, Serves, Traffic, UnfinishedWrite,
};
use crate::split::{Generation, Weights};

/// How long a worker must have been ready before requests move towards it.
const WARM: Duration = Duration::from_secs(5);

/// The observed state of a rollout.
pub(super) struct Observed {
    pub seen: RolloutObservation,
    pub objects: PerGeneration<Objects>,
    /// The Service of the clients, and the one of the new frontends.
    pub services: PerGeneration<Option<Object>>,
    /// The owners of old's frontends, if they can be retired.
    pub frontends: Vec<Owner>,
    /// Accepted workers that are gone.
    pub lost: PerGeneration<Option<Lost>>,
    pub update_status: DynamoUpdateConfigStatus,
}

/// Why workers are gone.
pub(super) struct Lost {
    /// As text for users.
    pub why: String,
    /// Whether nothing has replaced them that may have workers that serve.
    pub is_missing: bool,
}

/// The input of an observation.
pub(super) struct ObserveInput<'a> {
    pub key: &'a Key,
    pub rollout: &'a Object,
    pub before: &'a DynamoRolloutStatus,
    pub accepted: &'a AcceptedStatus,
    pub client_service: &'a str,
    pub retire: Retire,
    pub update: &'a Object,
    pub manager: &'a str,
    /// Whether pods can be marked to be removed first.
    pub may_mark: bool,
    /// Whether every write of this process is visible.
    pub shows_writes: bool,
    /// What an earlier leader may have sent.
    pub unfinished: Vec<UnfinishedWrite>,
    pub now: Timestamp,
}

/// Observes a rollout.
///
/// # Errors
/// When something is not listed or does not exist.
pub(super) fn observe(
    observer: &Observer,
    input: &ObserveInput,
) -> Result<Observed, objects::Error> {
    let (cache, namespace) = (&observer.cache, &*input.key.namespace);
    let accepted = input.accepted;
    let memory = input.before.memory.as_ref();
    let handed_over = memory.is_some_and(|memory| memory.handed_over);
    let (objects, gone) = workers_or_lost(observer, input, handed_over)?;
    let frontends = PerGeneration {
        old: frontends_by_name(cache, namespace, &accepted.source.frontends)?,
        new: frontends_by_name(cache, namespace, &accepted.target.frontends)?,
    };
    let owners = frontends::owners(
        cache,
        frontends::RetireQuery {
            namespace,
            old: &accepted.source,
            pods: &frontends.old,
            new_pods: &frontends.new,
            retire: input.retire,
            handed_over,
        },
    )?;
    let is_retired = is_retired(input, &objects.old, owners.as_deref().ok());
    let (update_status, _) = read_status(input.update.data.get("status").unwrap_or(&Json::Null));
    let generation = input.update.metadata.generation;
    let is_of_update = update_status.observed_generation == generation;
    let all = observer.last_reports(input.key);
    let reports = all.as_ref().map(|all| {
        let reports = all.iter().map(|(_, last)| last.as_ref()?.report());
        reports.collect::<Vec<_>>()
    });
    let scalers = scalers(cache, namespace)?;
    let chooses = input.may_mark && !input.before.phase.is_some_and(RolloutPhase::is_over);
    let candidates = candidates(observer, input.key, chooses, &objects)?;
    let observation =
        |generation: Generation, before: &Option<ScaledGenerationStatus>| GenerationObservation {
            roles: objects::accepted_roles(accepted_generation(accepted, generation))
                .map(|(role, _)| match objects.of(generation).get(&role) {
                    Some((_, scaled)) => {
                        let removes =
                            removal_order(scaled.removes, candidates.get(&(generation, role)));
                        let workers = workers((generation, role), scaled, before, input);
                        (role, RoleReplicas { removes, ..workers })
                    }
                    None => (role, no_workers()),
                })
                .collect(),
            serves: match generation {
                Generation::Old if ready(frontends.of(generation)) > 0 => Serves::Yes,
                Generation::Old => Serves::Unknown,
                Generation::New => new_serves(&update_status),
            },
            frontends: ready(frontends.of(generation)),
            scaler: scaler(objects.of(generation), &scalers),
            lost: lost(objects.of(generation)),
        };
    let quotas = cache.of(&quotas(), namespace)?;
    let service = cache.one(&services(), namespace, input.client_service)?;
    let new_service = cache.one(&services(), namespace, service_name(accepted))?;
    let seen = RolloutObservation {
        // Until this process has observed the update, its status may be outdated.
        unfinished: input.unfinished.clone(),
        is_current: input.shows_writes && cache.are_current() && all.is_some(),
        generations: PerGeneration {
            old: observation(Generation::Old, &input.before.source),
            new: observation(Generation::New, &input.before.target),
        },
        traffic: traffic(input, reports.as_deref().unwrap_or_default()),
        verdict: verdict(
            &update_status,
            (input.rollout, input.before),
            input.accepted,
            is_of_update,
        ),
        clients: ClientRouting {
            retired: is_retired,
            ..clients(observer, input, service.as_ref(), &frontends)
        },
        unchanged_for: Duration::ZERO,
        at_rest_for: Duration::ZERO,
        unready_for: Duration::ZERO,
        quota_left: gpus_left(&quotas),
        pods_left: pods_left(&quotas),
        resources_left: resources_left(&quotas),
        accepts_sizes: accepts_sizes(input),
        retire_obstacle: owners.as_ref().err().cloned(),
    };
    Ok(Observed {
        seen,
        frontends: owners.unwrap_or_default(),
        objects,
        lost: gone,
        services: PerGeneration {
            old: service,
            new: new_service,
        },
        update_status,
    })
}

/// Which replicas an object removes first: `marked` are the pods that can be marked for that.
fn removal_order(by_object: ScaleDownOrder, marked: Option<&Vec<Pod>>) -> RemovalOrder {
    match (by_object, marked) {
        (ScaleDownOrder::Last, _) => RemovalOrder::Last,
        (ScaleDownOrder::Unready, None) => RemovalOrder::Unready,
        (ScaleDownOrder::Unready, Some(pods)) => RemovalOrder::Marked(pods.clone()),
    }
}

/// The objects of the accepted workers of both generations, and why those that are gone are gone.
///
/// # Errors
/// When something is not listed, or when old cannot be counted.
fn workers_or_lost(
    observer: &Observer,
    input: &ObserveInput,
    handed_over: bool,
) -> Result<(PerGeneration<Objects>, PerGeneration<Option<Lost>>), objects::Error> {
    let (cache, namespace) = (&observer.cache, &*input.key.namespace);
    let accepted = input.accepted;
    if let Some(objects) = objects::accepted_in_place(cache, namespace, accepted)? {
        return Ok((objects, PerGeneration::default()));
    }
    // Once new serves everything, old is deleted by this rollout or by its owner.
    let old = match objects::without_lost(cache, namespace, &accepted.source, handed_over)? {
        // Another object of that name, or another component, may have workers that serve, but they are not counted.
        (_, Some(error)) if !handed_over && !error.is_missing() => return Err(error),
        old => old,
    };
    let new = objects::without_lost(cache, namespace, &accepted.target, false)?;
    let lost = |error: Option<objects::Error>| {
        error.map(|error| Lost {
            is_missing: error.is_missing(),
            why: error_chain(&error),
        })
    };
    let objects = PerGeneration {
        old: old.0,
        new: new.0,
    };
    let lost = PerGeneration {
        old: lost(old.1),
        new: lost(new.1),
    };
    Ok((objects, lost))
}

fn accepts_sizes(input: &ObserveInput) -> bool {
    let recorded = { input.before.memory.as_ref() }.and_then(|memory| memory.recorded_generation);
    recorded.is_some_and(|recorded| input.rollout.metadata.generation > Some(recorded))
}

fn workers(
    (generation, role): (Generation, Role),
    scaled: &Scaled,
    before: &Option<ScaledGenerationStatus>,
    input: &ObserveInput,
) -> RoleReplicas {
    let is_announced = memory::resizing(input.before).is_some_and(|resizing| {
        let size = resizing.sizes.get(role.as_str());
        resizing.generation == generation.as_str() && size == Some(&scaled.part.desired)
    });
    let warm = scaled.ready_since.as_ref().map_or(scaled.ready, |all| {
        let is_warm = |since: &&Timestamp| {
            let long = Duration::try_from(input.now.duration_since(**since));
            long.is_ok_and(|long| long >= WARM)
        };
        all.iter().filter(is_warm).count() as u32
    });
    let before = before.as_ref();
    RoleReplicas {
        desired: scaled.part.desired,
        observed: scaled.observed,
        present: scaled.present,
        terminating: scaled.terminating,
        ready: scaled.ready,
        warm: warm.min(scaled.ready),
        recorded: before.and_then(|generation| generation.roles.get(role.as_str())?.recorded),
        ours: is_announced || scaled.is_set_by(input.manager),
        grace: scaled.grace,
        resources: scaled.resources.clone(),
        removes: RemovalOrder::default(),
        leaving: { scaled.half.iter() }
            .flat_map(|half| &half.leaving)
            .map(|leaving| PodToReplace {
                name: objects::name_of(&leaving.pod).to_owned(),
                ready: leaving.is_ready,
            })
            .collect(),
    }
}

/// Why the object that has both generations no longer creates workers of this one.
fn lost(objects: &Objects) -> Option<String> {
    let mut halves = objects
        .values()
        .filter_map(|(_, scaled)| scaled.half.as_ref());
    halves.find_map(|half| half.lost.clone())
}

/// The workers of an object that has been deleted.
fn no_workers() -> RoleReplicas {
    RoleReplicas {
        observed: true,
        recorded: Some(0),
        ..RoleReplicas::default()
    }
}

const fn accepted_generation(
    accepted: &AcceptedStatus,
    generation: Generation,
) -> &AcceptedGeneration {
    match generation {
        Generation::Old => &accepted.source,
        Generation::New => &accepted.target,
    }
}

fn ready(pods: &[Object]) -> u32 {
    pods.iter().filter(|pod| pod_is_ready(pod)).count() as u32
}

fn traffic(input: &ObserveInput, reports: &[Option<ProxyReport>]) -> Traffic {
    let split = SpecFields::of(input.update)
        .weights()
        .unwrap_or(Weights::ALL_OLD);
    let (uid, generation) = (&input.update.metadata.uid, input.update.metadata.generation);
    let generation = generation.and_then(|generation| u64::try_from(generation).ok());
    let applied = |report: &Option<ProxyReport>| {
        let report = report.as_ref()?;
        let is_applied = report.uid == *uid && Some(report.generation) == generation;
        is_applied.then_some(split)
    };
    let known: Vec<&ProxyReport> = reports.iter().flatten().collect();
    // A proxy may report anything.
    let sum = |of: fn(&ProxyReport) -> u64| {
        let reported = known.iter().map(|report| of(report));
        reported.fold(0, u64::saturating_add)
    };
    let is_known = known.len() == reports.len() && !reports.is_empty();
    let mut lengths = Lengths::default();
    for report in &known {
        lengths.add(&report.lengths);
    }
    Traffic {
        split,
        applied: reports.iter().map(applied).collect(),
        applied_for: Duration::ZERO,
        open: is_known.then(|| PerGeneration {
            old: sum(|report| report.open.old),
            new: sum(|report| report.open.new),
        }),
        p99: lengths.percentile_99(),
    }
}

/// What leads to old is not taken from the status of the update, which may be outdated, and which others can write.
fn clients(
    observer: &Observer,
    input: &ObserveInput,
    service: Option<&Object>,
    frontends: &PerGeneration<Vec<Object>>,
) -> ClientRouting {
    let check = observer.deletion_check(input.key, input.update);
    let service = service.and_then(|service| leads_to(service, frontends));
    ClientRouting {
        service,
        selector_saved: !input.before.previous_selector.is_empty(),
        direct_to_new: service.map(|generation| generation == Generation::New),
        handed_over: input
            .before
            .memory
            .as_ref()
            .is_some_and(|memory| memory.handed_over),
        last_worker: check
            .as_ref()
            .map_or(LastWorker::Needed, DeletionCheck::last_worker),
        safe_to_delete_old: check.is_some_and(|check| check.is_safe_to_delete_old()),
        retired: false,
    }
}

/// Whether old has been retired as requested: according to the status, or because nothing is left to retire. A controller that
/// was killed after retiring everything no longer finds a proxy to confirm that this is safe.
fn is_retired(input: &ObserveInput, old: &Objects, frontends: Option<&[Owner]>) -> bool {
    let memory = input.before.memory.as_ref();
    let handed_over = memory.is_some_and(|memory| memory.handed_over);
    let is_left = |owner: &Owner| !frontends::is_retired(owner, input.retire);
    let frontends_left = frontends.is_none_or(|owners| owners.iter().any(is_left));
    let workers_left =
        input.retire == Retire::Delete && !old.is_empty() && !objects::is_in_place(input.accepted);
    let retires = input.retire != Retire::Keep;
    memory.is_some_and(|memory| memory.retired)
        || handed_over && retires && !frontends_left && !workers_left
}
