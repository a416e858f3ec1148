//! The address of a frontend: `host:port`, `http://host[:port]` or `https://host[:port]`.
//!
//! Does not resolve names or open connections.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use rustls::pki_types::ServerName;

/// The address of a frontend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TargetAddress {
    /// Whether to use TLS.
    pub tls: bool,
    pub host: Host,
    /// The TCP port, never 0.
    pub port: u16,
    /// The host as the user wrote it, if [`super::TargetScope::of`] expanded it to the full name in [`TargetAddress::host`]. The
    /// server's certificate must contain this name.
    pub written: Option<Host>,
}

/// The host of a [`TargetAddress`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A DNS name in lower case. A trailing dot marks it as absolute.
    Name(String),
    Ip(IpAddr),
}

/// Why a text is not a [`TargetAddress`]; the message is for its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' {reason}")]
pub struct TargetError {
    text: String,
    reason: String,
}

impl TargetAddress {
    /// Host and port for the `Host` header and `:authority` (RFC 9110 §7.2). Omits the default port of the scheme; IPv6
    /// addresses are in brackets.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.port == default_port(self.tls) {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The server name for TLS.
    #[must_use]
    pub fn called(&self) -> &Host {
        self.written.as_ref().unwrap_or(&self.host)
    }

    /// Whether the name must resolve to a Service of its namespace: if [`super::TargetScope::of`] has expanded it.
    #[must_use]
    pub const fn is_confined(&self) -> bool {
        self.written.is_some()
    }

    /// Name and namespace of the Service whose full name in the cluster's `domain` this is; `None` for any other host.
    #[must_use]
    pub fn service(&self, domain: &str) -> Option<(&str, &str)> {
        let Host::Name(name) = &self.host else {
            return None;
        };
        let name = name.trim_end_matches('.').strip_suffix(domain)?;
        let (service, namespace) = name.strip_suffix(".svc.")?.split_once('.')?;
        (!namespace.contains('.')).then_some((service, namespace))
    }

    /// The name to resolve. An expanded name gets a trailing dot (RFC 1034 §3.1), so that the resolver does not try its search
    /// list first: in a pod that list ends in the domain of the node, which may belong to anyone.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.host {
            Host::Name(name) if self.written.is_some() && !name.ends_with('.') => {
                format!("{name}.")
            }
            Host::Name(name) => name.clone(),
            Host::Ip(ip) => ip.to_string(),
        }
    }
}

fn default_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

impl fmt::Display for TargetAddress {
    /// The whole URL, always with a port.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

impl Host {
    /// The name of a host in TLS, if a certificate can contain it, without the final dot of an absolute name (RFC 6066 §3).
    #[must_use]
    pub fn server_name(&self) -> Option<ServerName<'static>> {
        match self {
            Host::Ip(ip) => Some((*ip).into()),
            Host::Name(name) => ServerName::try_from(name.trim_end_matches('.').to_owned()).ok(),
        }
    }
}

impl fmt::Display for Host {
    /// The form in a URL: IPv6 addresses are in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::Ip(IpAddr::V4(ip)) => ip.fmt(f),
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
        }
    }
}

impl FromStr for TargetAddress {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        parse(text.trim()).map_err(|reason| TargetError {
            // Keeps passwords out of logs.
            text: match text.rsplit_once('@') {
                Some((_, host)) => format!("…@{}", host.trim()),
                None => text.trim().to_owned(),
            },
            reason,
        })
    }
}

impl FromStr for Host {
    type Err = TargetError;

    /// Parses a DNS name or an IP address; IPv6 addresses are in brackets.
    fn from_str(text: &str) -> Result<Self, TargetError> {
        parse_host(text).map_err(|reason| TargetError {
            text: text.to_owned(),
            reason,
        })
    }
}

/// Parses a comma-separated list of at least one target.
///
/// # Errors
///
/// Every element that is not a target. An empty list counts as one empty element.
pub fn parse_targets(list: &str) -> Result<Vec<TargetAddress>, Vec<TargetError>> {
    let (good, bad): (Vec<_>, Vec<_>) = list
        .split(',')
        .map(str::parse::<TargetAddress>)
        .partition(Result::is_ok);
    if bad.is_empty() {
        Ok(good.into_iter().filter_map(Result::ok).collect())
    } else {
        Err(bad.into_iter().filter_map(Result::err).collect())
    }
}

