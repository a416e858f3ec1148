//! Finds the port that a server listens on, and how to change it.

use serde_json::Value as Json;

use super::assigned::{may_have_default, not_in_file, set_in_env, unknown_setter};
use super::moves::{Move, Swap, append, shared};
use super::script;
use super::shell;
use super::variables::{Reference, Scope, Written};
use super::{Server, variable};
use crate::inject::path::{Path, below, get};

/// The argument with which most servers set their port.
const USUAL: &str = "--port";

/// How to set the port of an unknown server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::inject) struct PortOptions<'a> {
    pub port: Option<u16>,
    pub flag: Option<&'a str>,
    pub variable: Option<&'a str>,
    /// Whether an earlier injection added the flag where there were no arguments, so that the image accepts it alone.
    pub was_alone: bool,
}

/// The port on which a server listens, and the edits that move it to another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inject) struct Relocated {
    pub port: u16,
    pub how: Move,
    /// The port is not set, so it is the server's default.
    pub is_assumed: bool,
}

/// The port on which a server listens, and the edits that move it to the port `to`.
///
/// # Errors
/// Why the port is unknown.
pub(in crate::inject) fn relocate(
    server: Server,
    container: &Json,
    given: &PortOptions<'_>,
    to: u16,
) -> Result<Relocated, String> {
    let relocated = relocated(server, container, given, to)?;
    match relocated.port {
        0 => Err("it listens on port 0, which is any free port: set a fixed one".to_owned()),
        _ => Ok(relocated),
    }
}

fn relocated(
    server: Server,
    container: &Json,
    given: &PortOptions<'_>,
    to: u16,
) -> Result<Relocated, String> {
    let flag = given.flag.or(server.flag());
    // Most servers have this argument. One that has it with the port is not asked for its name.
    let usual = (server == Server::Other && given.port.is_some() && given.variable.is_none())
        .then_some(USUAL)
        .filter(|flag| in_arguments(server, container, flag, given.port).is_some());
    let flag = flag.or(usual);
    let name = given.variable.or(server.variable());
    let known = |(port, swaps): (u16, Vec<Swap>)| Relocated {
        port,
        how: Move::Swap(swaps),
        is_assumed: false,
    };
    if let Some(found) = flag.and_then(|flag| in_arguments(server, container, flag, given.port)) {
        return all_moved(found?, container, given.port, to).map(known);
    }
    if let Some(name) = name {
        set_in_env(container, name)?;
    }
    if let Some((_, variable)) = name.and_then(|name| variable(container, name)) {
        let name = variable["name"].as_str().unwrap_or_default();
        let (port, swap) = by_variable(container, name, given.port, to)?;
        return Ok(known((port, vec![swap])));
    }
    let relocated = |how: Move| Relocated {
        port: given.port.unwrap_or_else(|| server.default_port()),
        how,
        is_assumed: given.port.is_none(),
    };
    if let Some(name) = name {
        let name = name.to_owned();
        return Ok(relocated(Move::Variable { name }));
    }
    let Some(flag) = flag else {
        let message = "cannot tell how its port is set: use --port-arg FLAG or --port-env NAME, so that it can listen \
            on another one";
        return Err(message.to_owned());
    };
    Ok(relocated(append(
        server,
        container,
        flag,
        given.was_alone,
        to,
    )?))
}

/// The port that every one of several commands sets, and the edits of them all.
fn all_moved(
    found: Vec<Given>,
    container: &Json,
    given: Option<u16>,
    to: u16,
) -> Result<(u16, Vec<Swap>), String> {
    let mut port = 0;
    let mut swaps = Vec::new();
    for one in found {
        let (number, swap) = one.moved(container, given, to)?;
        port = number;
        // They may all use the same variable.
        if !swaps.contains(&swap) {
            swaps.push(swap);
        }
    }
    Ok((port, swaps))
}

/// A port in a command line.
pub(super) struct Given {
    /// The path below the container.
    path: Path,
    /// The text from the flag to the end of the value, and the value.
    whole: String,
    pub(super) value: String,
    /// How often the whole text occurs.
    times: usize,
}

impl Given {
    fn moved(self, container: &Json, given: Option<u16>, to: u16) -> Result<(u16, Swap), String> {
        let bare = self.value.trim_matches(['"', '\'']);
        let port = match Reference::of(bare) {
            None => bare,
            Some(Reference {
                name,
                default: Some(default),
            }) if variable(container, name).is_none() && container["envFrom"].is_null() => {
                may_have_default(container, name)?;
                default
            }
            Some(Reference { name, .. }) => return by_variable(container, name, given, to),
        };
        let (number, moved) = moved(port, to).ok_or_else(|| match bare.contains(['$', '`']) {
            true => format!("its port is computed ({bare}): write it as a number"),
            false => format!("its port '{bare}' is not {}", expected(bare)),
        })?;
        agree(number, given)?;
        let new = bare.replacen(port, &moved, 1);
        let (path, from, times) = (self.path, self.whole, self.times);
        // The flag before it may contain the same digits.
        let at = from.rfind(bare).unwrap_or(0);
        let to = format!("{}{new}{}", &from[..at], &from[at + bare.len()..]);
        let swap = Swap {
            path,
            from,
            to,
            times,
        };
        Ok((number, swap))
    }
}

