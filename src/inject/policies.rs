//! Explains which NetworkPolicies close the admin port of the injected pods.

use serde_json::Value as Json;

use super::Note;
use super::services::Injected;
use super::sidecar::NAME;
use super::workload::shown;

/// Notes on the NetworkPolicies, each with the line where it begins. Policies add up, so one that allows the port is enough.
pub(super) fn notes(policies: &[(usize, Json)], injected: &[Injected]) -> Vec<Note> {
    let mut notes = Vec::new();
    for pods in injected {
        let selecting = policies.iter().filter(|(_, policy)| selects(policy, pods));
        let selecting: Vec<_> = selecting.collect();
        let (Some((line, policy)), Some(admin)) = (selecting.first(), pods.admin()) else {
            continue;
        };
        if { selecting.iter() }.any(|(_, policy)| allows(policy, admin)) {
            continue;
        }
        let mut note = Note::new(&shown(policy), *line, "left as it is");
        note.warn(format!(
            "its ingress rules do not allow port {admin} of {}: neither the controller nor Prometheus can query crossfade \
             there; allow this port",
            pods.name
        ));
        notes.push(note);
    }
    notes
}

/// Whether a policy restricts what may connect to these pods.
fn selects(policy: &Json, pods: &Injected) -> bool {
    let spec = &policy["spec"];
    let types = spec["policyTypes"].as_array();
    // Every policy restricts ingress unless it says otherwise.
    let is_ingress = types.is_none_or(|types| types.is_empty() || has(types, &"Ingress".into()));
    let selector = &spec["podSelector"];
    let by_label = selector["matchLabels"].as_object().into_iter().flatten();
    let mut by_label = by_label.map(|(label, value)| pods.label(label) == value);
    let by_expression = selector["matchExpressions"].as_array();
    let mut by_expression = by_expression.into_iter().flatten().map(|expression| {
        let label = pods.label(expression["key"].as_str().unwrap_or_default());
        let values = expression["values"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        match expression["operator"].as_str() {
            Some("In") => has(values, label),
            Some("NotIn") => !has(values, label),
            Some("Exists") => !label.is_null(),
            Some("DoesNotExist") => label.is_null(),
            _ => false,
        }
    });
    is_ingress
        && pods.is_in(&policy["metadata"]["namespace"])
        && by_label.all(|matches| matches)
        && by_expression.all(|matches| matches)
}

fn has(all: &[Json], one: &Json) -> bool {
    all.contains(one)
}

/// Whether anything may connect to the port `admin`.
fn allows(policy: &Json, admin: u64) -> bool {
    let rules = policy["spec"]["ingress"].as_array().into_iter().flatten();
    let is_meant = |entry: &Json| {
        let (port, end) = (&entry["port"], entry["endPort"].as_u64());
        let is_tcp = entry["protocol"].is_null() || entry["protocol"] == "TCP";
        let is_in = |first: u64| (first..=end.unwrap_or(first)).contains(&admin);
        is_tcp && (port.is_null() || *port == NAME || port.as_u64().is_some_and(is_in))
    };
    rules.map(|rule| rule["ports"].as_array()).any(|ports| {
        // A rule without ports allows all.
        ports.is_none_or(|ports| ports.is_empty() || ports.iter().any(is_meant))
    })
}
