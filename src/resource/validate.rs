//! Turns a spec into a plan and checks what the schema cannot express, such as contradictions and the syntax of strings.
//!
//! Does not depend on files or lines, and does not repeat the bounds of the schema.

use std::{collections::HashSet, time::Duration};

use http::{HeaderName, uri::PathAndQuery};

use super::{
    manifest::Identity,
    object_name::is_object_name,
    plan::{Affinity, Analysis, Drain, Failover, Plan, Probe, ProbeKind, Tls},
    problems::{Problem, Problems},
    rules, schema,
    spec::{
        AffinitySpec, ContinuationSpec, DrainSpec, DynamoUpdateConfigSpec, FailoverSpec, ProbeSpec,
        TlsSpec, WorkerSourceSpec, WorkersSpec,
    },
    target::{Host, TargetAddress, parse_targets},
    tree::Node,
};
use crate::continuation::{ContinuationPolicy, Mode};
use crate::split::Weights;

/// The message for a missing split where no controller can set it.
const NO_SPLIT: &str = "is required, unless weights is given: only in a cluster can the split be left to the controller";

impl Plan {
    /// The plan that `spec` describes.
    ///
    /// # Errors
    ///
    /// All problems of the spec, without lines.
    pub fn of(identity: Identity, spec: &DynamoUpdateConfigSpec) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        match serde_json::to_value(spec) {
            Ok(json) => {
                schema::read(&Node::from(json), &mut problems);
            }
            Err(error) => problems.push(Problem::new("spec", error.to_string())),
        }
        match validate(identity, spec, None, &mut problems) {
            Some(plan) if problems.is_empty() => Ok(plan),
            _ => Err(problems),
        }
    }

    /// The plan that applies while there is no other plan: no new generation, all requests to old.
    #[must_use]
    pub fn all_old() -> Self {
        Self::only_old(&DynamoUpdateConfigSpec::default())
            .expect("the default policies are valid ones")
    }

    /// Like [`Plan::all_old`], with the policies of `spec`.
    ///
    /// # Errors
    ///
    /// The problems of the policies.
    pub fn only_old(spec: &DynamoUpdateConfigSpec) -> Result<Self, Problems> {
        let spec = DynamoUpdateConfigSpec {
            traffic_split_percent: Some(0),
            new_frontend_service: "none:1".to_owned(),
            ..spec.clone()
        };
        let mut plan = Self::of(Identity::default(), &spec)?;
        plan.new.clear();
        Ok(plan)
    }
}

/// Reports every problem, and returns the plan if there are none.
///
/// An empty `newFrontendService` gives neither a plan nor a problem, because the schema already reports it. `unless_given` is
/// the split if the spec gives none; if it is `None` too, that is a problem.
pub(super) fn validate(
    identity: Identity,
    spec: &DynamoUpdateConfigSpec,
    unless_given: Option<Weights>,
    problems: &mut Problems,
) -> Option<Plan> {
    let before = problems.len();
    let weights = match spec.gives_split() {
        true => weights(spec, problems),
        false => unless_given.or_else(|| {
            problems.push(Problem::new("spec.trafficSplitPercent", NO_SPLIT));
            None
        }),
    };
    let new = targets(&spec.new_frontend_service, problems);
    let speaks_tls = new.as_ref().is_none_or(|new| new[0].tls);
    let affinity = affinity(&spec.affinity, problems);
    let failover = failover(&spec.failover, problems);
    let drain = drain(&spec.drain, failover.continuation.mode, problems);
    names(spec, problems);
    let steps_set = spec.steps.as_deref().unwrap_or_default();
    let percents: Vec<u8> = steps_set.iter().map(|step| step.percent).collect();
    steps(&percents, problems);
    let probe = spec.probe.as_ref().and_then(|spec| probe(spec, problems));
    let tls = spec
        .tls
        .as_ref()
        .map(|spec| tls(spec, speaks_tls, problems));
    if problems.len() > before {
        return None;
    }
    let wanted = weights?;
    let weights = capped(wanted, spec.max_traffic_split_percent);
    Some(Plan {
        identity,
        weights,
        capped_from: (weights != wanted).then_some(wanted),
        new: new?,
        affinity,
        failover,
        drain,
        old_drains: spec.old_draining,
        probe,
        analysis: spec.analysis.as_ref().map(|spec| Analysis {
            margins: spec.margins(),
            warmup: Duration::from_secs(spec.warmup_seconds.into()),
            on_failure: spec.on_failure,
        }),
        failed_analysis: None,
        tls,
    })
}

