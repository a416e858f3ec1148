//! Reads the workers of a rollout from manifests: their number, their GPUs, and their grace period.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value as Json;

use super::sizes::PerRole;
use crate::dynamo_graph;
use crate::files::explain;
use crate::managed_update::{Accepted, SizeError, full_sizes, role};
use crate::resource::{DynamoRolloutSpec, GenerationSpec};
use crate::rollout::{PerGeneration, Role};
use crate::scaling::Sizes;
use crate::simulation::MAX_GPUS;

/// The defaults of Kubernetes and of Dynamo's operator.
const DEFAULT_GRACE: u64 = 30;
const GRACE_OF_GRAPHS: u64 = 60;

/// The values on the command line.
#[derive(Clone, Copy)]
pub(super) struct Overrides<'a> {
    pub replicas: Option<&'a PerRole>,
    pub gpus: Option<&'a PerRole>,
}

/// What manifests define about workers.
pub(super) struct Workers {
    generations: PerGeneration<BTreeMap<Role, RoleWorkers>>,
    /// The shortest grace period, if any object was found.
    pub grace: Option<Duration>,
    /// Whether all objects are of a kind that allows choosing which pods go first.
    pub can_be_chosen: bool,
}

/// The workers of one role.
#[derive(Clone, Copy, Default)]
struct RoleWorkers {
    replicas: Option<u32>,
    gpus: Option<u32>,
    grace: Option<u64>,
}

impl Workers {
    pub fn of(spec: &DynamoRolloutSpec, objects: &[Json]) -> Self {
        let old = generation(&spec.source, objects);
        let mut new = generation(&spec.target, objects);
        // One object without a manifest has the roles of the other generation.
        let is_unknown = |found: &BTreeMap<Role, RoleWorkers>| {
            found
                .values()
                .all(|found| found.replicas.is_none() && found.grace.is_none())
        };
        if spec.target.roles.is_empty() && is_unknown(&new) {
            new = old
                .keys()
                .map(|role| (*role, RoleWorkers::default()))
                .collect();
        }
        let all = || old.values().chain(new.values());
        let grace = all().filter_map(|found| found.grace).min();
        let kinds = [&spec.source, &spec.target].into_iter().flat_map(kinds);
        let can_be_chosen = { kinds }.all(|kind| kind == "Deployment");
        Self {
            grace: grace.map(Duration::from_secs),
            can_be_chosen,
            generations: PerGeneration { old, new },
        }
    }

    /// The sizes that new begins with, as its manifests say.
    pub fn begun(&self) -> Sizes {
        let new = self.generations.new.iter();
        new.filter_map(|(role, found)| Some((*role, found.replicas.filter(|size| *size > 0)?)))
            .collect()
    }

    /// The generations as the rollout would accept them.
    pub fn accepted(
        &self,
        spec: &DynamoRolloutSpec,
        stated: Overrides<'_>,
    ) -> Result<Accepted, String> {
        for (flag, numbers) in [("--replicas", stated.replicas), ("--gpus", stated.gpus)] {
            let Some(PerRole::Each(numbers)) = numbers else {
                continue;
            };
            let is_known = |role: &Role| {
                self.generations.old.contains_key(role) || self.generations.new.contains_key(role)
            };
            if let Some(role) = numbers.keys().find(|role| !is_known(role)) {
                return Err(format!("{flag}: the rollout has no {}", role.workers()));
            }
        }
        let mut full = self.full(spec, stated.replicas)?;
        if let Some(replicas) = stated.replicas {
            for sizes in [&mut full.old, &mut full.new] {
                for (role, size) in sizes {
                    *size = replicas.of(*role).unwrap_or(*size);
                }
            }
        }
        let gpus = assumed(PerGeneration {
            old: gpus(&self.generations.old, stated),
            new: gpus(&self.generations.new, stated),
        });
        let mut each = gpus.old.values().chain(gpus.new.values());
        if each.any(|gpus| *gpus > MAX_GPUS) {
            return Err(format!(
                "at most {MAX_GPUS} GPUs per worker can be simulated"
            ));
        }
        Ok(Accepted { gpus, full })
    }

    fn full(
        &self,
        spec: &DynamoRolloutSpec,
        stated: Option<&PerRole>,
    ) -> Result<PerGeneration<Sizes>, String> {
        let sizes = |found: &BTreeMap<Role, RoleWorkers>| -> Sizes {
            let size = |role: &Role, found: &RoleWorkers| {
                let stated = stated.and_then(|stated| stated.of(*role));
                stated.or(found.replicas).unwrap_or_default()
            };
            found
                .iter()
                .map(|(role, found)| (*role, size(role, found)))
                .collect()
        };
        let now = PerGeneration {
            old: sizes(&self.generations.old),
            new: sizes(&self.generations.new),
        };
        full_sizes(spec, &now).map_err(|error| match error {
            SizeError::NoSize(role) => format!(
                "the size of source is unknown (role {role}): add its manifest with -f, or use --replicas"
            ),
            error => format!("{error}, or use --replicas"),
        })
    }
}

/// The GPUs of one replica of each role; none if nothing defines them.
fn gpus(found: &BTreeMap<Role, RoleWorkers>, stated: Overrides<'_>) -> BTreeMap<Role, Option<u32>> {
    let gpus = |role: &Role, found: &RoleWorkers| {
        let stated = stated.gpus.and_then(|gpus| gpus.of(*role));
        stated.or(found.gpus)
    };
    found
        .iter()
        .map(|(role, found)| (*role, gpus(role, found)))
        .collect()
}

