//! `DynamoUpdateConfig` and `DynamoRollout` as users write them, and the plan that an update defines. Reports every problem of a
//! manifest at once.
//!
//! Flags, files and clusters share one language: the types of the `spec` define the schema, files are checked against that
//! schema with line numbers, and one function builds the [`Plan`] for every source. Does not depend on where a manifest comes
//! from or how its plan is used.

#[cfg(feature = "kube")]
mod crd;
mod last_valid;
#[cfg(feature = "kube")]
mod lenient;
mod manifest;
mod object_name;
mod phase;
mod plan;
pub mod precedence;
mod problems;
mod rollout;
mod rules;
mod schema;
mod spec;
#[cfg(feature = "kube")]
pub mod status;
mod target;
mod target_scope;
mod tree;
mod update;
mod validate;
mod weights;
mod yaml;

use serde_json::Value as Json;

use crate::split::Weights;

#[cfg(feature = "kube")]
pub use self::{
    crd::{crd, crd_yaml, rollout_crd},
    lenient::{read_rollout_status, read_status},
    rollout::{DynamoRollout, status as rollout_status},
    spec::DynamoUpdateConfig,
    status::DynamoUpdateConfigStatus,
};
pub use self::{
    last_valid::LastValidStatus,
    manifest::{API_VERSION, Identity, KIND, Manifest},
    object_name::is_object_name,
    phase::UpdatePhase,
    plan::{Affinity, Analysis, Drain, Failover, Plan, Probe, ProbeKind, Tls},
    problems::{Problem, Problems},
    rollout::{
        Amount, AmountSpec, ClientsSpec, DynamoRolloutSpec, FrontendsSpec, HandoverSpec,
        IN_PLACE_KINDS, Intent, ROLLOUT_KIND, RetireSpec, RolloutManifest, SCALED_KINDS, SideSpec,
        StrategySpec, TrafficSpec, WorkloadSpec, load_rollout, rollout_schema,
    },
    schema::schema,
    spec::{
        AffinitySpec, AnalysisSpec, ContinuationMode, ContinuationSpec, DEFAULT_AFFINITY_HEADERS,
        DrainSpec, DynamoUpdateConfigSpec, FailoverSpec, OnFailure, ProbeSpec, RETRIED_AT,
        StepSpec, TlsSpec, WORKER_KINDS, WorkerSourceSpec, WorkersSpec,
    },
    target::{Host, Target, TargetError, parse_targets},
    target_scope::{OutOfScope, TargetScope},
    update::{ReportedStatus, UPDATE_MANAGER, Update, is_lifted},
    weights::{WeightsSpec, requested_split},
    yaml::MAX_BYTES,
};

/// Reads a manifest, in YAML or JSON, of at most [`MAX_BYTES`].
///
/// # Errors
///
/// All problems, in the order of their lines. Only a text that is unreadable as a whole (invalid YAML, several documents)
/// hides other problems.
pub fn load(text: &str) -> Result<(Manifest, Plan), Problems> {
    load_as(text, |_| None)
}

/// Like [`load`], but uses the split that `unless_given` returns if the spec gives none.
fn load_as(
    text: &str,
    unless_given: fn(&DynamoUpdateConfigSpec) -> Option<Weights>,
) -> Result<(Manifest, Plan), Problems> {
    let mut problems = Problems::default();
    let loaded = read(text, unless_given, &mut problems);
    problems.sort();
    match loaded {
        Some(loaded) if problems.is_empty() => Ok(loaded),
        _ => Err(problems),
    }
}

