//! Renders a rollout: its progress, what it waits for, and both generations.

use k8s_openapi::jiff::Timestamp;

use super::super::format::percent;
use super::Page;
use crate::printable::{counted, thousands};
use crate::resource::rollout_status::{
    AcceptedGeneration, DynamoRolloutStatus, ScaledGenerationStatus,
};
use crate::resource::{DynamoRollout, GenerationSpec, Intent, WorkloadSpec};

/// One rollout, with its progress and both generations.
#[must_use]
pub fn rollout(rollout: &DynamoRollout, now: Timestamp) -> String {
    let mut page = Page(String::new());
    let meta = &rollout.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let edit = meta.generation.unwrap_or_default();
    let named = format!(
        "{} in namespace {}, edit {edit}",
        text(&meta.name),
        text(&meta.namespace)
    );
    page.line("rollout", &named);
    if let Some(intent) = requested(rollout) {
        page.line("intent", &intent);
    }
    let Some(status) = &rollout.status else {
        page.line(
            "phase",
            "unknown: no controller with --rollouts has written a status",
        );
        return page.0;
    };
    if let Some(phase) = status.phase {
        page.line("phase", phase.as_str());
    }
    // The message of a waiting rollout lists what follows.
    let waits = !status.waiting_for.is_empty();
    if let Some(message) =
        { status.message.as_ref() }.filter(|message| !waits || !message.starts_with("waiting for "))
    {
        page.line("", message);
    }
    let seen = status.observed_generation;
    if let Some(seen) = seen.filter(|seen| meta.generation.is_some_and(|edit| *seen < edit)) {
        page.line(
            "",
            &format!("as of edit {seen}: the controller has not observed edit {edit} yet"),
        );
    }
    page.progress(status, now);
    page.role_rows(rollout, status);
    page.rollout_conditions(status);
    page.0
}

/// What its owner requests, unless that is to proceed.
fn requested(rollout: &DynamoRollout) -> Option<String> {
    let text = match (rollout.spec.intent, rollout.spec.undo()) {
        (Intent::Hold, _) => "Hold; `crossfade rollout resume` continues",
        (_, Some(number)) => {
            return Some(format!(
                "to revision {number} (undoTo); `crossfade rollout resume` continues to the new generation"
            ));
        }
        (Intent::Abort, _) => "Abort: back to the old generation",
        (Intent::Promote, _) => "Promote: forward without analysis and steps",
        (Intent::Run, None) => return None,
    };
    Some(text.to_owned())
}

/// A list of rollouts, one per line.
#[must_use]
pub fn rollouts(rollouts: &[DynamoRollout]) -> String {
    let mut page = Page(String::new());
    let row = |[name, phase, old, new, split]: [&str; 5]| {
        format!("{name:<32} {phase:<12} {old:>9} {new:>9} {split:>7}")
    };
    page.put(0, &row(["NAME", "PHASE", "OLD", "NEW", "SPLIT"]));
    for rollout in rollouts {
        let status = rollout.status.clone().unwrap_or_default();
        let workers = |generation: &Option<ScaledGenerationStatus>| {
            let generation = generation
                .as_ref()
                .and_then(|generation| generation.workers.clone());
            generation.unwrap_or_else(|| "-".to_owned())
        };
        let name = rollout.metadata.name.as_deref().unwrap_or_default();
        let split = status
            .split
            .map(|split| percent(f64::from(split.percent) / 100.0));
        page.put(
            0,
            &row([
                name,
                status.phase.map_or("-", |phase| phase.as_str()),
                &workers(&status.source),
                &workers(&status.target),
                split.as_deref().unwrap_or("-"),
            ]),
        );
    }
    page.0
}

/// The revisions of a rollout, one per line.
#[must_use]
pub fn rollout_history(rollout: &DynamoRollout, now: Timestamp) -> String {
    let mut page = Page(String::new());
    let status = rollout.status.clone().unwrap_or_default();
    let row = |[number, age, generation, frontends, workers]: [&str; 5]| {
        format!("{number:<10}{age:<10}{generation:<12}{frontends:<32} {workers}")
    };
    page.put(
        0,
        &row(["REVISION", "AGE", "GENERATION", "FRONTENDS", "WORKERS"]),
    );
    for known in &status.revisions {
        let age = known.at.as_ref().map(|at| since(at.0, now));
        let existence = match known.exists {
            true => known.generation.as_deref().unwrap_or("-"),
            false => "deleted",
        };
        page.put(
            0,
            &row([
                &known.revision.to_string(),
                age.as_deref().unwrap_or("-"),
                existence,
                &known.frontends,
                &known.workers,
            ]),
        );
    }
    if status.revisions.is_empty() {
        page.put(2, "no revisions yet");
    }
    page.0
}

