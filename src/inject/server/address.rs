//! Finds the address that a server listens on.

use serde_json::Value as Json;

use super::arguments::in_arguments;
use super::port::PortOptions;
use super::variables::Reference;
use super::{Server, variable};

/// The address that a server is configured to listen on, if any.
pub(in crate::inject) fn host(
    server: Server,
    container: &Json,
    options: &PortOptions<'_>,
) -> Option<String> {
    let flags = ["--host", "--http-host"].into_iter();
    let given = flags.filter_map(|flag| in_arguments(server, container, flag, None)?.ok()?.pop());
    let mut values = given.map(|given| given.value.trim_matches(['"', '\'']).to_owned());
    let given = values.next();
    let of_variable = |name: &str| {
        let (_, variable) = variable(container, name)?;
        Some(variable["value"].as_str()?.to_owned())
    };
    match given {
        Some(given) => Some(match Reference::of(&given) {
            Some(Reference { name, .. }) => of_variable(name).unwrap_or(given),
            None => given,
        }),
        None => of_variable("DYN_HTTP_HOST").or_else(|| loopback(server, container, options)),
    }
}

/// The loopback address before a port, as in `OLLAMA_HOST=127.0.0.1:11434`.
fn loopback(server: Server, container: &Json, options: &PortOptions<'_>) -> Option<String> {
    let argument = options.flag.and_then(|flag| {
        let found = in_arguments(server, container, flag, options.port)?;
        Some(found.ok()?.pop()?.value)
    });
    let of_variable = || {
        let (_, variable) = variable(container, options.variable?)?;
        Some(variable["value"].as_str()?.to_owned())
    };
    let address = argument.or_else(of_variable)?;
    let (host, _) = address.trim_matches(['"', '\'']).rsplit_once(':')?;
    let host = host.rsplit('/').next().unwrap_or_default();
    matches!(host, "127.0.0.1" | "localhost" | "[::1]").then(|| host.to_owned())
}
