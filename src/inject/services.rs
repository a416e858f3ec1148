//! Explains how Services and service accounts affect the injected pods.

use serde_json::Value as Json;

use super::Note;
use super::edit::Editor;
use super::path::get;
use super::pod::FRONTEND_NAMES;
use super::sidecar::NAME;
use super::workload::{Workload, shown, truth};

const AUTOMOUNT: &str = "automountServiceAccountToken";

/// An injected pod, as seen by Services.
pub(super) struct Injected {
    pub name: String,
    namespace: Option<String>,
    account: String,
    /// Whether the pod itself requests the token of its account.
    is_mounted: Option<bool>,
    labels: Json,
    /// The port that clients connect to, and its name.
    port: u16,
    port_name: Option<String>,
    /// The other ports that have a name.
    others: Vec<(String, Json)>,
}

impl Injected {
    pub fn new(editor: &Editor<'_>, workload: &Workload) -> Self {
        let port = editor.port();
        let everywhere = workload.everywhere(editor.wanted());
        let ports = everywhere.iter().flat_map(|(_, container)| {
            let ports = container["ports"].as_array().into_iter().flatten();
            ports.map(move |entry| (container["name"] == NAME, entry))
        });
        let named = ports.filter_map(|(is_own, entry)| {
            let name = entry["name"].as_str()?.to_owned();
            let number = entry["containerPort"].clone();
            Some((is_own && number == port, name, number))
        });
        let (own, others): (Vec<_>, Vec<_>) = named.partition(|(is_own, ..)| *is_own);
        Self {
            name: workload.name.clone(),
            namespace: workload.namespace.clone(),
            account: workload.account(editor.wanted()),
            is_mounted: get(editor.wanted(), &workload.spec)
                .and_then(|spec| truth(&spec[AUTOMOUNT])),
            labels: editor.get(&workload.labels).cloned().unwrap_or_default(),
            port,
            port_name: own.into_iter().next().map(|(_, name, _)| name),
            others: others
                .into_iter()
                .map(|(_, name, number)| (name, number))
                .collect(),
        }
    }

    /// The number of its admin port.
    pub fn admin(&self) -> Option<u64> {
        let admin = self.others.iter().find(|(name, _)| name == NAME)?;
        admin.1.as_u64()
    }

    pub fn label(&self, name: &str) -> &Json {
        &self.labels[name]
    }

    pub fn has_label(&self, name: &str) -> bool {
        !self.label(name).is_null()
    }

    pub fn is_in(&self, namespace: &Json) -> bool {
        namespace.as_str() == self.namespace.as_deref()
    }

    fn is_selected_by(&self, service: &Json) -> bool {
        let Some(selector) = service["spec"]["selector"].as_object() else {
            return false;
        };
        !selector.is_empty()
            && self.is_in(&service["metadata"]["namespace"])
            && selector
                .iter()
                .all(|(label, value)| self.labels[label.as_str()] == *value)
    }
}

/// Notes on each Service, with the line where it begins.
pub(super) fn notes(services: &[(usize, Json)], injected: &[Injected]) -> Vec<Note> {
    let mut notes = Vec::new();
    for (line, service) in services {
        let name = shown(service);
        for pods in injected.iter().filter(|pods| pods.is_selected_by(service)) {
            let mut note = Note::new(&name, *line, "left as it is");
            for port in service["spec"]["ports"].as_array().into_iter().flatten() {
                add_detail(&mut note, port, pods);
            }
            notes.push(note);
        }
    }
    notes
}

/// Notes on each service account, with the line where it begins.
pub(super) fn of_accounts(accounts: &[(usize, Json)], injected: &[Injected]) -> Vec<Note> {
    let mut notes = Vec::new();
    for (line, account) in accounts {
        let metadata = &account["metadata"];
        let is_theirs = |pods: &&Injected| {
            metadata["name"] == pods.account.as_str()
                && pods.is_in(&metadata["namespace"])
                && pods.is_mounted.is_none()
        };
        if truth(&account[AUTOMOUNT]) != Some(false) {
            continue;
        }
        for pods in injected.iter().filter(is_theirs) {
            let mut note = Note::new(&shown(account), *line, "left as it is");
            note.warn(format!(
                "{AUTOMOUNT} is false: crossfade in {} cannot read updates until it is true here or in the pod",
                pods.name
            ));
            notes.push(note);
        }
    }
    notes
}

fn add_detail(note: &mut Note, port: &Json, pods: &Injected) {
    if let Some(protocol) = port["protocol"].as_str().filter(|name| *name != "TCP") {
        note.add_detail(format!(
            "its {protocol} port {} does not route to crossfade, which serves TCP",
            port["port"]
        ));
        return;
    }
    let target = match &port["targetPort"] {
        Json::Null => &port["port"],
        target => target,
    };
    let by_number = *target == pods.port;
    let by_name = target.is_string() && target.as_str() == pods.port_name.as_deref();
    let shown = target
        .as_str()
        .map_or_else(|| target.to_string(), str::to_owned);
    if by_number || by_name {
        note.add_detail(format!(
            "its targetPort {shown} now routes to crossfade in {}",
            pods.name
        ));
        return;
    }
    let is_it = |(name, number): &&(String, Json)| target == name || target == number;
    let other = pods.others.iter().find(is_it);
    match other {
        Some((name, _)) if FRONTEND_NAMES.contains(&name.as_str()) => note.warn(format!(
            "its targetPort {shown} routes to the frontend of {} and bypasses crossfade, so that its requests are not split: \
             write {}",
            pods.name, pods.port
        )),
        _ if !target.is_string() => note.add_detail(format!(
            "its targetPort {shown} does not route to crossfade in {}, which has port {}",
            pods.name, pods.port
        )),
        Some((_, number)) => note.add_detail(format!(
            "its targetPort '{shown}' routes to port {number} of {}, not to crossfade, which has port {}",
            pods.name, pods.port
        )),
        None => note.warn(format!(
            "its targetPort '{shown}' is not the name of a port of {}: write {}",
            pods.name, pods.port
        )),
    }
}
