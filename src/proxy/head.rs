//! Builds the request head for a model server: removes hop-by-hop fields and adds the fields that a gateway must add
//! (RFC 9110 §7.6, RFC 7239). Host, credentials and trace context stay unchanged here. (If exchanges are traced,
//! `telemetry::trace` rewrites the trace context afterwards.)

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, HeaderName,
    HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Request, Version};

use crate::http1::{NameFilter, NamedFields, list_members, members};
use crate::memory::{Budget, Charge, Purpose, fields_size, holding_cost};
use crate::upstream::{
    AddedFields, Head, Proto, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO,
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// The client that sent a request. Created once per connection.
#[derive(Clone, Debug)]
pub struct Client {
    address: IpAddr,
    address_value: HeaderValue,
    tls: bool,
}

impl Client {
    /// Describes a client at `address`, connected with or without TLS.
    ///
    /// # Panics
    /// Never: an address is a valid header value.
    #[must_use]
    pub fn new(address: IpAddr, tls: bool) -> Self {
        let address = address.to_canonical();
        let text = address.to_string();
        Self {
            address,
            address_value: HeaderValue::try_from(text).expect("an address is a valid header value"),
            tls,
        }
    }

    /// The text of its address.
    #[must_use]
    pub fn address_text(&self) -> &str {
        self.address_value.to_str().unwrap_or_default()
    }

    fn proto(&self) -> Proto {
        if self.tls { Proto::Https } else { Proto::Http }
    }
}

/// Charges a request head to `memory`, unless it is small. `None` if there is no room.
#[must_use]
pub fn charge<B>(request: &Request<B>, memory: &Arc<Budget>) -> Option<Charge> {
    let path = request.uri().path_and_query();
    let target = path.map_or(0, |path| path.as_str().len());
    let wanted = holding_cost(target + fields_size(request.headers()));
    let mut charge = Charge::default();
    charge
        .resize(memory, wanted, Purpose::Head)
        .then_some(charge)
}

/// Turns a client's request head into one for a model server. `names` are the names of its fields. Also returns the
/// fields that `Connection` names, which are meant for the client's connection alone.
pub fn outgoing(
    parts: http::request::Parts,
    names: NameFilter,
    client: Option<&Client>,
    upgrade: bool,
) -> (Head, NamedFields) {
    let http::request::Parts {
        method,
        uri,
        version,
        mut headers,
        ..
    } = parts;
    let expects_continue = names.may_contain(&EXPECT) && headers.remove(EXPECT).is_some();
    // With HTTP/2, the authority is part of the target.
    if !names.contains(&headers, &HOST)
        && let Some(value) = uri
            .authority()
            .and_then(|name| name.as_str().try_into().ok())
    {
        headers.insert(HOST, value);
    }
    if version == Version::HTTP_2 && names.may_contain(&COOKIE) {
        join_cookies(&mut headers);
    }
    let upgrade = upgrade.then(|| headers.get(UPGRADE).cloned()).flatten();
    let named = remove_hop_by_hop(&mut headers, names);
    if names.may_contain(&CONTENT_LENGTH) {
        headers.remove(CONTENT_LENGTH);
    }
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    let mut added = client.map_or_else(AddedFields::default, |client| {
        forwarded(&mut headers, names, client)
    });
    added.via = Some(version);
    let head = Head {
        method,
        uri,
        headers,
        added,
        expects_continue,
    };
    (head, named)
}

/// HTTP/2 may split a Cookie field for better compression; HTTP/1.1 requires a single one (RFC 9113 §8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut crumbs = headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (crumbs.next(), crumbs.next()) else {
        return;
    };
    let mut joined = first.as_bytes().to_vec();
    for crumb in [second].into_iter().chain(crumbs) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(crumb.as_bytes());
    }
    if let Ok(joined) = HeaderValue::from_maybe_shared(bytes::Bytes::from(joined)) {
        headers.insert(COOKIE, joined);
    }
}

