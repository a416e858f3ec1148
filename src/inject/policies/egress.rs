//! What crossfade must reach from its pod, and whether the egress rules of NetworkPolicies allow it.

use serde_json::Value as Json;

/// Everything that it must reach.
pub(super) const ALL: &str = "DNS (UDP and TCP port 53), the API server (TCP, usually port 443 or 6443), and the new frontend's Service \
     and pods (TCP)";

/// How far rules allow something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Allowed {
    No,
    /// Only to some destinations or ports, which may or may not be the right ones.
    Unclear,
    Yes,
}

/// What crossfade needs, each with whether all rules of these policies together allow it. `None` if they allow everything.
pub(super) fn needs(policies: &[&Json]) -> Option<String> {
    let rules = policies.iter();
    let rules = rules.filter_map(|policy| policy["spec"]["egress"].as_array());
    let rules: Vec<&Json> = rules.flatten().collect();
    let port = |protocol: &str, port: u64| {
        let all = rules.iter().map(|rule| port_allowed(rule, protocol, port));
        all.max().unwrap_or(Allowed::No)
    };
    let both = |one: Allowed, other: Allowed| match one == other {
        true => one,
        false => Allowed::Unclear,
    };
    let any_port = rules.iter().map(|rule| any_port_allowed(rule)).max();
    let needs = [
        (
            "DNS (UDP and TCP port 53)",
            both(port("UDP", 53), port("TCP", 53)),
        ),
        (
            "the API server (TCP, usually port 443 or 6443)",
            both(port("TCP", 443), port("TCP", 6443)),
        ),
        (
            "the new frontend's Service and pods (TCP)",
            any_port.unwrap_or(Allowed::No),
        ),
    ];
    let is_all = needs.iter().all(|(_, allowed)| *allowed == Allowed::Yes);
    let needs = needs.map(|(what, allowed)| {
        let said = match allowed {
            Allowed::No => "not allowed",
            Allowed::Unclear => "not checked, because only some destinations or ports are allowed",
            Allowed::Yes => "allowed",
        };
        format!("{what}: {said}")
    });
    (!is_all).then(|| needs.join("; "))
}

/// Whether a rule allows all destinations.
fn is_to_all(rule: &Json) -> bool {
    rule["to"].as_array().is_none_or(Vec::is_empty)
}

/// What a rule allows if its ports include those that are meant.
fn within(rule: &Json) -> Allowed {
    match is_to_all(rule) {
        true => Allowed::Yes,
        false => Allowed::Unclear,
    }
}

fn ports(rule: &Json) -> impl Iterator<Item = &Json> {
    rule["ports"].as_array().into_iter().flatten()
}

fn is_of(entry: &Json, protocol: &str) -> bool {
    entry["protocol"].as_str().unwrap_or("TCP") == protocol
}

fn port_allowed(rule: &Json, protocol: &str, port: u64) -> Allowed {
    if ports(rule).next().is_none() {
        return within(rule);
    }
    let by_entry = ports(rule)
        .filter(|entry| is_of(entry, protocol))
        .map(|entry| {
            match (&entry["port"], entry["endPort"].as_u64()) {
                (Json::Null, _) => within(rule),
                // The name of a port of the destination.
                (Json::String(_), _) => Allowed::Unclear,
                (first, end) => match first.as_u64() {
                    Some(first) if (first..=end.unwrap_or(first)).contains(&port) => within(rule),
                    _ => Allowed::No,
                },
            }
        });
    by_entry.max().unwrap_or(Allowed::No)
}

/// The same for TCP at a port that is not known.
fn any_port_allowed(rule: &Json) -> Allowed {
    let mut entries = ports(rule).peekable();
    if entries.peek().is_none() {
        return within(rule);
    }
    let by_entry = entries
        .filter(|entry| is_of(entry, "TCP"))
        .map(|entry| match entry["port"] {
            Json::Null => within(rule),
            _ => Allowed::Unclear,
        });
    by_entry.max().unwrap_or(Allowed::No)
}
