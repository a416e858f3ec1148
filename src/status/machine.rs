//! A look for programs: JSON and YAML with the same content.
//!
//! Must not know where it was got from.

use serde_json::{Value, json};

use super::lag::{Lag, lag};
use super::{Asked, Happened, Look, Other};
use crate::resource::DynamoUpdateConfig;
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
        "update": look.update,
        "secondsSinceEdit": look.since_edit.map(|time| time.as_secs_f64()),
        "origin": look.origin,
        "total": total(look.states()).map(|state| state.to_json()),
        "proxies": look.proxies.iter().map(proxy).collect::<Vec<_>>(),
        "others": look.others.iter().map(other).collect::<Vec<_>>(),
        "events": look.events.iter().map(event).collect::<Vec<_>>(),
        "eventsError": look.events_unknown,
    })
}

/// Several updates, as a look has one.
#[must_use]
pub fn json_list(updates: &[DynamoUpdateConfig]) -> Value {
    let updates = updates.iter().map(|update| {
        let mut update = update.clone();
        update.metadata.managed_fields = None;
        json!(update)
    });
    json!({"updates": updates.collect::<Vec<_>>()})
}

/// The same as YAML.
///
/// # Panics
/// Never: plain JSON can be written as YAML.
#[must_use]
pub fn yaml(look: &Value) -> String {
    serde_saphyr::to_string(look).expect("plain JSON can be written as YAML")
}