/// The port in `PORT`, `:PORT` or `HOST:PORT`, and the same text with the port `to`.
fn moved(text: &str, to: u16) -> Option<(u16, String)> {
    let at = text.rfind(':').map_or(0, |colon| colon + 1);
    let port = text[at..].parse().ok()?;
    Some((port, format!("{}{to}", &text[..at])))
}

/// What a text should be instead of a value that is not a port.
fn expected(value: &str) -> &'static str {
    let port = value.rsplit(':').next().unwrap_or_default();
    match port.parse::<f64>() {
        Ok(_) => "a whole number from 1 to 65535",
        Err(_) => "a number",
    }
}

/// Whether a server listens only on a Unix socket.
pub(in crate::inject) fn is_on_socket(server: Server, container: &Json) -> bool {
    server == Server::Vllm && in_arguments(server, container, "--uds", None).is_some()
}

/// The variable in which a command line has the port, and what in the script may set it to another value than the manifest shows.
pub(in crate::inject) fn doubtful_variable(
    server: Server,
    container: &Json,
    given: &PortOptions<'_>,
) -> Option<(String, &'static str)> {
    let flag = given.flag.or(server.flag()).unwrap_or(USUAL);
    let found = in_arguments(server, container, flag, given.port)?.ok()?;
    let name = found.iter().find_map(|given| {
        let bare = given.value.trim_matches(['"', '\'']);
        Some(Reference::of(bare)?.name.to_owned())
    });
    Some((name?, unknown_setter(container)?))
}

fn agree(port: u16, given: Option<u16>) -> Result<(), String> {
    match given {
        Some(given) if given != port => Err(format!(
            "--port is {given}, but according to the manifest, it listens on {port}"
        )),
        _ => Ok(()),
    }
}

fn by_variable(
    container: &Json,
    name: &str,
    given: Option<u16>,
    to: u16,
) -> Result<(u16, Swap), String> {
    set_in_env(container, name)?;
    if variable(container, name).is_none() {
        not_in_file(container, name)?;
    }
    let unknown = || {
        format!(
            "its port is in the variable {name}, which has no value in the container's env: set it there"
        )
    };
    let (index, variable) = variable(container, name).ok_or_else(unknown)?;
    let value = variable["value"].as_str().ok_or_else(unknown)?;
    // Kubernetes replaces it if that variable precedes this one.
    let other = value.strip_prefix("$(").and(Reference::of(value));
    if let Some(Reference { name: other, .. }) = other
        && self::variable(container, other).is_some_and(|(other, _)| other < index)
    {
        return by_variable(container, other, given, to);
    }
    let is_address = |value: &str| {
        let value = value.trim_matches(['[', ']']);
        value == "localhost" || value.parse::<std::net::IpAddr>().is_ok()
    };
    let (port, moved) = match moved(value, to) {
        Some(found) if !is_address(value) => found,
        _ => {
            return Err(match given.filter(|_| is_address(value)) {
                Some(given) => format!(
                    "the variable {name} has no port: write {value}:{given} if the server listens on {given} now"
                ),
                None => format!("the variable {name} is not {}: '{value}'", expected(value)),
            });
        }
    };
    agree(port, given)?;
    let path = below(&below(&below(&Path::new(), ["env"]), [index]), ["value"]);
    let (from, to) = (value.to_owned(), moved);
    let swap = Swap {
        path,
        from,
        to,
        times: 1,
    };
    Ok((port, swap))
}

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
    let mut values = match values.collect::<Result<Vec<_>, _>>() {
        Ok(values) => values,
        Err(message) => return Some(Err(message)),
    };
    let port = |written: &Written| moved(shell::bare(&written.value), 0).map(|(port, _)| port);
    let is_same = |values: &[Written]| {
        let mut pairs = values.windows(2);
        pairs.all(|pair| match (port(&pair[0]), port(&pair[1])) {
            (None, None) => pair[0].value == pair[1].value,
            (one, other) => one == other,
        })
    };
    let have_all = values.is_empty() || values.len() == count;
    if let Some(wanted) = given.filter(|_| !is_same(&values)) {
        values.retain(|written| port(written) == Some(wanted));
    }
    if !is_same(&values) {
        return Some(Err(format!(
            "several commands of its script have {flag}, and it is unclear which one is the server's: set its port with --port"
        )));
    }
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