fn parse(text: &str) -> Result<TargetAddress, String> {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
        None => (None, text),
    };
    let tls = match scheme.as_deref() {
        None | Some("http") => false,
        Some("https") => true,
        Some(other) => {
            return Err(format!(
                "has the scheme '{other}'; it must be http or https"
            ));
        }
    };
    // `http://host/` is the same URL as `http://host` (RFC 3986 §6.2.3).
    let authority = match scheme {
        Some(_) => rest.strip_suffix('/').unwrap_or(rest),
        None => rest,
    };
    check_is_authority(authority)?;
    let (host, port) = split_port(authority)?;
    let host = parse_host(host)?;
    let port = match port {
        Some(port) => parse_port(port)?,
        None if scheme.is_some() => default_port(tls),
        None => return Err("has no port; write host:port, or http://host for port 80".into()),
    };
    Ok(TargetAddress {
        tls,
        host,
        port,
        written: None,
    })
}

fn check_is_authority(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("names no host; write host:port".into());
    }
    if text.contains('@') {
        return Err("contains credentials; remove them".into());
    }
    if text.contains('?') || text.contains('#') {
        return Err("has a query or fragment; only a host and port make sense here".into());
    }
    if text.contains('/') {
        return Err(
            "has a path; only a host and port make sense here, paths are forwarded unchanged"
                .into(),
        );
    }
    Ok(())
}

/// Splits off the port's digits. The host keeps its brackets.
fn split_port(authority: &str) -> Result<(&str, Option<&str>), String> {
    if authority.starts_with('[') {
        let end = authority
            .find(']')
            .ok_or("has a '[' without a matching ']'")?
            + 1;
        return match authority[end..].strip_prefix(':') {
            Some(port) => Ok((&authority[..end], Some(port))),
            None if end == authority.len() => Ok((authority, None)),
            None => Err("has something other than a port after the ']'".into()),
        };
    }
    match authority.split_once(':') {
        Some((_, rest)) if rest.contains(':') => {
            Err("has several colons; an IPv6 address must be in brackets, as in [::1]:8000".into())
        }
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((authority, None)),
    }
}

fn parse_port(digits: &str) -> Result<u16, String> {
    // `parse` alone would accept a sign.
    let number = match digits.as_bytes() {
        [first, ..] if first.is_ascii_digit() => digits.parse().ok(),
        _ => None,
    };
    match number {
        Some(port) if port > 0 => Ok(port),
        _ => Err(format!(
            "has the port '{digits}'; it must be from 1 to {}",
            u16::MAX
        )),
    }
}

fn parse_host(text: &str) -> Result<Host, String> {
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner
            .strip_suffix(']')
            .ok_or("has a '[' without a matching ']'")?;
        return inner
            .parse::<Ipv6Addr>()
            .map(|ip| Host::Ip(ip.into()))
            .map_err(|_| format!("has '{inner}' in brackets, which is not an IPv6 address"));
    }
    if let Ok(ip) = text.parse::<Ipv4Addr>() {
        return Ok(Host::Ip(ip.into()));
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.rsplit('.').next().is_some_and(is_number) {
        // A host whose last label is a number is an IPv4 address (WHATWG URL §3.5), and resolvers take it for one.
        return Err(format!(
            "has the host '{text}', which is not an IPv4 address"
        ));
    }
    // RFC 1123 §2.1, and underscores, which resolvers accept.
    if name.len() > 253 || !name.split('.').all(is_host_label) {
        return Err(format!(
            "has the host '{text}', which is not a DNS name; a name is made of letters, digits, '-', and '.'"
        ));
    }
    Ok(Host::Name(text.to_ascii_lowercase()))
}