/// The split that the spec gives.
fn weights(spec: &DynamoUpdateConfigSpec, problems: &mut Problems) -> Option<Weights> {
    let Some(ratio) = spec.weights else {
        // The schema rejects percentages above 100.
        return Weights::percent(spec.traffic_split_percent?).ok();
    };
    let Ok(weights) = Weights::new(ratio.old, ratio.new) else {
        problems.push(Problem::new(
            "spec.weights",
            "at least one of old and new must be more than 0",
        ));
        return None;
    };
    let rounded = weights.rounded_percent();
    match spec.traffic_split_percent {
        Some(percent) if percent != rounded => {
            let message = format!(
                "is {percent}, but weights {}:{} are {rounded}% (0 and 100 only if exact); \
                 set only one of the two, or make them agree",
                ratio.old, ratio.new
            );
            problems.push(Problem::new("spec.trafficSplitPercent", message));
            None
        }
        _ => Some(weights),
    }
}

/// The requested split, or the cap if it gives new a lower share.
fn capped(wanted: Weights, cap: Option<u8>) -> Weights {
    let share = |weights: Weights| {
        let new = u64::from(weights.new_weight());
        (new, new + u64::from(weights.old()))
    };
    match cap.and_then(|percent| Weights::percent(percent).ok()) {
        Some(cap) => {
            let ((new, total), (cap_new, cap_total)) = (share(wanted), share(cap));
            let above = new * cap_total > cap_new * total;
            if above { cap } else { wanted }
        }
        None => wanted,
    }
}

fn targets(list: &str, problems: &mut Problems) -> Option<Vec<TargetAddress>> {
    if list.is_empty() {
        return None;
    }
    let mut problem = |message| problems.push(Problem::new("spec.newFrontendService", message));
    let targets = parse_targets(list)
        .map_err(|errors| errors.iter().for_each(|error| problem(error.to_string())))
        .ok()?;
    let mut seen = HashSet::new();
    for target in targets.iter().filter(|target| !seen.insert(*target)) {
        problem(format!("names {target} twice"));
    }
    if targets.iter().any(|target| target.tls != targets[0].tls) {
        problem("mixes http and https; all targets must have the same scheme".into());
    }
    Some(targets)
}

/// Checks that `name` is valid for an object (RFC 1123). The schema already reports an empty one.
pub(super) fn object_name(path: &str, name: &str, problems: &mut Problems) {
    if !is_object_name(name) {
        let message = format!("'{}' is not a valid object name", name.escape_debug());
        problems.push(Problem::new(path, message));
    }
}

/// Checks that object names are valid (RFC 1123) and that the two generations can be distinguished.
fn names(spec: &DynamoUpdateConfigSpec, problems: &mut Problems) {
    for (field, name) in [
        ("sourceDeployment", &spec.source_deployment),
        ("targetDeployment", &spec.target_deployment),
        ("clientService", &spec.client_service),
        ("supersedes", &spec.supersedes),
    ] {
        if let Some(name) = name {
            object_name(&format!("spec.{field}"), name, problems);
        }
    }
    let distinguishes = spec.workers.as_ref().is_some_and(distinguishes_generations);
    if spec.source_deployment.is_some()
        && spec.source_deployment == spec.target_deployment
        && !distinguishes
    {
        problems.push(Problem::new(
            "spec.targetDeployment",
            "is the same object as sourceDeployment; use workers.old and workers.new to say which workers belong to which \
             generation, each with its own kind, name, revision, or selector",
        ));
    }
}

/// Whether `workers` distinguishes the two generations. `replicas` alone does not.
fn distinguishes_generations(workers: &WorkersSpec) -> bool {
    fn of(generation: &Option<WorkerSourceSpec>) -> Option<WorkerSourceSpec> {
        let replicas = Default::default();
        let meant = generation.clone().map(|generation| WorkerSourceSpec {
            replicas,
            ..generation
        });
        meant.filter(|meant| *meant != WorkerSourceSpec::default())
    }
    let (old, new) = (of(&workers.old), of(&workers.new));
    old.is_some() && new.is_some() && old != new
}

/// Checks that steps go up.
pub(super) fn steps(percents: &[u8], problems: &mut Problems) {
    for (index, pair) in percents.windows(2).enumerate() {
        if pair[0] >= pair[1] {
            let path = format!("spec.steps[{}].percent", index + 1);
            problems.push(Problem::new(path, rules::STEPS_MESSAGE));
        }
    }
}

pub(super) fn affinity(spec: &AffinitySpec, problems: &mut Problems) -> Affinity {
    let mut headers = Vec::with_capacity(spec.headers.len());
    for (index, name) in spec.headers.iter().enumerate() {
        let problem = match HeaderName::from_bytes(name.as_bytes()) {
            Ok(header) if headers.contains(&header) => format!("names '{header}' twice"),
            Ok(header) => {
                headers.push(header);
                continue;
            }
            // The schema already reports the empty name.
            Err(_) if name.is_empty() => continue,
            Err(_) => format!("'{}' is not a header name", name.escape_debug()),
        };
        let path = format!("spec.affinity.headers[{index}]");
        problems.push(Problem::new(path, problem));
    }
    for (index, name) in spec.body_fields.iter().enumerate() {
        if spec.body_fields[..index].contains(name) {
            let path = format!("spec.affinity.bodyFields[{index}]");
            problems.push(Problem::new(path, format!("names '{name}' twice")));
        }
    }
    Affinity {
        headers,
        body_fields: spec.body_fields.clone(),
    }
}