fn read(
    text: &str,
    unless_given: fn(&DynamoUpdateConfigSpec) -> Option<Weights>,
    problems: &mut Problems,
) -> Option<(Manifest, Plan)> {
    let root = yaml::parse(text, problems)?;
    let resource = manifest::only_resource(&root, KIND, problems)?;
    let (identity, node) = manifest::open(resource, KIND, schema(), problems);
    let mut fields = schema::read(node?, problems)?;
    // A placeholder for the one required field, so that the other fields are still checked.
    fields
        .entry("newFrontendService")
        .or_insert_with(|| Json::from(""));
    let spec: DynamoUpdateConfigSpec = serde_json::from_value(Json::Object(fields))
        .map_err(|error| problems.push(Problem::new("spec", error.to_string())))
        .ok()?;

    let mut found = Problems::default();
    let plan = validate::validate(identity.clone(), &spec, unless_given(&spec), &mut found);
    let known: Vec<String> = problems.iter().map(|known| known.path.clone()).collect();
    for problem in found.into_iter().filter(|found| !follows(found, &known)) {
        let line = resource.line_of(&problem.path);
        problems.push(problem.at(line));
    }
    let without_effect = spec.cluster_only();
    let manifest = Manifest {
        identity,
        spec,
        without_effect,
    };
    plan.map(|plan| (manifest, plan))
}

/// Whether `found` is only a consequence of a known problem, for which a field was left out.
fn follows(found: &Problem, known: &[String]) -> bool {
    // Either field can give the split: if one is invalid, the split is not missing.
    const SPLIT: [&str; 2] = ["spec.trafficSplitPercent", "spec.weights"];
    let is_split = SPLIT.contains(&&*found.path);
    // Without a valid mode, it is not known whether streams may move.
    let is_move = found.path == "spec.drain.moveAfterSeconds";
    known.iter().any(|path| {
        is_within(path, &found.path)
            || is_split && SPLIT.iter().any(|split| is_within(path, split))
            || is_move && is_within(path, "spec.failover")
    })
}

/// Whether `path` is the field at `parent` or lies within it.
fn is_within(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// What to tell the author of a manifest about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What is wrong; empty if the manifest can be used.
    pub problems: Problems,
    /// What is valid but may not be intended.
    pub notes: Vec<String>,
    /// What the manifest does, in one line; `None` if it cannot be used.
    pub summary: Option<String>,
}

/// Checks the text of a manifest file without using it.
///
/// A manifest that names a `sourceDeployment` is for a cluster, where the controller sets a missing split.
#[must_use]
pub fn check(text: &str) -> Report {
    let in_cluster = |spec: &DynamoUpdateConfigSpec| {
        let is_for_cluster = spec.source_deployment.is_some();
        is_for_cluster.then_some(Weights::ALL_OLD)
    };
    let (manifest, plan) = match load_as(text, in_cluster) {
        Ok(loaded) => loaded,
        Err(problems) => return check_rollout(text, problems),
    };
    let mut notes: Vec<String> = manifest
        .without_effect
        .iter()
        .map(|field| format!("spec.{field}: has an effect only in a cluster"))
        .collect();
    if !manifest.spec.gives_split() {
        notes.insert(0, UNDECIDED.to_owned());
    }
    Report {
        problems: Problems::default(),
        notes,
        summary: Some(plan.to_string()),
    }
}

/// Checks a text that is no update, for which `problems` say why: it may be a rollout.
fn check_rollout(text: &str, problems: Problems) -> Report {
    let is_other = |problems: &Problems| problems.iter().any(|problem| problem.path == "kind");
    let (problems, summary) = match load_rollout(text) {
        Ok(rollout) => (Problems::default(), Some(rollout.spec.to_string())),
        Err(found) if is_other(&problems) && !is_other(&found) => (found, None),
        Err(_) => (problems, None),
    };
    Report {
        problems,
        notes: Vec::new(),
        summary,
    }
}

/// The note on a manifest for a cluster that gives no split.
const UNDECIDED: &str = "spec.trafficSplitPercent: is not given, and neither is weights: in a cluster, all requests go to old \
                         until the controller has set them; `crossfade proxy --plan` refuses this file";

#[cfg(test)]
mod tests;
