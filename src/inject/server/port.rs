//! Finds the port that a server listens on, and how to change it.

use serde_json::Value as Json;

use super::arguments::in_arguments;
use super::assigned::{set_in_env, unknown_setter};
use super::given::{Given, by_variable};
use super::moves::{Move, Swap, append};
use super::shell;
use super::variables::Reference;
use super::{Server, variable};

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

/// Whether a server listens only on a Unix socket.
pub(in crate::inject) fn is_on_socket(server: Server, container: &Json) -> bool {
    server == Server::Vllm && in_arguments(server, container, "--uds", None).is_some()
}

/// Whether the given port selects one of several commands that start the server on different ports.
pub(in crate::inject) fn is_one_of_several(
    server: Server,
    container: &Json,
    given: &PortOptions<'_>,
) -> bool {
    let found = |port: Option<u16>| {
        let flag = given.flag.or(server.flag())?;
        in_arguments(server, container, flag, port)
    };
    // The commands of an unknown server may be others with the same argument.
    server != Server::Other
        && matches!(found(given.port), Some(Ok(_)))
        && matches!(found(None), Some(Err(_)))
}

/// A variable that contains the port, and what may set it to another value than the manifest shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inject) struct Doubtful {
    pub name: String,
    pub by: &'static str,
    /// Whether the command line refers to it, so that a number could replace it there.
    pub is_in_arguments: bool,
}

/// The variable that contains the port, if it may have another value than the manifest shows.
pub(in crate::inject) fn doubtful_variable(
    server: Server,
    container: &Json,
    given: &PortOptions<'_>,
) -> Option<Doubtful> {
    let by = unknown_setter(container)?;
    let flag = given.flag.or(server.flag()).unwrap_or(USUAL);
    let doubtful = |name: &str, is_in_arguments: bool| Doubtful {
        name: name.to_owned(),
        by,
        is_in_arguments,
    };
    if let Some(found) = in_arguments(server, container, flag, given.port) {
        let found = found.ok()?;
        let mut names = found
            .iter()
            .filter_map(|given| Reference::of(shell::bare(&given.value)));
        return Some(doubtful(names.next()?.name, true));
    }
    let name = given.variable.or(server.variable())?;
    variable(container, name)?;
    Some(doubtful(name, false))
}