pub(super) fn failover(spec: &FailoverSpec, problems: &mut Problems) -> Failover {
    let mut seconds = |field: &str, value: Option<f64>| {
        value.map(|value| seconds(&format!("spec.failover.{field}"), value, problems))
    };
    Failover {
        enabled: spec.enabled,
        // If the value does not fit, no body can be that large either.
        max_replay_bytes: usize::try_from(spec.max_replay_bytes).unwrap_or(usize::MAX),
        first_event_timeout: seconds("firstEventTimeoutSeconds", spec.first_event_timeout_seconds),
        gap_timeout: seconds("gapTimeoutSeconds", spec.gap_timeout_seconds),
        retry_budget_percent: spec.retry_budget_percent,
        hold: seconds("holdSeconds", Some(spec.hold_seconds)).unwrap_or_default(),
        retry_overloaded: spec.retry_overloaded,
        retry_old_server_errors: spec.retry_old_server_errors,
        continuation: continuation(&spec.continuation),
    }
}

fn continuation(spec: &ContinuationSpec) -> ContinuationPolicy {
    ContinuationPolicy {
        mode: spec.mode.into(),
        max_text_bytes: usize::try_from(spec.max_text_bytes).unwrap_or(usize::MAX),
        max_per_stream: spec.max_per_stream,
        comment: spec.comment,
    }
}

pub(super) fn drain(spec: &DrainSpec, mode: Mode, problems: &mut Problems) -> Drain {
    const FIELD: &str = "spec.drain.moveAfterSeconds";
    let after = spec.move_after_seconds;
    if after.is_some() && mode != Mode::AnyGeneration {
        problems.push(Problem::new(FIELD, rules::MOVES_MESSAGE));
    }
    Drain {
        move_after: after.map(|after| seconds(FIELD, after, problems)),
        move_rate: spec.move_rate,
    }
}

pub(super) fn probe(spec: &ProbeSpec, problems: &mut Problems) -> Option<Probe> {
    let interval = seconds(
        "spec.probe.intervalSeconds",
        spec.interval_seconds,
        problems,
    );
    let timeout = seconds("spec.probe.timeoutSeconds", spec.timeout_seconds, problems);
    let question = match (&spec.path, &spec.model) {
        (Some(_), Some(_)) => {
            Err("cannot be set together with 'model'; a model has its own path".into())
        }
        (None, Some(model)) => Ok(ProbeKind::Model(model.clone())),
        (None, None) => Ok(ProbeKind::AnyModel),
        (Some(path), None) if !path.starts_with('/') => Err(format!(
            "must start with '/', not '{}'",
            path.escape_debug()
        )),
        (Some(path), None) => PathAndQuery::try_from(path.as_str())
            .map(ProbeKind::Path)
            .map_err(|error| format!("'{}' is not a path: {error}", path.escape_debug())),
    };
    question
        .map(|question| Probe {
            kind: question,
            interval,
            timeout,
        })
        .map_err(|message| problems.push(Problem::new("spec.probe.path", message)))
        .ok()
}

fn tls(spec: &TlsSpec, speaks_tls: bool, problems: &mut Problems) -> Tls {
    let mut problem = |path: &str, message: &str| problems.push(Problem::new(path, message));
    if !speaks_tls {
        problem(
            "spec.tls",
            "is given, but newFrontendService is not https://",
        );
    }
    let server_name = spec.server_name.as_deref().and_then(|name| {
        name.parse::<Host>()
            .map_err(|error| problem("spec.tls.serverName", &error.to_string()))
            .ok()
    });
    let client = match (&spec.client_cert_file, &spec.client_key_file) {
        (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
        (None, None) => None,
        (Some(_), None) => {
            problem("spec.tls", "clientCertFile also needs clientKeyFile");
            None
        }
        (None, Some(_)) => {
            problem("spec.tls", "clientKeyFile also needs clientCertFile");
            None
        }
    };
    Tls {
        ca_file: spec.ca_file.clone(),
        server_name,
        client,
    }
}

/// Converts seconds. The schema bounds values from a manifest, but a value set in code may still be NaN or infinite.
fn seconds(path: &str, value: f64, problems: &mut Problems) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_else(|_| {
        let unless_known = !problems.iter().any(|problem| problem.path == path);
        if unless_known {
            problems.push(Problem::new(
                path,
                format!("is not a valid duration: {value}"),
            ));
        }
        Duration::ZERO
    })
}