/// Asks the model server not to compress (RFC 9110 §12.5.3). A compressed event stream cannot be parsed, so it could be
/// neither retried nor ended with an error event.
pub fn request_identity(headers: &mut HeaderMap, names: NameFilter) {
    if names.contains(headers, &ACCEPT_ENCODING) {
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
}

/// Whether the client asks to upgrade to another protocol (RFC 9110 §7.8). Upgrades to HTTP/2 do not count: the proxy
/// would not see the requests that follow.
pub fn asks_to_upgrade(headers: &HeaderMap, names: NameFilter) -> bool {
    let wants = |name, word: &str| {
        list_members(headers, &name).any(|member| {
            let protocol = member.split('/').next().unwrap_or(member);
            protocol.eq_ignore_ascii_case(word)
        })
    };
    names.contains(headers, &UPGRADE)
        && wants(CONNECTION, "upgrade")
        && !wants(UPGRADE, "h2c")
        && !wants(UPGRADE, "HTTP")
}

/// RFC 9110 §7.6.1: removes `Connection`, the fields that it names, and the known hop-by-hop fields. Returns the names
/// that `Connection` lists, since trailers may be among them.
pub fn remove_hop_by_hop(headers: &mut HeaderMap, names: NameFilter) -> NamedFields {
    let mut named = NamedFields::default();
    if names.contains(headers, &CONNECTION) {
        let lines: Vec<HeaderValue> = headers.get_all(CONNECTION).iter().cloned().collect();
        for member in lines.iter().flat_map(members) {
            // A client must not be able to remove fields that a gateway or the model server relies on.
            let is_protected = [HOST, X_FORWARDED_FOR, crate::guard::GUARD]
                .iter()
                .any(|name| name.as_str().eq_ignore_ascii_case(member));
            if !is_protected {
                headers.remove(member);
            }
            named.add(member);
        }
        headers.remove(CONNECTION);
    }
    for name in [KEEP_ALIVE, PROXY_CONNECTION, TE, TRANSFER_ENCODING, UPGRADE] {
        if names.may_contain(&name) {
            headers.remove(name);
        }
    }
    named
}

/// Appends the client to the forwarding lists already in `headers`; returns the fields to add.
fn forwarded(headers: &mut HeaderMap, names: NameFilter, client: &Client) -> AddedFields {
    let mut added = AddedFields {
        forwarded_proto: (!names.contains(headers, &X_FORWARDED_PROTO)).then(|| client.proto()),
        forwarded_host: !names.contains(headers, &X_FORWARDED_HOST),
        ..AddedFields::default()
    };
    match list(headers, names, &X_FORWARDED_FOR) {
        None => {
            // Replace a list that is not readable text.
            if names.may_contain(&X_FORWARDED_FOR) {
                headers.remove(X_FORWARDED_FOR);
            }
            added.forwarded_for = Some(client.address_value.clone());
        }
        Some(list) => set(
            headers,
            X_FORWARDED_FOR,
            format!("{list}, {}", client.address),
        ),
    }
    // RFC 7239: continue the list only if an earlier proxy began it.
    if names.contains(headers, &FORWARDED) {
        let address = match client.address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("\"[{address}]\""),
        };
        let element = format!("for={address};proto={}", client.proto().as_str());
        // In a list whose last quoted string does not end, the element would be part of that string.
        let began = list(headers, names, &FORWARDED).filter(|list| quotes_are_closed(list));
        let whole = began.map_or(element.clone(), |list| format!("{list}, {element}"));
        set(headers, FORWARDED, whole);
    }
    added
}

/// Whether every quoted string in a field ends (RFC 9110 §5.6.4).
fn quotes_are_closed(text: &str) -> bool {
    let mut is_quoted = false;
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b'\\' if is_quoted => drop(bytes.next()),
            _ => {}
        }
    }
    !is_quoted
}

fn list(headers: &HeaderMap, names: NameFilter, name: &HeaderName) -> Option<String> {
    if !names.may_contain(name) {
        return None;
    }
    let lines: Vec<&str> = headers
        .get_all(name)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .collect();
    (!lines.is_empty()).then(|| lines.join(", "))
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut request = Request::builder().uri("/a");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        let client = Client::new([10, 0, 0, 9].into(), false);
        let request = request.body(()).expect("valid");
        let names = NameFilter::of(request.headers());
        let parts = request.into_parts().0;
        outgoing(parts, names, Some(&client), false).0.fields()
    }

    #[test]
    fn hop_by_hop_fields_are_removed_and_the_rest_stays() {
        let seen = headers(&[
            ("host", "api.example"),
            ("connection", "close, X-Mine, host"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("content-length", "3"),
            ("authorization", "Bearer x"),
            ("traceparent", "00-1-2-01"),
        ]);
        let mut names: Vec<_> = seen.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "authorization",
                "host",
                "traceparent",
                "via",
                "x-forwarded-for",
                "x-forwarded-host",
                "x-forwarded-proto"
            ]
        );
        assert_eq!(seen["x-forwarded-for"], "10.0.0.9");
        assert_eq!(seen["x-forwarded-host"], "api.example");
    }

    #[test]
    fn lists_that_others_began_are_continued() {
        let seen = headers(&[
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "2.2.2.2"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=1.1.1.1"),
            ("via", "1.0 edge"),
        ]);
        assert_eq!(seen["x-forwarded-for"], "1.1.1.1, 2.2.2.2, 10.0.0.9");
        assert_eq!(seen["x-forwarded-proto"], "https");
        assert_eq!(seen["forwarded"], "for=1.1.1.1, for=10.0.0.9;proto=http");
        assert_eq!(seen.get_all("via").iter().count(), 2);
    }

    #[test]
    fn a_forwarded_list_that_would_swallow_the_client_is_replaced() {
        let own = "for=10.0.0.9;proto=http";
        for (began, expected) in [
            ("for=\"[::1]\"", format!("for=\"[::1]\", {own}")),
            ("for=\"a\\\"b\"", format!("for=\"a\\\"b\", {own}")),
            ("for=\"1.2.3.4", own.to_owned()),
            ("for=\"a\\\"", own.to_owned()),
            ("for=\u{80}", own.to_owned()),
        ] {
            assert_eq!(
                headers(&[("forwarded", began)])["forwarded"],
                expected,
                "{began}"
            );
        }
    }

    #[test]
    fn a_list_that_cannot_be_read_is_replaced() {
        let seen = headers(&[("x-forwarded-for", "1.1.1.1\u{80}")]);
        let lines: Vec<_> = seen.get_all("x-forwarded-for").iter().collect();
        assert_eq!(lines, ["10.0.0.9"]);
    }
}
