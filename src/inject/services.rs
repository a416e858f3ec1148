//! Explains what happens to the Services that route to injected pods.

use serde_json::Value as Json;

use super::Note;
use super::edit::Editor;
use super::path::{below, get};
use super::pod::Frontend;
use super::workload::Workload;

/// An injected pod, as seen by Services.
pub(super) struct Injected {
    name: String,
    namespace: Option<String>,
    labels: Json,
    /// Where clients connect, and the name of that port.
    port: u16,
    port_name: Option<String>,
}

impl Injected {
    pub fn new(editor: &Editor<'_>, workload: &Workload, root: &Json, frontend: &Frontend) -> Self {
        let port = editor.port();
        let ports = get(root, &below(&frontend.path, ["ports"])).and_then(Json::as_array);
        let entry = ports
            .into_iter()
            .flatten()
            .find(|entry| entry["containerPort"] == port);
        Self {
            name: workload.name.clone(),
            namespace: workload.namespace.clone(),
            labels: editor.get(&workload.labels).cloned().unwrap_or_default(),
            port,
            port_name: entry.and_then(|entry| Some(entry["name"].as_str()?.to_owned())),
        }
    }

    fn is_selected_by(&self, service: &Json) -> bool {
        let Some(selector) = service["spec"]["selector"].as_object() else {
            return false;
        };
        let namespace = service["metadata"]["namespace"].as_str();
        !selector.is_empty()
            && namespace == self.namespace.as_deref()
            && selector
                .iter()
                .all(|(label, value)| self.labels[label.as_str()] == *value)
    }
}

/// What to tell of each Service, with the line where it begins.
pub(super) fn notes(services: &[(usize, Json)], injected: &[Injected]) -> Vec<Note> {
    let mut notes = Vec::new();
    for (line, service) in services {
        let name = super::workload::shown(service);
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

fn add_detail(note: &mut Note, port: &Json, pods: &Injected) {
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
    } else if target
        .as_str()
        .is_some_and(|name| Some(name) != pods.port_name.as_deref())
        && pods.port_name.is_none()
    {
        note.warn(format!(
            "its targetPort '{shown}' is not the name of a port of {}: write {}",
            pods.name, pods.port
        ));
    }
}