/// Whether a label is a decimal, octal, or hexadecimal number.
fn is_number(label: &str) -> bool {
    let hexadecimal = label.strip_prefix("0x").or(label.strip_prefix("0X"));
    match hexadecimal {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

fn is_host_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_host_is_called_by_its_address_or_its_name_without_the_last_dot() {
        let called = |host: Host| host.server_name().map(|name| name.to_str().into_owned());
        let name = |name: &str| Host::Name(name.to_owned());
        assert_eq!(called(name("new.dev.")).as_deref(), Some("new.dev"));
        assert_eq!(called(name("a b")), None);
        assert_eq!(
            called(Host::Ip([127, 0, 0, 1].into())).as_deref(),
            Some("127.0.0.1")
        );
    }

    #[test]
    fn every_form_of_a_target_is_read_and_shown() {
        for (text, shown, authority) in [
            ("frontend:8000", "http://frontend:8000", "frontend:8000"),
            (
                " A.b-c.svc_x.local.:80 ",
                "http://a.b-c.svc_x.local.:80",
                "a.b-c.svc_x.local.",
            ),
            ("http://frontend", "http://frontend:80", "frontend"),
            ("HTTP://frontend/", "http://frontend:80", "frontend"),
            ("https://f.example", "https://f.example:443", "f.example"),
            (
                "https://f.example:80",
                "https://f.example:80",
                "f.example:80",
            ),
            ("10.0.0.1:8000", "http://10.0.0.1:8000", "10.0.0.1:8000"),
            ("[::1]:8000", "http://[::1]:8000", "[::1]:8000"),
            (
                "https://[2001:DB8::1]",
                "https://[2001:db8::1]:443",
                "[2001:db8::1]",
            ),
            ("1password:1", "http://1password:1", "1password:1"),
        ] {
            let target: TargetAddress = text.parse().expect(text);
            assert_eq!(target.to_string(), shown, "{text}");
            assert_eq!(target.authority(), authority, "{text}");
            assert_eq!(target.to_string().parse(), Ok(target), "{text}");
        }
    }

    #[test]
    fn an_invalid_target_is_rejected_with_the_reason() {
        for (text, reason) in [
            ("", "no host"),
            ("http://", "no host"),
            ("frontend", "no port"),
            ("[::1]", "no port"),
            ("ftp://frontend:21", "scheme 'ftp'"),
            ("http://frontend/v1", "path"),
            ("frontend:80/", "path"),
            ("http://frontend//", "path"),
            ("http://frontend?x=1", "query"),
            ("http://frontend#x", "query or fragment"),
            ("http://me:secret@frontend", "credentials"),
            ("frontend:", "port ''"),
            ("frontend:0", "port '0'"),
            ("frontend:65536", "port '65536'"),
            ("frontend:+80", "port '+80'"),
            ("frontend:http", "port 'http'"),
            ("::1:8000", "brackets"),
            ("[::1:8000", "without a matching ']'"),
            ("[::1]8000", "after the ']'"),
            ("[frontend]:80", "not an IPv6 address"),
            ("[fe80::1%eth0]:80", "not an IPv6 address"),
            ("[]:80", "not an IPv6 address"),
            ("256.0.0.1:80", "not an IPv4 address"),
            ("10.0.1:80", "not an IPv4 address"),
            ("0x7f000001:80", "not an IPv4 address"),
            ("127.0.0.0XA:80", "not an IPv4 address"),
            ("127.0.0.0x:80", "not an IPv4 address"),
            (":80", "not a DNS name"),
            ("a..b:80", "not a DNS name"),
            (".:80", "not a DNS name"),
            ("-a:80", "not a DNS name"),
            ("a b:80", "not a DNS name"),
            ("fröntend:80", "not a DNS name"),
            (&format!("{}:80", "a".repeat(64)), "not a DNS name"),
            (&format!("{}a:80", "a.".repeat(127)), "not a DNS name"),
        ] {
            let error = text.parse::<TargetAddress>().expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_password_is_not_repeated() {
        let error = "http://me:secret@frontend"
            .parse::<TargetAddress>()
            .unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn a_list_gives_all_targets_or_all_errors() {
        assert_eq!(parse_targets("a:1, b:2").unwrap().len(), 2);
        assert_eq!(parse_targets("a:1,,b,c:0").unwrap_err().len(), 3);
        assert_eq!(parse_targets("").unwrap_err().len(), 1);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z0-9:/\\[\\].@%, \u{e9}-]{0,24}") {
            if let Ok(target) = text.parse::<TargetAddress>() {
                prop_assert_eq!(target.to_string().parse(), Ok(target));
            }
        }
    }
}
