//! An update parsed from the API server's object: its settings, its memory, and who owns the split.
//!
//! Does not depend on the rest of the cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::DynamicObject;
use serde_json::Value as Json;

use super::{ControllerSettings, Key};
use crate::k8s::{Object, identity_of, update_of};
use crate::resource::{
    DynamoUpdateConfigSpec, DynamoUpdateConfigStatus, Identity, Plan, Problems, RETRIED_AT,
    ROLLOUT_KIND, TargetScope, WorkerSourceSpec, read_status,
};
use crate::rollout::{self, DesiredSplit, Memory, PerGeneration, Role};
use crate::split::Weights;

pub(super) use crate::resource::UPDATE_MANAGER as MANAGER;

/// An update with a valid spec.
pub(super) struct ParsedUpdate {
    pub key: Key,
    pub identity: Identity,
    pub version: String,
    /// The last request to retry, if any.
    pub retry: Option<String>,
    pub spec: DynamoUpdateConfigSpec,
    pub plan: Plan,
    pub status: DynamoUpdateConfigStatus,
    /// The parts of the memory that could not be read, if any.
    pub forgotten: Option<String>,
    /// Whether the controller wrote the split last, or the spec leaves the split to it.
    pub split_is_ours: bool,
    /// Whether it is being deleted.
    pub is_being_deleted: bool,
    /// The rollout that manages it, if any.
    pub rollout: Option<String>,
    /// Whether the split is not in the form that the controller writes, although no user has set a different split.
    pub lacks_split: bool,
}

/// The key of an update.
pub(super) fn key(object: &DynamicObject) -> Key {
    Key {
        namespace: object.metadata.namespace.clone().unwrap_or_default(),
        name: object.metadata.name.clone().unwrap_or_default(),
    }
}

/// The status, and the paths of its parts that could not be read.
pub(super) fn status(object: &DynamicObject) -> (DynamoUpdateConfigStatus, Vec<String>) {
    let status = object.data.get("status");
    status.map(read_status).unwrap_or_default()
}

/// The unreadable parts of the memory, out of all unreadable paths of a status. Everything else is recomputed anyway.
fn forgotten(lost: &[String]) -> Option<String> {
    const MEMORY: &str = "status.memory";
    let of_memory = |path: &&String| MEMORY.starts_with(&***path) || path.starts_with(MEMORY);
    let lost: Vec<&str> = lost.iter().filter(of_memory).map(String::as_str).collect();
    (!lost.is_empty()).then(|| lost.join(", "))
}

/// The name of the rollout that manages an update.
fn rollout(update: &DynamicObject) -> Option<String> {
    let mut owners = update.metadata.owner_references.iter().flatten();
    let owner =
        owners.find(|owner| owner.kind == ROLLOUT_KIND && owner.controller == Some(true))?;
    Some(owner.name.clone())
}

impl ParsedUpdate {
    /// Parses an update.
    ///
    /// # Errors
    /// All problems of its spec.
    pub fn read(object: &Object, settings: &ControllerSettings) -> Result<Self, Problems> {
        let scope = TargetScope {
            namespace: key(object).namespace,
            domain: settings.options.domain.clone(),
            anywhere: settings.options.allow_any_target,
        };
        Self::read_within(object, &scope)
    }

    /// Parses an update that may use the targets of `scope`.
    ///
    /// # Errors
    /// Same as [`Self::read`].
    pub fn read_within(object: &Object, scope: &TargetScope) -> Result<Self, Problems> {
        let key = key(object);
        let (status, lost) = status(object);
        let mut update = update_of(object);
        update.status.wanted = status.wanted.and_then(|split| split.exact());
        let (manifest, plan) = update.plan(scope)?;
        let given = SplitForms::of(object);
        let owned = SplitForms::owned(object);
        Ok(Self {
            identity: identity_of(object),
            version: object.metadata.resource_version.clone().unwrap_or_default(),
            retry: retry(object),
            spec: manifest.spec,
            plan,
            status,
            forgotten: forgotten(&lost),
            is_being_deleted: object.metadata.deletion_timestamp.is_some(),
            rollout: rollout(object),
            split_is_ours: owned == SplitForms::BOTH || given == SplitForms::NONE,
            // A user who removes only the percentage from an applied manifest leaves the weights that the controller wrote.
            lacks_split: given == SplitForms::NONE || (!given.percent && owned.weights),
            key,
        })
    }

    /// The split in the spec, before any cap.
    pub fn split(&self) -> Weights {
        self.plan.capped_from.unwrap_or(self.plan.weights)
    }

    /// The fields that [`rollout::Action::SetSplit`] writes, as they are.
    pub fn desired_split(&self) -> DesiredSplit {
        DesiredSplit {
            split: self.split(),
            old_draining: self.spec.old_draining,
        }
    }

    pub fn memory(&self) -> Memory {
        self.status.memory.clone().unwrap_or_default()
    }

