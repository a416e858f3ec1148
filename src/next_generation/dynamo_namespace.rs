//! The Dynamo namespace, in which frontends find workers: each generation has a separate one.

use serde_json::{Value as Json, json};

use super::names::Names;

/// Dynamo's default namespace.
const DEFAULT: &str = "dynamo";
const VARIABLE: &str = "DYN_NAMESPACE";
const PREFIX: &str = "DYN_NAMESPACE_PREFIX";

/// Sets the namespace of the next generation in every container of a pod that names a Dynamo namespace. Returns whether there was
/// any.
pub(super) fn move_namespace(pod: &mut Json, names: &Names) -> Result<bool, String> {
    let mut found = false;
    for list in ["containers", "initContainers"] {
        let containers = pod.get_mut(list).and_then(Json::as_array_mut);
        for container in containers.into_iter().flatten() {
            found |= move_container(container, names)?;
        }
    }
    if let Some(main) = pod.get_mut("mainContainer") {
        found |= move_container(main, names)?;
    }
    Ok(found)
}

fn move_container(container: &mut Json, names: &Names) -> Result<bool, String> {
    let mut found = match container.get_mut("env") {
        Some(list) => variables(list, names)?,
        None => false,
    };
    for list in ["command", "args"] {
        let mut is_next = false;
        for word in container
            .get_mut(list)
            .and_then(Json::as_array_mut)
            .into_iter()
            .flatten()
        {
            let Some(text) = word.as_str() else {
                continue;
            };
            let moved = match is_next {
                true => Some(names.next(text)),
                false => arguments(text, names)?,
            };
            is_next = text == "--namespace";
            if let Some(moved) = moved {
                *word = moved.into();
                found = true;
            }
        }
    }
    Ok(found)
}

/// The same for a list of variables.
pub(super) fn variables(list: &mut Json, names: &Names) -> Result<bool, String> {
    let mut found = false;
    for variable in list.as_array_mut().into_iter().flatten() {
        let name = variable["name"].as_str().unwrap_or_default();
        if name == PREFIX {
            return Err(prefix(PREFIX));
        }
        if name != VARIABLE {
            continue;
        }
        let Some(value) = variable["value"].as_str() else {
            return Err(format!(
                "{VARIABLE} comes from elsewhere (valueFrom): set its value directly, so that each generation can have its own"
            ));
        };
        variable["value"] = names.next(value).into();
        found = true;
    }
    Ok(found)
}

fn prefix(by: &str) -> String {
    format!(
        "{by} makes frontends find the workers of every generation: set their Dynamo namespace with {VARIABLE} or --namespace"
    )
}

/// The words of a command line as one text, if one of them names a namespace.
fn arguments(text: &str, names: &Names) -> Result<Option<String>, String> {
    if text.contains("--namespace-prefix") {
        return Err(prefix("--namespace-prefix"));
    }
    let mut moved = text.to_owned();
    for (mark, end) in [("--namespace=", ""), ("--namespace ", ""), ("dyn://", ".")] {
        let Some(at) = moved.find(mark) else {
            continue;
        };
        let start = at + mark.len();
        let rest = &moved[start..];
        let is_end = |c: char| c.is_whitespace() || "\"';&|".contains(c) || end.contains(c);
        let length = rest.find(is_end).unwrap_or(rest.len());
        if length > 0 {
            let next = names.next(&rest[..length]);
            moved.replace_range(start..start + length, &next);
        }
    }
    Ok((moved != text).then_some(moved))
}

/// Sets the namespace if it was not set.
pub(super) fn state(pod: &mut Json, names: &Names) {
    let containers = pod.get_mut("containers").and_then(Json::as_array_mut);
    let Some(containers) = containers else {
        return;
    };
    let main = containers
        .iter()
        .position(|container| container["name"] == "main");
    let Some(container) = containers.get_mut(main.unwrap_or_default()) else {
        return;
    };
    let variable = json!({"name": VARIABLE, "value": names.next(DEFAULT)});
    match container.get_mut("env").and_then(Json::as_array_mut) {
        Some(list) => list.push(variable),
        None => container["env"] = json!([variable]),
    }
}
