//! Tells what a second injection does not keep of the sidecar that it replaces, such as variables that a user has added.

use serde_json::{Value as Json, json};

use crate::inject::defaults::Defaults;
use crate::inject::path::{self, below};
use crate::inject::sidecar::NAME;
use crate::inject::tree::Tree;
use crate::inject::undo::shown;
use crate::inject::workload::Workload;
use crate::inject::{Note, Options};

/// The container and the volume of a sidecar.
pub(super) struct Parts {
    container: Json,
    volume: Json,
}

/// Those in a pod, if it has the container.
pub(super) fn parts(root: &Json, workload: &Workload) -> Option<Parts> {
    let containers = workload.everywhere(root).into_iter();
    let mut containers = containers.map(|(_, container)| container);
    let container = containers.find(|container| container["name"] == NAME)?;
    let volumes = path::get(root, &below(&workload.spec, ["volumes"]));
    let volumes = volumes.and_then(Json::as_array).into_iter().flatten();
    let volume = { volumes }.find(|volume| volume["name"] == NAME).cloned();
    Some(Parts {
        container: container.clone(),
        volume: volume.unwrap_or_default(),
    })
}

/// States in the note that a sidecar is replaced, and what `text` does not keep of it.
pub(super) fn explain(
    note: &mut Note,
    earlier: &Parts,
    text: &str,
    workload: &Workload,
    options: &Options,
) {
    let tree = Tree::read(text).ok().flatten();
    let Some(json) = tree.and_then(|tree| tree.json().ok()) else {
        return;
    };
    let Some(new) = parts(&json, workload) else {
        return;
    };
    let how = note.summary.replacen(" is added as ", " as ", 1);
    note.summary = format!("its sidecar is updated: {how}");
    let defaults = Defaults {
        host_network: workload.is_on_host_network(&json),
    };
    let mut lost = Lost {
        options,
        defaults,
        found: Vec::new(),
    };
    lost.compare("", &earlier.container, &new.container);
    if !earlier.volume.is_null() {
        lost.compare("volume", &earlier.volume, &new.volume);
    }
    if !lost.found.is_empty() {
        note.warn(format!(
            "its container '{NAME}' is replaced, so these changes to the earlier one are lost: {}",
            lost.found.join("; ")
        ));
    }
}

struct Lost<'o> {
    /// Those of this injection: what they set is not lost.
    options: &'o Options,
    defaults: Defaults,
    found: Vec<String>,
}

impl Lost<'_> {
    /// Compares the values at `place`, which is empty for the container itself.
    fn compare(&mut self, place: &str, earlier: &Json, new: &Json) {
        if self.is_chosen(place) || self.defaults.is_unchanged(earlier, new) {
            return;
        }
        let below = |key: &str| match place {
            "" => key.to_owned(),
            place => format!("{place}/{key}"),
        };
        match (earlier, new) {
            (Json::Object(earlier), Json::Object(new)) => {
                for (key, value) in earlier {
                    match new.get(key) {
                        Some(new) => self.compare(&below(key), value, new),
                        None => self.gone(&below(key), key, value),
                    }
                }
            }
            (Json::Array(earlier), Json::Array(new)) => {
                let mut gone = String::new();
                for item in earlier {
                    let is_same = |new: &&Json| match name(item) {
                        Some(name_of_it) => name(new) == Some(name_of_it),
                        None => self.defaults.is_unchanged(item, new),
                    };
                    match (new.iter().find(is_same), name(item)) {
                        (Some(new), Some(name)) => {
                            let place = below(&format!("[{name}]"));
                            self.compare(&place, item, new);
                        }
                        (Some(_), None) => {}
                        (None, _) => {
                            gone.push(' ');
                            gone += &item_shown(item);
                        }
                    }
                }
                if !gone.is_empty() {
                    self.found.push(format!("{place}{gone}"));
                }
            }
            _ => self.found.push(format!("{place} {}", shown(earlier))),
        }
    }

    /// A member that the new sidecar does not have, unless it is a default.
    fn gone(&mut self, place: &str, key: &str, value: &Json) {
        if !self.is_chosen(place) && !self.defaults.is_unchanged(&json!({key: value}), &json!({})) {
            self.found.push(format!("{place} {}", shown(value)));
        }
    }

    /// Whether the user has just set an option that decides what is at this place.
    fn is_chosen(&self, place: &str) -> bool {
        let given = self.options;
        match place {
            "image" => given.image.is_some(),
            "restartPolicy" | "lifecycle" => given.plain_container,
            "env/[CROSSFADE_DRAIN]" => given.drain.is_some(),
            "env/[CROSSFADE_KUBE_DEPLOYMENT]" => given.deployment.is_some(),
            "resources/limits/cpu" => given.cpu_limit.is_some(),
            "resources/requests/cpu" => given.cpu_request.is_some() || given.cpu_limit.is_some(),
            "resources/requests/memory" => given.memory_request.is_some(),
            "env/[CROSSFADE_LISTEN]" | "env/[CROSSFADE_OLD]" => given.port.is_some(),
            place => place.starts_with("ports/") && given.port.is_some(),
        }
    }
}

/// What tells an item of a list from the others.
fn name(item: &Json) -> Option<&str> {
    item["name"].as_str()
}

/// An item of a list as a message shows it.
fn item_shown(item: &Json) -> String {
    match (name(item), item["value"].as_str()) {
        (Some(name), Some(value)) => format!("{name}={value}"),
        _ => shown(item),
    }
}