    /// The settings for a decision.
    pub fn settings(&self) -> rollout::UpdateSettings {
        let spec = &self.spec;
        let source = spec.source_deployment.as_deref().unwrap_or_default();
        let target = spec.target_deployment.as_deref();
        let target = target.unwrap_or(&spec.new_frontend_service);
        let mut wants =
            rollout::UpdateSettings::of(format!("{source} to {target}{}", counted_by(spec)));
        let targets = self.plan.new.iter().map(ToString::to_string);
        wants.new_frontends = targets.collect::<Vec<_>>().join(",");
        wants.trial = trial(spec);
        wants.retry.clone_from(&self.retry);
        wants.on_failure = spec.analysis.as_ref().map(|spec| spec.on_failure);
        let steps = spec.steps.iter().flatten();
        wants.steps = steps
            .map(|step| rollout::SplitStep {
                percent: step.percent,
                hold: Duration::from_secs(step.hold_seconds.into()),
            })
            .collect();
        wants.paused = spec.paused.unwrap_or(false);
        wants.cap_percent = spec.max_traffic_split_percent;
        wants.drain_old = spec.drain_old.unwrap_or(false);
        wants.strict = spec.strict.unwrap_or(false);
        let seconds = |given: Option<u32>| given.map(|seconds| Duration::from_secs(seconds.into()));
        wants.stable = seconds(spec.stable_seconds).unwrap_or(wants.stable);
        wants.ack_timeout = seconds(spec.ack_timeout_seconds).unwrap_or(wants.ack_timeout);
        wants.drain_deadline = seconds(spec.drain_deadline_seconds);
        let workers = spec.workers.clone().unwrap_or_default();
        let sizes = |generation: Option<crate::resource::WorkerSourceSpec>| {
            generation.map_or_else(BTreeMap::new, |generation| sizes(&generation.replicas))
        };
        wants.full_sizes = PerGeneration {
            old: sizes(workers.old),
            new: sizes(workers.new),
        };
        wants.models = spec
            .models
            .clone()
            .map(|models| models.into_iter().collect());
        wants
    }
}

/// Identifies new: the fields that name it. A different way of counting its workers does not make a different new.
fn trial(spec: &DynamoUpdateConfigSpec) -> String {
    let workers = spec
        .workers
        .as_ref()
        .and_then(|workers| workers.new.clone());
    let named = WorkerSourceSpec {
        replicas: BTreeMap::new(),
        ..workers.unwrap_or_default()
    };
    let named =
        (named != WorkerSourceSpec::default()).then(|| serde_json::json!(named).to_string());
    let parts = [
        spec.target_deployment.as_deref(),
        Some(&*spec.new_frontend_service),
        spec.new_dynamo_namespace.as_deref(),
        named.as_deref(),
    ];
    parts.map(Option::unwrap_or_default).join(" ")
}

/// The last request to retry: a time, or the beginning of any other value.
fn retry(object: &DynamicObject) -> Option<String> {
    let annotations = object.metadata.annotations.as_ref();
    let value = annotations?.get(RETRIED_AT)?;
    Some(value.chars().take(64).collect())
}

/// How old's workers are counted, if not by name: counting other workers gives another full size.
fn counted_by(spec: &DynamoUpdateConfigSpec) -> String {
    let workers = spec.workers.clone().unwrap_or_default();
    let counted = WorkerSourceSpec {
        replicas: BTreeMap::new(),
        ..workers.old.unwrap_or_default()
    };
    match counted == WorkerSourceSpec::default() {
        true => String::new(),
        false => format!(", counted by {}", serde_json::json!(counted)),
    }
}

fn sizes(replicas: &BTreeMap<String, u32>) -> BTreeMap<Role, u32> {
    let roles = [Role::Worker, Role::Prefill, Role::Decode];
    let sizes = roles.map(|role| (role, replicas.get(role.as_str())));
    let known = sizes.into_iter();
    known
        .filter_map(|(role, size)| Some((role, *size?)))
        .collect()
}

/// Which forms of the split are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SplitForms {
    percent: bool,
    weights: bool,
}

impl SplitForms {
    const BOTH: Self = Self {
        percent: true,
        weights: true,
    };
    const NONE: Self = Self {
        percent: false,
        weights: false,
    };

    /// In the spec.
    fn of(object: &DynamicObject) -> Self {
        let spec = &object.data["spec"];
        Self {
            percent: !spec["trafficSplitPercent"].is_null(),
            weights: !spec["weights"].is_null(),
        }
    }

    /// Among the fields that the controller owns. Another manager that changes a field takes over its ownership.
    fn owned(object: &DynamicObject) -> Self {
        let entries = object.metadata.managed_fields.iter().flatten();
        let ours = entries.filter(|entry| {
            entry.manager.as_deref() == Some(MANAGER)
                && entry.subresource.as_deref().unwrap_or("").is_empty()
        });
        let specs = ours.filter_map(|entry| Some(&entry.fields_v1.as_ref()?.0["f:spec"]));
        let owned = |spec: &Json| {
            let weights = &spec["f:weights"];
            Self {
                percent: !spec["f:trafficSplitPercent"].is_null(),
                weights: !weights["f:old"].is_null() && !weights["f:new"].is_null(),
            }
        };
        specs.map(owned).fold(Self::NONE, |one, other| Self {
            percent: one.percent || other.percent,
            weights: one.weights || other.weights,
        })
    }
}
