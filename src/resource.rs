//! `DynamoUpdateConfig` and `DynamoRollout` as users write them, and the plan that an update defines. Reports all problems of a
//! manifest together.
//!
//! Flags, files and clusters share one language: the types of the `spec` define the schema, files are checked against that
//! schema with line numbers, and one function builds the [`Plan`] for every source. Does not depend on where a manifest comes
//! from or how its plan is used.

mod cap;
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

use self::tree::Node;
use crate::split::Weights;

pub use self::{
    cap::{capped_share, is_lifted},
    last_valid::LastValidStatus,
    manifest::{API_VERSION, Identity, KIND, Manifest},
    object_name::is_object_name,
    phase::UpdatePhase,
    plan::{Affinity, Analysis, Drain, Failover, Plan, Probe, ProbeKind, Tls},
    problems::{Problem, Problems},
    rollout::{
        Amount, AmountSpec, ClientHandover, DynamoRolloutSpec, FrontendsSpec, GenerationSpec,
        Handover, IN_PLACE_KINDS, Intent, ROLLOUT_KIND, Retire, RolloutManifest, SCALED_KINDS,
        StrategySpec, TrafficSpec, WorkloadSpec, load_rollout, rollout_schema,
    },
    schema::schema,
    spec::{
        AffinitySpec, AnalysisSpec, ContinuationMode, ContinuationSpec, DEFAULT_AFFINITY_HEADERS,
        DrainSpec, DynamoUpdateConfigSpec, FailoverSpec, OnFailure, ProbeSpec, RETRIED_AT,
        StepSpec, TlsSpec, WORKER_KINDS, WorkerSourceSpec, WorkersSpec,
    },
    target::{Host, TargetAddress, TargetError, parse_targets},
    target_scope::{OutOfScope, TargetScope},
    update::{ReportedStatus, UPDATE_MANAGER, Update},
    weights::{WeightsSpec, requested_split},
    yaml::MAX_BYTES,
};
#[cfg(feature = "kube")]
pub use self::{
    crd::{crd, crd_yaml, rollout_crd},
    lenient::{read_rollout_status, read_status},
    rollout::{DynamoRollout, status as rollout_status},
    spec::DynamoUpdateConfig,
    status::DynamoUpdateConfigStatus,
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
    let root = yaml::parse(text, &mut problems);
    let loaded = root.and_then(|root| read(&root, unless_given, &mut problems));
    problems.sort();
    match loaded {
        Some(loaded) if problems.is_empty() => Ok(loaded),
        _ => Err(problems),
    }
}

fn read(
    root: &Node,
    unless_given: fn(&DynamoUpdateConfigSpec) -> Option<Weights>,
    problems: &mut Problems,
) -> Option<(Manifest, Plan)> {
    let resource = manifest::only_resource(root, KIND, problems)?;
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

/// Whether `found` only follows from a known problem: the field with that problem was left out.
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

/// The report on a manifest for its author.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidationReport {
    /// What is wrong; empty if the manifest can be used.
    pub problems: Problems,
    /// What is valid but may not be intended.
    pub notes: Vec<String>,
    /// What the manifest does, in one line; `None` if it cannot be used.
    pub summary: Option<String>,
}

/// Checks every document of a manifest file without using it. There is at least one report.
///
/// A manifest that names a `sourceDeployment` is for a cluster, where the controller sets a missing split, and where names are
/// required. Without a name, it can still be a plan for a proxy, if it gives the split.
#[must_use]
pub fn check(text: &str) -> Vec<ValidationReport> {
    let documents = yaml::documents(text);
    let are_several = documents.len() > 1;
    let reports = documents.into_iter().map(|document| {
        let is_update = is_update(&document);
        let mut report = check_document(document);
        if are_several && is_update {
            report.notes.push(SEVERAL.to_owned());
        }
        report
    });
    reports.collect()
}

fn is_update(document: &yaml::Document) -> bool {
    let kind = document.root.as_ref().and_then(|root| root.text("kind"));
    kind == Some(KIND)
}

fn check_document(document: yaml::Document) -> ValidationReport {
    let mut report = ValidationReport {
        problems: document.problems,
        ..ValidationReport::default()
    };
    let Some(root) = document.root else {
        return report;
    };
    let kind = match manifest::which(&root, [KIND, ROLLOUT_KIND]) {
        Ok(kind) => kind,
        Err(problems) => {
            report.problems = problems;
            return report;
        }
    };
    let summary = if kind == KIND {
        check_update(&root, &mut report)
    } else {
        let rollout = rollout::read(&root, &mut report.problems);
        rollout.map(|rollout| rollout.spec.to_string())
    };
    let mut ignored = Problems::default();
    if let Some(resource) = manifest::only_resource(&root, kind, &mut ignored) {
        let spec = resource.get("spec");
        let is_for_cluster = spec.is_some_and(|spec| spec.get("sourceDeployment").is_some());
        let gives = |field| spec.is_some_and(|spec| spec.get(field).is_some());
        // A proxy accepts it as well, without a name.
        let is_plan = kind == KIND && (gives("trafficSplitPercent") || gives("weights"));
        if kind == ROLLOUT_KIND || is_for_cluster {
            let has_name = manifest::check_names(resource, !is_plan, &mut report.problems);
            if !has_name && is_plan {
                report.notes.push(NAMELESS.to_owned());
            }
        }
    }
    report.problems.sort();
    report.summary = summary.filter(|_| report.problems.is_empty());
    report
}

/// Returns what the update does.
fn check_update(root: &Node, report: &mut ValidationReport) -> Option<String> {
    let in_cluster = |spec: &DynamoUpdateConfigSpec| {
        let is_for_cluster = spec.source_deployment.is_some();
        is_for_cluster.then_some(Weights::ALL_OLD)
    };
    let (manifest, plan) = read(root, in_cluster, &mut report.problems)?;
    if !report.problems.is_empty() {
        return None;
    }
    if !manifest.spec.gives_split() {
        report.notes.push(UNDECIDED.to_owned());
    }
    for field in manifest.without_effect {
        let note = format!("spec.{field}: takes effect only in a cluster");
        report.notes.push(note);
    }
    Some(plan.to_string())
}

/// The note on a file with several documents.
const SEVERAL: &str = "the file has several documents: `crossfade proxy --plan` rejects it";

/// The note on a manifest for a cluster that gives no split.
const UNDECIDED: &str = "spec.trafficSplitPercent: is not set, and neither is weights: in a cluster, all requests go to old \
                         until the controller has set them; `crossfade proxy --plan` rejects this file";

/// The note on a manifest for a cluster that has no name.
const NAMELESS: &str = "metadata.name: is not set, but required in a cluster; `crossfade proxy --plan` accepts this file";

#[cfg(test)]
mod tests;
