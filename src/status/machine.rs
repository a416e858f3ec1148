//! A look for programs: JSON and YAML with the same content.
//!
//! Must not know where it was got from.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::lag::{Lag, lag};
use super::{Asked, Happened, Look, Other};
use crate::printable::printable_lines;
use crate::resource::DynamoUpdateConfig;
use crate::resource::status::Promise;
use crate::state_api::total;

/// All that is known: the resource but for `metadata.managedFields`, each proxy's state, and all of them together.
#[must_use]
pub fn json(look: &Look) -> Value {
    let newest = look.update.as_ref().map(|update| &update.metadata);
    let proxy = |asked: &Asked| {
        let (state, error) = match &asked.state {
            Ok(state) => (state.to_json(), Value::Null),
            Err(error) => (Value::Null, json!(error)),
        };
        let plan = asked
            .state
            .as_ref()
            .ok()
            .and_then(|state| state.plan.as_ref());
        let behind = match plan.map(|plan| lag(plan, newest)) {
            Some(Lag::None) => json!(0),
            Some(Lag::Edits(edits)) => json!(edits),
            Some(Lag::Deleted | Lag::Unknown) | None => Value::Null,
        };
        json!({"name": asked.name, "error": error, "behind": behind, "state": state})
    };
    let other = |other: &Other| json!({"name": other.name, "follows": other.follows});
    let event = |event: &Happened| {
        let kind = if event.warning { "Warning" } else { "Normal" };
        json!({"at": event.at, "type": kind, "reason": event.reason, "note": event.note})
    };
    json!({
        "update": look.update.as_deref().map(|update| known(update, look.at.unwrap_or(Timestamp::MAX))),
        "secondsSinceEdit": look.since_edit.map(|time| time.as_secs_f64()),
        "origin": look.origin,
        "total": total(look.states()).map(|state| state.to_json()),
        "proxies": look.proxies.iter().map(proxy).collect::<Vec<_>>(),
        "others": look.others.iter().map(other).collect::<Vec<_>>(),
        "events": look.events.iter().map(event).collect::<Vec<_>>(),
        "eventsError": look.events_unknown,
    })
}

/// The resource, in which null stands for what was promised and nobody vouches for at `now`.
fn known(update: &DynamoUpdateConfig, now: Timestamp) -> Value {
    let mut told = json!(update);
    if let Some(status) = &update.status {
        let promises = [
            ("safeToDeleteOld", status.old_may_be_deleted(now)),
            (
                "lastOldWorkerDispensable",
                status.last_old_worker_may_go(now),
            ),
        ];
        for (field, promise) in promises {
            if promise == Some(Promise::Expired) {
                told["status"][field] = Value::Null;
            }
        }
    }
    told
}

/// Several updates, as a look has one.
#[must_use]
pub fn json_list(updates: &[DynamoUpdateConfig]) -> Value {
    let updates = updates.iter().map(|update| {
        let mut update = update.clone();
        update.metadata.managed_fields = None;
        known(&update, Timestamp::now())
    });
    json!({"updates": updates.collect::<Vec<_>>()})
}

/// The same as YAML.
///
/// # Panics
/// Never: plain JSON can be written as YAML.
#[must_use]
pub fn yaml(look: &Value) -> String {
    let text = serde_saphyr::to_string(look).expect("plain JSON can be written as YAML");
    printable_lines(text).to_string()
}
