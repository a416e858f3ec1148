//! The forms of values that flags take, beyond what the types themselves parse.
//!
//! Must not know which flag it is.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use crate::resource::Host;

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let hint = "give IP:PORT, [IPv6]:PORT, HOST:PORT or :PORT";
    let text = match text.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => text.to_owned(),
    };
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let mut found = text
        .to_socket_addrs()
        .map_err(|error| format!("{error}; {hint}"))?;
    found.next().ok_or_else(|| hint.to_owned())
}

/// The admin port of a proxy, as `host:port` or as the address of its page. Nothing stays nothing: the end of a list.
pub(super) fn admin_port(text: &str) -> Result<String, String> {
    let hint = "give HOST:PORT or http://HOST:PORT/";
    if text.is_empty() {
        return Ok(String::new());
    }
    if text.starts_with("https://") {
        return Err(format!("the admin port speaks no TLS; {hint}"));
    }
    let text = text.strip_prefix("http://").unwrap_or(text);
    let authority: http::uri::Authority = text
        .strip_suffix('/')
        .unwrap_or(text)
        .parse()
        .map_err(|_| hint.to_owned())?;
    match authority.port_u16() {
        Some(1..) if !authority.host().is_empty() && !authority.as_str().contains('@') => {
            Ok(authority.to_string())
        }
        _ => Err(hint.to_owned()),
    }
}

pub(super) fn path_prefix(text: &str) -> Result<String, String> {
    match text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err("a path begins with '/'".to_owned()),
    }
}

pub(super) fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be more than 0".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("is no whole number".to_owned()),
    }
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    match seconds_or_none(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        duration => Ok(duration),
    }
}

pub(super) fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| "is no number of seconds".to_owned())?;
    if !(0.0..=86_400.0 * 30.0).contains(&number) {
        return Err("must be from 0 to 2592000 seconds".to_owned());
    }
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

pub(super) fn domain(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    match name.parse::<Host>() {
        Ok(Host::Name(name)) => Ok(name),
        _ => Err("is no domain, as cluster.local is one".to_owned()),
    }
}

pub(super) fn host_name(text: &str) -> Result<String, String> {
    match text.parse::<Host>() {
        Ok(Host::Name(name)) => Ok(name),
        _ => Err("is no name of a host; addresses need not be named".to_owned()),
    }
}

/// The name of an object of a cluster. An empty one is what a pod gets from a label that it does not carry.
pub(super) fn object_name(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("is empty: does the pod carry the label that it is taken from?".to_owned()),
        name => Ok(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_port_is_told_by_host_and_port_or_by_the_address_of_its_page() {
        for (given, meant) in [
            ("127.0.0.1:9464", "127.0.0.1:9464"),
            ("http://127.0.0.1:9464/", "127.0.0.1:9464"),
            ("http://proxy.example:9464", "proxy.example:9464"),
            ("[::1]:9464", "[::1]:9464"),
            ("", ""),
        ] {
            assert_eq!(admin_port(given).as_deref(), Ok(meant), "{given}");
        }
        for wrong in [
            "proxy.example",
            "https://proxy.example:9464",
            "http://proxy.example:9464/plan",
            "me@proxy.example:9464",
            ":9464",
            "proxy.example:0",
            "proxy.example:99999",
            "http://",
        ] {
            assert!(admin_port(wrong).is_err(), "{wrong}");
        }
    }
}
