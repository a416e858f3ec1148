//! Finds an argument of a server, in a list of arguments or in a script.

use serde_json::Value as Json;

use super::Server;
use super::given::Given;
use super::moves::shared;
use super::script;
use super::shell;
use super::variables::{Scope, Written};
use crate::inject::path::{Path, below, get};

/// The last occurrence of `flag` with a value, or that of each command that starts the server.
pub(super) fn in_arguments(
    server: Server,
    container: &Json,
    flag: &str,
    given: Option<u16>,
) -> Option<Result<Vec<Given>, String>> {
    let mut found = None;
    for list in ["command", "args"] {
        let items = container[list].as_array().map_or(&[][..], Vec::as_slice);
        for (index, item) in items.iter().enumerate() {
            let Some(text) = item.as_str() else { continue };
            let path = |index: usize| below(&below(&Path::new(), [list]), [index]);
            if text == flag {
                let value = items.get(index + 1).map(|value| match value {
                    Json::String(text) => text.clone(),
                    other => other.to_string(),
                });
                found = Some(value.ok_or(format!("{flag} has no value")).map(|value| {
                    vec![Given {
                        path: path(index + 1),
                        whole: value.clone(),
                        value,
                        times: 1,
                    }]
                }));
            } else if let Some(given) = in_script(server, container, &path(index), flag, given) {
                found = Some(given);
            }
        }
    }
    found
}

/// `flag` with its value in the command of a script that starts the server. Other commands may have the same flag. If several
/// commands start it on the same port, such as those of a condition, all of them count.
fn in_script(
    server: Server,
    container: &Json,
    path: &Path,
    flag: &str,
    given: Option<u16>,
) -> Option<Result<Vec<Given>, String>> {
    let text = get(container, path)?.as_str()?;
    let starts = script::serving(text, server.words());
    let count = starts.len();
    let commands = match starts.is_empty() {
        true => shell::commands(text),
        false => starts.into_iter().map(|start| start.command).collect(),
    };
    let scope = Scope { text, container };
    let values = commands
        .iter()
        .filter_map(|command| scope.find(command, flag));
    let values = values.collect::<Result<Vec<_>, _>>();
    let values = match values {
        Ok(values) => values,
        Err(message) => return Some(Err(message)),
    };
    let have_all = values.is_empty() || values.len() == count;
    let values = match of_one_server(values, container, flag, given, count > 0) {
        Ok(values) => values,
        Err(message) => return Some(Err(message)),
    };
    let default = server.default_port();
    if count > 1 && !have_all && given.is_none_or(|given| given == default) {
        return Some(Err(format!(
            "some of the commands of its script that start it have {flag}, and others do not: write {flag} {default} into these"
        )));
    }
    if values.is_empty() {
        return None;
    }
    let mut found: Vec<Given> = Vec::new();
    for written in &values {
        let path = match written.variable {
            Some(index) => below(&below(&below(&Path::new(), ["env"]), [index]), ["value"]),
            None => path.clone(),
        };
        let text = get(container, &path)?.as_str()?;
        let end = written.place.end;
        let is_covered = |given: &Given| given.path == path && text[..end].ends_with(&given.whole);
        if found.iter().any(is_covered) {
            continue;
        }
        let same = values
            .iter()
            .filter(|other| other.variable == written.variable);
        let ends: Vec<_> = same.map(|other| other.place.end).collect();
        let (whole, times) = shared(text, written.place.clone(), &ends);
        found.push(Given {
            path,
            whole,
            value: written.value.clone(),
            times,
        });
    }
    Some(Ok(found))
}

/// The values that set the same port. Of different ones, those that set the given port. `are_servers` says whether it is certain
/// that all commands start a server.
///
/// # Errors
/// Why they cannot be told apart.
fn of_one_server(
    values: Vec<Written>,
    container: &Json,
    flag: &str,
    given: Option<u16>,
    are_servers: bool,
) -> Result<Vec<Written>, String> {
    let ports = values.iter();
    let ports: Vec<_> = ports
        .map(|written| Given::port(&written.value, container))
        .collect();
    let is_same = |index: usize| match (&ports[index - 1], &ports[index]) {
        (Err(_), Err(_)) => {
            shell::bare(&values[index - 1].value) == shell::bare(&values[index].value)
        }
        (one, other) => one == other,
    };
    if (1..values.len()).all(is_same) {
        return Ok(values);
    }
    let unknown = ports.iter().find_map(|port| port.clone().err());
    // It may be the same server.
    if let Some(message) = unknown.filter(|_| are_servers) {
        return Err(message);
    }
    let Some(wanted) = given else {
        return Err(format!(
            "several commands of its script have {flag}, and it is unclear which one is the server's: set its port with --port"
        ));
    };
    let values = values.into_iter().zip(&ports);
    let values = values.filter(|(_, port)| **port == Ok(wanted));
    let values: Vec<_> = values.map(|(written, _)| written).collect();
    match values.is_empty() {
        true => {
            let known = ports.iter().flatten().map(ToString::to_string);
            Err(format!(
                "--port is {wanted}, but according to the manifest, it listens on {}",
                known.collect::<Vec<_>>().join(" or ")
            ))
        }
        false => Ok(values),
    }
}
