//! A look for programs: JSON and YAML with the same content.
//!
//! Must not know where it was got from.

use serde_json::{Value, json};

use super::{Asked, Happened, Look};
use crate::state_api::total;

/// All of it: the resource as the cluster has it, each proxy's state and all of them together.
#[must_use]
pub fn json(look: &Look) -> Value {
    let proxy = |asked: &Asked| {
        let (state, error) = match &asked.state {
            Ok(state) => (state.to_json(), Value::Null),
            Err(error) => (Value::Null, json!(error)),
        };
        json!({"name": asked.name, "error": error, "state": state})
    };
    let event = |event: &Happened| {
        let kind = if event.warning { "Warning" } else { "Normal" };
        json!({"at": event.at, "type": kind, "reason": event.reason, "note": event.note})
    };
    json!({
        "update": look.update,
        "origin": look.origin,
        "total": total(look.states()).map(|state| state.to_json()),
        "proxies": look.proxies.iter().map(proxy).collect::<Vec<_>>(),
        "events": look.events.iter().map(event).collect::<Vec<_>>(),
    })
}

/// The same as YAML.
///
/// # Panics
/// Never: plain JSON can be written as YAML.
#[must_use]
pub fn yaml(look: &Look) -> String {
    serde_saphyr::to_string(&json(look)).expect("plain JSON can be written as YAML")
}