/// Formats an age.
fn since(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

impl Page {
    fn progress(&mut self, status: &DynamoRolloutStatus, now: Timestamp) {
        if let Some(step) = status.step {
            let units =
                { status.accepted.as_ref() }.map(|accepted| counted(accepted.units.into(), "unit"));
            let value = format!(
                "new {}, old {}; next: new {}",
                units.map_or_else(
                    || counted(step.new.into(), "unit"),
                    |all| format!("{} of {all}", step.new)
                ),
                step.old,
                step.next
            );
            self.line("step", &value);
        }
        for (index, wait) in status.waiting_for.iter().enumerate() {
            let name = if index == 0 { "waiting for" } else { "" };
            self.line(
                name,
                &format!("{}, for {}", wait.what, since(wait.since.0, now)),
            );
        }
        if let Some(split) = &status.split {
            let share = split.exact().map(|exact| exact.share_of_new());
            let share = percent(share.unwrap_or(f64::from(split.percent) / 100.0));
            self.line("split", &format!("{share} of the requests go to new"));
        }
        if let Some(analysis) = &status.analysis {
            self.line(
                "verdict",
                &format!("{:?}: {}", analysis.verdict, analysis.message),
            );
        }
        if let Some(gpus) = &status.gpus {
            self.line(
                "GPUs",
                &format!("{} in use (peak: {})", gpus.used, gpus.peak),
            );
        }
    }

    /// The roles of both generations.
    fn role_rows(&mut self, rollout: &DynamoRollout, status: &DynamoRolloutStatus) {
        let none = ScaledGenerationStatus::default();
        // After an undo, the rollout does not move what its spec names.
        let accepted = status.accepted.as_ref();
        let accepted = accepted.filter(|accepted| accepted.undo_to.is_some());
        let (old, new) = match accepted {
            Some(accepted) => (spec(&accepted.source), spec(&accepted.target)),
            None => (rollout.spec.source.clone(), rollout.spec.target.clone()),
        };
        let generations = [
            ("old", &old, status.source.as_ref().unwrap_or(&none)),
            ("new", &new, status.target.as_ref().unwrap_or(&none)),
        ];
        self.gap();
        let row = |cells: [&str; 6]| {
            let [name, object, spec, ready, terminating, streams] = cells;
            format!("{name:<12}{object:<32} {spec:>5} {ready:>6} {terminating:>12} {streams:>8}")
        };
        self.put(
            0,
            &row(["", "WORKERS", "SPEC", "READY", "TERMINATING", "STREAMS"]),
        );
        for (name, spec, generation) in generations {
            let streams = generation.open_streams.map(thousands);
            let streams = streams.unwrap_or_else(|| "-".to_owned());
            if generation.roles.is_empty() {
                self.put(0, &row([name, &object(spec, ""), "-", "-", "-", &streams]));
            }
            for (index, (role, workers)) in generation.roles.iter().enumerate() {
                let is_first = index == 0;
                let object = match object(spec, role) {
                    object if generation.roles.len() > 1 => format!("{role}: {object}"),
                    object => object,
                };
                self.put(
                    0,
                    &row([
                        if is_first { name } else { "" },
                        &object,
                        &workers.spec.to_string(),
                        &workers.ready.to_string(),
                        &workers.terminating.to_string(),
                        if is_first { &streams } else { "" },
                    ]),
                );
            }
        }
    }

    fn rollout_conditions(&mut self, status: &DynamoRolloutStatus) {
        if status.conditions.is_empty() {
            return;
        }
        self.gap();
        for (index, condition) in status.conditions.iter().enumerate() {
            let name = if index == 0 { "conditions" } else { "" };
            let summary = format!(
                "{} {} ({})",
                condition.type_, condition.status, condition.reason
            );
            let is_said =
                condition.message.is_empty() || status.message.as_ref() == Some(&condition.message);
            self.line(
                name,
                &match is_said {
                    true => summary,
                    false => format!("{summary}: {}", condition.message),
                },
            );
        }
    }
}

/// The accepted objects of a generation, in the form of a spec.
fn spec(accepted: &AcceptedGeneration) -> GenerationSpec {
    let roles = accepted.roles.iter().map(|(role, accepted)| {
        let workload = WorkloadSpec {
            kind: accepted.kind.clone(),
            name: accepted.name.clone(),
            replicas: None,
        };
        (role.clone(), workload)
    });
    GenerationSpec {
        roles: roles.collect(),
        ..GenerationSpec::default()
    }
}

/// The object of a role, in kubectl's notation.
fn object(generation: &GenerationSpec, role: &str) -> String {
    let (kind, name) = match generation.roles.get(role) {
        Some(workload) => (Some(&workload.kind), Some(&workload.name)),
        None => (generation.kind.as_ref(), generation.name.as_ref()),
    };
    match (kind, name) {
        (Some(kind), Some(name)) => format!("{kind}/{name}"),
        _ => generation
            .roles
            .values()
            .map(|workload| &*workload.name)
            .collect::<Vec<_>>()
            .join(", "),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resource::read_rollout_status;

    fn example() -> DynamoRollout {
        serde_json::from_value(json!({
            "apiVersion": "nvidia.com/v1alpha1",
            "kind": "DynamoRollout",
            "metadata": {"name": "chat", "namespace": "inference", "generation": 3},
            "spec": {
                "source": {"roles": {
                    "prefill": {"kind": "Deployment", "name": "p1"},
                    "decode": {"kind": "Deployment", "name": "d1"},
                }},
                "target": {"kind": "DynamoGraphDeployment", "name": "chat-2"},
                "frontends": {"source": "f1", "target": "f2", "service": "f2"},
                "clientService": "chat",
                "intent": "Hold",
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_comparison_reports_known_and_unknown_figures() {
        let mut rollout_of = example();
        let now: Timestamp = "2026-01-02T03:14:05Z".parse().unwrap();
        let text = rollout(&rollout_of, now);
        assert_eq!(
            text,
            "rollout     chat in namespace inference, edit 3\n\
             intent      Hold; `crossfade rollout resume` continues\n\
             phase       unknown: no controller with --rollouts has written a status\n"
        );
        let (status, lost) = read_rollout_status(&json!({
            "observedGeneration": 2,
            "phase": "Progressing",
            "message": "growing new",
            "step": {"old": 3, "new": 2, "next": 3},
            "waitingFor": [{"what": "new to be ready: 1 of 2 units are ready", "since": "2026-01-02T03:04:05Z"}],
            "split": {"percent": 33, "weights": {"old": 2, "new": 1}},
            "analysis": {"verdict": "Pass", "message": "as good as old"},
            "gpus": {"used": 40, "peak": 48},
            "source": {"roles": {"prefill": {"spec": 3, "ready": 3}, "decode": {"spec": 2, "ready": 1, "terminating": 1}}, "openStreams": 12},
            "target": {"roles": {"worker": {"spec": 2, "ready": 1}}},
            "conditions": [{"type": "Ready", "status": "False", "reason": "Progressing", "message": "growing new", "lastTransitionTime": "2026-01-02T03:04:05Z"}],
        }));
        assert_eq!(lost, [""; 0]);
        rollout_of.status = Some(status);
        let text = rollout(&rollout_of, now);
        for expected in [
            "phase       Progressing\n            growing new\n            as of edit 2: the controller has not observed edit 3 yet\n",
            "step        new 2 units, old 3; next: new 3\n",
            "waiting for new to be ready: 1 of 2 units are ready, for 10 min\n",
            "split       33.3% of the requests go to new\n",
            "verdict     Pass: as good as old\n",
            "GPUs        40 in use (peak: 48)\n",
            "old         decode: Deployment/d1                2      1            1       12\n",
            "            prefill: Deployment/p1               3      3            0\n",
            "new         DynamoGraphDeployment/chat-2         2      1            0        -\n",
            "conditions  Ready False (Progressing)\n",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        let (status, lost) = read_rollout_status(&json!({"revisions": [
            {"revision": 1, "workers": "Deployment d1", "frontends": "f1", "exists": false, "at": "2026-01-02T03:04:05Z"},
            {"revision": 2, "workers": "Deployment d2", "frontends": "f2", "exists": true, "generation": "old"},
        ]}));
        assert_eq!(lost, [""; 0]);
        rollout_of.status.as_mut().unwrap().revisions = status.revisions;
        let history = rollout_history(&rollout_of, now);
        assert_eq!(
            history,
            "REVISION  AGE       GENERATION  FRONTENDS                        WORKERS\n\
             1         10 min    deleted     f1                               Deployment d1\n\
             2         -         old         f2                               Deployment d2\n"
        );
        let list = rollouts(&[rollout_of]);
        assert!(
            list.contains(
                "chat                             Progressing          -         -     33%\n"
            ),
            "{list}"
        );
    }
}
