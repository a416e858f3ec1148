//! Problems of a rollout beyond types and bounds; the API server rejects the same through [`super::rules`].

use super::{DynamoRolloutSpec, GenerationSpec, IN_PLACE_KINDS, rules};
use crate::resource::{
    problems::{Problem, Problems},
    validate,
};

/// Reports every problem that the schema cannot express.
pub(super) fn validate(spec: &DynamoRolloutSpec, problems: &mut Problems) {
    generation("spec.source", &spec.source, problems);
    generation("spec.target", &spec.target, problems);
    let mut report = |path: &str, message: &str| problems.push(Problem::new(path, message));
    if shares_workers(&spec.source, &spec.target) {
        report("spec.target", rules::SAME_WORKERS);
    }
    if spec.is_in_place() {
        in_place(spec, &mut report);
    }
    if spec.frontends.source == spec.frontends.target {
        report("spec.frontends.target", rules::SAME_FRONTENDS);
    }
    if spec.frontends.service == spec.client_service {
        report("spec.clientService", rules::SAME_SERVICE);
    }
    let strategy = &spec.strategy;
    for (field, amount) in [
        ("maxSurge", &strategy.max_surge),
        ("maxUnavailable", &strategy.max_unavailable),
    ] {
        if amount.read().is_none() {
            report(&format!("spec.strategy.{field}"), rules::AMOUNT);
        }
    }
    if strategy.max_surge.is_none() && strategy.max_unavailable.is_none() {
        report("spec.strategy", rules::NO_ROOM);
    }
    for (path, name) in [
        ("spec.frontends.source", &spec.frontends.source),
        ("spec.frontends.target", &spec.frontends.target),
        ("spec.frontends.service", &spec.frontends.service),
        ("spec.clientService", &spec.client_service),
    ] {
        validate::object_name(path, name, problems);
    }
    let percents: Vec<u8> = spec.steps.iter().map(|step| step.percent).collect();
    validate::steps(&percents, problems);
    let traffic = &spec.traffic;
    let mut found = Problems::default();
    validate::affinity(&traffic.affinity, &mut found);
    let failover = validate::failover(&traffic.failover, &mut found);
    validate::drain(&traffic.drain, failover.continuation.mode, &mut found);
    if let Some(probe) = &traffic.probe {
        validate::probe(probe, &mut found);
    }
    for mut problem in found.into_iter() {
        problem.path = problem.path.replacen("spec.", "spec.traffic.", 1);
        problems.push(problem);
    }
}

/// The settings that a rollout within one object cannot have.
fn in_place(spec: &DynamoRolloutSpec, report: &mut impl FnMut(&str, &str)) {
    if spec.source.replicas.is_some() || spec.target.replicas.is_some() {
        report("spec.target.replicas", rules::IN_PLACE_REPLICAS);
    }
    let strategy = &spec.strategy;
    if !strategy.max_surge.is_none() || strategy.max_unavailable.is_none() {
        report("spec.strategy", rules::IN_PLACE_LIMITS);
    }
}

/// Whether both generations name the same object, and it cannot hold the workers of both.
fn shares_workers(one: &GenerationSpec, other: &GenerationSpec) -> bool {
    let is_kind = { one.kind.as_deref() }.is_some_and(|kind| IN_PLACE_KINDS.contains(&kind));
    let are_single = one.name.is_some() && other.name.is_some();
    let others: Vec<_> = objects(other).collect();
    let is_shared = objects(one).any(|object| others.contains(&object));
    is_shared && !(are_single && is_kind)
}

/// The objects of a generation, by kind and name.
fn objects(generation: &GenerationSpec) -> impl Iterator<Item = (&str, &str)> {
    let single = generation.kind.as_deref().zip(generation.name.as_deref());
    let roles = generation.roles.values();
    single
        .into_iter()
        .chain(roles.map(|workload| (&*workload.kind, &*workload.name)))
}

/// Whether two roles name the same object, of a kind with a single size.
fn repeats(generation: &GenerationSpec) -> bool {
    let roles = generation.roles.values();
    let mut single = roles.filter(|workload| workload.kind != rules::SEVERAL_ROLES);
    let mut known = Vec::new();
    single.any(|workload| {
        let object = (&workload.kind, &workload.name);
        let is_known = known.contains(&object);
        known.push(object);
        is_known
    })
}

fn generation(path: &str, generation: &GenerationSpec, problems: &mut Problems) {
    let is_one = generation.kind.is_some() && generation.name.is_some();
    let is_none = generation.kind.is_none() && generation.name.is_none();
    let by_role = !generation.roles.is_empty();
    if is_one == by_role || is_none != by_role {
        problems.push(Problem::new(path, rules::SIDE));
    }
    if repeats(generation) {
        problems.push(Problem::new(format!("{path}.roles"), rules::SAME_ROLES));
    }
    if by_role && generation.replicas.is_some() {
        problems.push(Problem::new(format!("{path}.replicas"), rules::REPLICAS));
    }
    if let Some(name) = &generation.name {
        validate::object_name(&format!("{path}.name"), name, problems);
    }
    for (role, workload) in &generation.roles {
        let path = format!("{path}.roles.{role}");
        if !["prefill", "decode", "worker"].contains(&&**role) {
            problems.push(Problem::new(&path, rules::ROLES));
        }
        validate::object_name(&format!("{path}.name"), &workload.name, problems);
    }
}
