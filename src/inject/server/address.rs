//! Finds the address that a server listens on.

use std::net::IpAddr;

use serde_json::Value as Json;

use super::arguments::in_arguments;
use super::port::PortOptions;
use super::shell;
use super::variables::Reference;
use super::{Server, variable};

/// Variables in which some servers read the address. Others use the same names differently, so only a loopback address counts.
const VARIABLES: [&str; 2] = ["LLAMA_ARG_HOST", "HOSTNAME"];

/// The address that a server is configured to listen on, if any.
pub(in crate::inject) fn host(
    server: Server,
    container: &Json,
    options: &PortOptions<'_>,
) -> Option<String> {
    let flags = ["--host", "--http-host"].into_iter();
    let mut given =
        flags.filter_map(|flag| in_arguments(server, container, flag, None)?.ok()?.pop());
    let of_variable = |name: &str| {
        let (_, variable) = variable(container, name)?;
        Some(variable["value"].as_str()?.to_owned())
    };
    let given = given.next().map(|given| resolved(container, &given.value));
    let given = given.or_else(|| of_variable("DYN_HTTP_HOST"));
    let given = given.or_else(|| before_port(server, container, options));
    let given = given.or_else(|| {
        let variables = VARIABLES.into_iter().filter(|_| server == Server::Other);
        let mut hosts = variables.filter_map(of_variable);
        hosts.find(|host| is_loopback(&canonical(host)))
    });
    given.map(|host| canonical(&host))
}

/// Whether only the same pod can reach an address.
fn is_loopback(host: &str) -> bool {
    let address = host.parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The value of a variable that contains the address, or the value itself.
fn resolved(container: &Json, value: &str) -> String {
    let value = shell::bare(value);
    let Some(Reference { name, default }) = Reference::of(value) else {
        return value.to_owned();
    };
    let of_variable = variable(container, name);
    let known = match of_variable {
        Some((_, variable)) => variable["value"].as_str(),
        None => default,
    };
    known.unwrap_or(value).to_owned()
}

/// The usual notation of an address: all addresses are `0.0.0.0`, and brackets and the form of IPv4 in IPv6 are removed.
fn canonical(host: &str) -> String {
    let name = host.trim_matches(['[', ']']).to_ascii_lowercase();
    match name.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) if matches!(name.as_str(), "" | "*" | "0") => "0.0.0.0".to_owned(),
        Err(_) if name == "localhost" => name,
        Err(_) => host.to_owned(),
    }
}

/// The address before a port, as in `OLLAMA_HOST=127.0.0.1:11434`.
fn before_port(server: Server, container: &Json, options: &PortOptions<'_>) -> Option<String> {
    let argument = options.flag.and_then(|flag| {
        let found = in_arguments(server, container, flag, options.port)?;
        Some(found.ok()?.pop()?.value)
    });
    let of_variable = || {
        let (_, variable) = variable(container, options.variable?)?;
        Some(variable["value"].as_str()?.to_owned())
    };
    let address = argument.or_else(of_variable)?;
    let address = shell::bare(&address);
    let (host, _) = address
        .rsplit_once(':')
        .filter(|_| !address.starts_with("${"))?;
    let host = host.rsplit('/').next().unwrap_or_default();
    Some(resolved(container, host))
}
