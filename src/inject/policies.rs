//! Explains which NetworkPolicies close the admin port of the injected pods, and what crossfade must reach from them.

mod egress;

use serde_json::Value as Json;

use super::Note;
use super::services::Injected;
use super::sidecar::NAME;
use super::workload::shown;

pub(super) const KIND: &str = "NetworkPolicy";

/// Notes on the NetworkPolicies, each with the line where it begins. Policies add up, so one that allows a port is enough.
pub(super) fn notes(policies: &[(usize, Json)], injected: &[Injected]) -> Vec<Note> {
    let mut notes = Vec::new();
    for pods in injected {
        let selecting = |direction| {
            let policies = policies.iter();
            policies
                .filter(move |(_, policy)| restricts(policy, direction) && selects(policy, pods))
        };
        let ingress: Vec<_> = selecting("Ingress").collect();
        if let (Some((line, policy)), Some(admin)) = (ingress.first(), pods.admin())
            && !{ ingress.iter() }.any(|(_, policy)| allows(policy, admin))
        {
            let mut note = Note::new(&shown(policy), *line, "left as it is");
            note.warn(format!(
                "its ingress rules do not allow port {admin} of {}: neither the controller nor Prometheus can query crossfade \
                 there; allow this port",
                pods.name
            ));
            notes.push(note);
        }
        let egress: Vec<_> = selecting("Egress").collect();
        let rules: Vec<_> = egress.iter().map(|(_, policy)| policy).collect();
        if let (Some(((line, policy), others)), Some(needs)) =
            (egress.split_first(), egress::needs(&rules))
        {
            let others: Vec<_> = others.iter().map(|(_, policy)| shown(policy)).collect();
            let with = match others.as_slice() {
                [] => String::new(),
                others => format!(", with those of {},", others.join(", ")),
            };
            let warning = format!(
                "its egress rules{with} must allow crossfade in {} to reach: {needs}",
                pods.name
            );
            let name = shown(policy);
            let is_it = |note: &&mut Note| (note.line, &note.object) == (*line, &name);
            if let Some(note) = notes.iter_mut().find(is_it) {
                note.warn(warning);
                continue;
            }
            let mut note = Note::new(&name, *line, "left as it is");
            note.warn(warning);
            notes.push(note);
        }
    }
    notes
}

/// Notes on policies of other kinds, which are not checked.
pub(super) fn of_others(policies: &[(usize, Json)], injected: &[Injected]) -> Vec<Note> {
    let mut notes = Vec::new();
    for (line, policy) in policies {
        let namespace = &policy["metadata"]["namespace"];
        if !injected
            .iter()
            .any(|pods| namespace.is_null() || pods.is_in(namespace))
        {
            continue;
        }
        let mut note = Note::new(&shown(policy), *line, "left as it is");
        note.warn(format!(
            "inject does not check policies of this kind: if it selects these pods, it must allow connections to crossfade's \
             admin port, and allow crossfade to reach {}",
            egress::ALL
        ));
        notes.push(note);
    }
    notes
}

/// Whether a policy restricts traffic in this direction.
fn restricts(policy: &Json, direction: &str) -> bool {
    let spec = &policy["spec"];
    match spec["policyTypes"].as_array() {
        Some(types) if !types.is_empty() => has(types, &direction.into()),
        // Without types, every policy restricts ingress, and one with egress rules also egress.
        _ => {
            direction == "Ingress"
                || spec["egress"]
                    .as_array()
                    .is_some_and(|rules| !rules.is_empty())
        }
    }
}

/// Whether a policy selects these pods.
fn selects(policy: &Json, pods: &Injected) -> bool {
    let spec = &policy["spec"];
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
    pods.is_in(&policy["metadata"]["namespace"])
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
