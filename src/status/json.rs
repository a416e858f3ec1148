//! A report for programs, in JSON or in YAML with the same content.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::lag::{Lag, lag};
use super::{EventRecord, Other, ProxyAnswer, StatusReport};
use crate::printable::printable_lines;
use crate::resource::status::FlagState;
use crate::resource::{DynamoRollout, DynamoUpdateConfig};
use crate::state_api::total;

/// Everything in the report: the resource without `metadata.managedFields`, the state of each proxy, and their total.
#[must_use]
pub fn json(report: &StatusReport) -> Value {
    let newest = report.update.as_ref().map(|update| &update.metadata);
    let proxy = |answer: &ProxyAnswer| {
        let (state, error) = match &answer.state {
            Ok(state) => (state.to_json(), Value::Null),
            Err(error) => (Value::Null, json!(error)),
        };
        let plan = answer
            .state
            .as_ref()
            .ok()
            .and_then(|state| state.plan.as_ref());
        let lag_in_edits = match plan.map(|plan| lag(plan, newest)) {
            Some(Lag::None) => json!(0),
            Some(Lag::Edits(edits)) => json!(edits),
            Some(Lag::Deleted | Lag::Unknown) | None => Value::Null,
        };
        json!({"name": answer.name, "error": error, "behind": lag_in_edits, "state": state})
    };
    let other = |other: &Other| json!({"name": other.name, "follows": other.follows});
    let event = |event: &EventRecord| {
        let kind = if event.warning { "Warning" } else { "Normal" };
        json!({"at": event.at, "type": kind, "reason": event.reason, "note": event.note})
    };
    json!({
        "update": report.update.as_deref().map(|update| known(update, report.at.unwrap_or(Timestamp::MAX))),
        "secondsSinceEdit": report.since_edit.map(|time| time.as_secs_f64()),
        "origin": report.origin,
        "total": total(report.states()).map(|all| all.to_json_with_verdict(report.verdict(Some(&all)).as_ref())),
        "proxies": report.proxies.iter().map(proxy).collect::<Vec<_>>(),
        "others": report.others.iter().map(other).collect::<Vec<_>>(),
        "events": report.events.iter().map(event).collect::<Vec<_>>(),
        "eventsError": report.events_unknown,
    })
}

/// The resource, with null for flags that have expired at `now`.
fn known(update: &DynamoUpdateConfig, now: Timestamp) -> Value {
    let mut json = json!(update);
    if let Some(status) = &update.status {
        let generation = update.metadata.generation;
        let flags = [
            (
                "safeToDeleteOld",
                status.old_may_be_deleted(generation, now),
            ),
            (
                "lastOldWorkerDispensable",
                status.last_old_worker_may_go(generation, now),
            ),
        ];
        for (field, flag) in flags {
            if flag == Some(FlagState::Expired) {
                json["status"][field] = Value::Null;
            }
        }
    }
    json
}

/// Several updates, each as in a report.
#[must_use]
pub fn json_list(updates: &[DynamoUpdateConfig]) -> Value {
    let updates = updates.iter().map(|update| {
        let mut update = update.clone();
        update.metadata.managed_fields = None;
        known(&update, Timestamp::now())
    });
    json!({"updates": updates.collect::<Vec<_>>()})
}

/// A rollout without `metadata.managedFields`.
#[must_use]
pub fn rollout_json(rollout: &DynamoRollout) -> Value {
    json!({"rollout": without_managers(rollout)})
}

/// Several rollouts.
#[must_use]
pub fn rollouts_json(rollouts: &[DynamoRollout]) -> Value {
    let rollouts = rollouts.iter().map(without_managers);
    json!({"rollouts": rollouts.collect::<Vec<_>>()})
}

fn without_managers(rollout: &DynamoRollout) -> Value {
    let mut rollout = rollout.clone();
    rollout.metadata.managed_fields = None;
    json!(rollout)
}

/// The same as YAML.
///
/// # Panics
/// Never: plain JSON can be written as YAML.
#[must_use]
pub fn yaml(report: &Value) -> String {
    let text = serde_saphyr::to_string(report).expect("plain JSON can be written as YAML");
    printable_lines(text).to_string()
}