/// Assumes one GPU where nothing defines them, and says so once for each role.
fn assumed(gpus: PerGeneration<BTreeMap<Role, Option<u32>>>) -> PerGeneration<BTreeMap<Role, u32>> {
    let all = gpus.old.iter().chain(&gpus.new);
    let unknown: BTreeSet<Role> = all
        .filter_map(|(role, gpus)| gpus.is_none().then_some(*role))
        .collect();
    for role in unknown {
        let kind = match role {
            Role::Worker => String::new(),
            role => format!("{role} "),
        };
        explain(format_args!(
            "assumed: one GPU for each {kind}worker; set another number with --gpus"
        ));
    }
    let known = |gpus: BTreeMap<Role, Option<u32>>| {
        let gpus = gpus.into_iter();
        gpus.map(|(role, gpus)| (role, gpus.unwrap_or(1))).collect()
    };
    PerGeneration {
        old: known(gpus.old),
        new: known(gpus.new),
    }
}

fn kinds(generation: &GenerationSpec) -> impl Iterator<Item = &str> {
    let roles = generation
        .roles
        .values()
        .map(|workload| workload.kind.as_str());
    generation.kind.as_deref().into_iter().chain(roles)
}

/// The roles of a generation, with the values in their manifests.
fn generation(spec: &GenerationSpec, objects: &[Json]) -> BTreeMap<Role, RoleWorkers> {
    let object = |kind: &str, name: &str| {
        let is_meant =
            |object: &&Json| object["kind"] == kind && object["metadata"]["name"] == name;
        objects.iter().find(is_meant)
    };
    if !spec.roles.is_empty() {
        let roles = spec.roles.iter().filter_map(|(name, workload)| {
            let object = object(&workload.kind, &workload.name);
            Some((role(name)?, object.map(plain).unwrap_or_default()))
        });
        return roles.collect();
    }
    let (kind, name) = (spec.kind.as_deref(), spec.name.as_deref());
    let object = object(kind.unwrap_or_default(), name.unwrap_or_default());
    match object {
        Some(graph) if kind == Some("DynamoGraphDeployment") => components(graph),
        Some(object) => [(Role::Worker, plain(object))].into(),
        None => [(Role::Worker, RoleWorkers::default())].into(),
    }
}

/// The workers of an object with a single pod template.
fn plain(object: &Json) -> RoleWorkers {
    let spec = &object["spec"];
    let leader_worker = &spec["leaderWorkerTemplate"];
    let (pod, pods) = match leader_worker.is_object() {
        true => (
            &leader_worker["workerTemplate"]["spec"],
            &leader_worker["size"],
        ),
        false => (&spec["template"]["spec"], &Json::Null),
    };
    let grace = pod["terminationGracePeriodSeconds"].as_u64();
    RoleWorkers {
        replicas: Some(number(&spec["replicas"]).unwrap_or(1)),
        gpus: pod.is_object().then(|| times(gpus_of(pod), pods)),
        grace: pod.is_object().then(|| grace.unwrap_or(DEFAULT_GRACE)),
    }
}

/// The worker components of a `DynamoGraphDeployment`, in both versions.
fn components(graph: &Json) -> BTreeMap<Role, RoleWorkers> {
    let mut found = BTreeMap::new();
    for component in dynamo_graph::components(&graph["spec"]) {
        let Some(kind) = component.sub_kind.or(component.kind) else {
            continue;
        };
        let spec = component.spec;
        let (pod, gpus) = match component.is_service {
            true => (
                &spec["extraPodSpec"],
                number(&spec["resources"]["limits"]["gpu"]).unwrap_or_default(),
            ),
            false => {
                let pod = &spec["podTemplate"]["spec"];
                (pod, gpus_of(pod))
            }
        };
        let gpus = times(gpus, &spec["multinode"]["nodeCount"]);
        note(&mut found, kind, spec, pod, gpus);
    }
    found
}

fn note(
    found: &mut BTreeMap<Role, RoleWorkers>,
    kind: &str,
    component: &Json,
    pod: &Json,
    gpus: u32,
) {
    if let Some(role) = role(kind) {
        let grace = pod["terminationGracePeriodSeconds"].as_u64();
        let own = RoleWorkers {
            replicas: Some(number(&component["replicas"]).unwrap_or(1)),
            gpus: Some(gpus),
            grace: Some(grace.unwrap_or(GRACE_OF_GRAPHS)),
        };
        found.insert(role, own);
    }
}

/// The GPUs of a pod: the sum over its containers, as for extended resources.
fn gpus_of(pod: &Json) -> u32 {
    let containers = pod["containers"].as_array().into_iter().flatten();
    let limits = containers.filter_map(|container| container["resources"]["limits"].as_object());
    let gpus = limits.flatten().filter(|(name, _)| name.ends_with("/gpu"));
    gpus.filter_map(|(_, count)| number(count))
        .fold(0, u32::saturating_add)
}

/// The GPUs of this many pods, of one if the manifest does not say how many.
fn times(gpus: u32, pods: &Json) -> u32 {
    gpus.saturating_mul(number(pods).unwrap_or(1))
}

/// A number, or one in quotes. One that is too large counts as the largest, which is refused.
fn number(json: &Json) -> Option<u32> {
    let text = || json.as_str().and_then(|text| text.parse::<u64>().ok());
    let number = json.as_u64().or_else(text)?;
    Some(u32::try_from(number).unwrap_or(u32::MAX))
}
