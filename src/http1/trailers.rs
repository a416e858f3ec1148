//! Decides which trailer fields may be forwarded (RFC 9110 §6.5.1): none that must be known before the content, and none that a
//! recipient would miss by reading only the head.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame};
use http_body_util::StreamBody;

use crate::memory::{fields_size, holding_cost};

/// Fields for framing, routing (including those that choose a session), request modifiers, client identity, response control and
/// content format.
const FORBIDDEN: [&str; 63] = [
    "age",
    "alt-svc",
    "api-key",
    "authentication-info",
    "authorization",
    "cache-control",
    "cf-connecting-ip",
    "clear-site-data",
    "client-ip",
    "connection",
    "content-encoding",
    "content-length",
    "content-location",
    "content-range",
    "content-security-policy",
    "content-type",
    "cookie",
    "date",
    "early-data",
    "expect",
    "expires",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "location",
    "max-forwards",
    "origin",
    "pragma",
    "priority",
    "range",
    "referer",
    "retry-after",
    "session-id",
    "set-cookie",
    "strict-transport-security",
    "te",
    "thread-id",
    "trailer",
    "transfer-encoding",
    "true-client-ip",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "x-api-key",
    "x-auth-token",
    "x-claude-code-session-id",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-goog-api-key",
    "x-host",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-host",
    "x-original-url",
    "x-real-ip",
    "x-request-id",
    "x-rewrite-url",
    "x-session-id",
];

/// Prefixes of forbidden families: conditionals, fields for and from proxies, those that choose a worker, and this proxy's own.
const FORBIDDEN_BEGINNINGS: [&str; 12] = [
    ":",
    "access-control-",
    "if-",
    "proxy-",
    "sec-",
    "x-crossfade-",
    "x-dynamo-",
    "x-envoy-",
    "x-forwarded-",
    "x-gateway-",
    "x-prefill-",
    "x-worker-",
];

/// A complete body with trailers. Its head cannot announce a length, because trailers need chunked framing.
pub fn with_trailers<E>(bytes: Bytes, trailers: HeaderMap) -> impl Body<Data = Bytes, Error = E> {
    let frames = [Ok(Frame::data(bytes)), Ok(Frame::trailers(trailers))];
    StreamBody::new(futures_util::stream::iter(frames))
}

/// Maximum number of names that are kept of a `Connection` field.
const MAX_NAMED: usize = 16;
/// Maximum number of bytes of all these names together.
const MAX_NAMED_BYTES: usize = 512;

/// The names in a message's `Connection` field that a trailer field might have. Fields of these names apply to a single connection,
/// even as trailers (RFC 9110 §7.6.1).
///
/// Boxed, because nearly no message has any. Bounded, because they are kept until the message ends, and a sender can list tens of
/// thousands.
#[derive(Clone, Debug, Default)]
pub struct NamedFields(Option<Box<FieldNames>>);

#[derive(Clone, Debug, Default)]
struct FieldNames {
    names: Vec<HeaderName>,
    bytes: usize,
    /// There are more names than are kept, so no trailer field may be forwarded.
    overflowed: bool,
}

impl NamedFields {
    /// Adds a member of the `Connection` field.
    pub fn add(&mut self, member: &str) {
        if member.eq_ignore_ascii_case("close") {
            return;
        }
        let named = self.0.as_deref();
        if named.is_some_and(|named| named.overflowed) {
            return;
        }
        let Ok(name) = HeaderName::from_bytes(member.as_bytes()) else {
            return;
        };
        if !is_passable(name.as_str()) || self.contains(&name) {
            return;
        }
        let named = self.0.get_or_insert_default();
        named.bytes += member.len();
        if named.names.len() < MAX_NAMED && named.bytes <= MAX_NAMED_BYTES {
            named.names.push(name);
        } else {
            named.names = Vec::new();
            named.overflowed = true;
        }
    }

    fn contains(&self, name: &HeaderName) -> bool {
        let named = self.0.as_deref();
        named.is_some_and(|named| named.overflowed || named.names.contains(name))
    }
}

/// Whether fields of which only these are left keep the charge for the section that they came from: their values are slices of it,
/// except empty ones. Few fields need no charge.
pub(super) fn keep_their_charge(fields: &HeaderMap, section: usize) -> bool {
    let held = 2 * section + fields_size(fields);
    holding_cost(held) == 0 || !fields.values().all(HeaderValue::is_empty)
}

/// The trailer fields that may be forwarded; `None` if there are none.
#[must_use]
pub fn passable(trailers: HeaderMap, named: &NamedFields) -> Option<HeaderMap> {
    let mut passed = HeaderMap::with_capacity(trailers.keys_len());
    // Of several lines with the same name, only the first one yields the name.
    let mut last = None;
    for (name, value) in trailers {
        last = name.or(last);
        if let Some(name) = &last
            && is_passable(name.as_str())
            && !named.contains(name)
        {
            passed.append(name.clone(), value);
        }
    }
    (!passed.is_empty() && keep_their_charge(&passed, fields_size(&passed))).then_some(passed)
}

fn is_passable(name: &str) -> bool {
    FORBIDDEN.binary_search(&name).is_err()
        && !FORBIDDEN_BEGINNINGS
            .iter()
            .any(|beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookup_tables_are_sorted() {
        assert!(FORBIDDEN.is_sorted());
    }

    #[test]
    fn checksums_and_statuses_pass_and_what_a_head_says_does_not() {
        let lines = [
            ("x-sum", "1"),
            ("host", "a"),
            ("transfer-encoding", "chunked"),
            ("authorization", "b"),
            ("if-match", "c"),
            ("x-forwarded-for", "d"),
            ("x-crossfade-guard", "e"),
            ("grpc-status", "0"),
            ("x-api-key", "k"),
            ("x-session-id", "l"),
            ("x-dynamo-worker-instance-id", "m"),
            ("digest", "f"),
            ("digest", "g"),
            ("x-hop", "j"),
            ("set-cookie", "h"),
            ("set-cookie", "i"),
        ];
        let trailers = lines
            .iter()
            .map(|(name, value)| {
                (
                    name.parse().expect("a name"),
                    value.parse().expect("a value"),
                )
            })
            .fold(HeaderMap::new(), |mut map, (name, value)| {
                let name: http::HeaderName = name;
                map.append(name, value);
                map
            });
        let mut named = NamedFields::default();
        named.add("X-Hop");
        let passed = passable(trailers, &named).expect("some");
        let mut names: Vec<_> = passed.keys().map(http::HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["digest", "grpc-status", "x-sum"]);
        assert_eq!(passed.get_all("digest").iter().count(), 2);
    }

    #[test]
    fn many_fields_without_values_do_not_pass_once_the_value_that_held_their_charge_is_gone() {
        let fields = |count: usize, kept: &str| -> HeaderMap {
            let mut lines = vec![(kept.to_owned(), "x")];
            lines.extend((0..count).map(|i| (format!("x-{i}-{}", "n".repeat(100)), "")));
            let lines = lines.iter().map(|(name, value)| {
                let name = HeaderName::try_from(name.as_str()).expect("valid");
                (name, HeaderValue::try_from(*value).expect("valid"))
            });
            lines.collect()
        };
        let named = NamedFields::default();
        assert!(passable(fields(100, "date"), &named).is_none());
        assert_eq!(
            passable(fields(100, "x-date"), &named).map(|all| all.len()),
            Some(101)
        );
        assert_eq!(
            passable(fields(2, "date"), &named).map(|all| all.len()),
            Some(2)
        );
    }

    #[test]
    fn without_passable_fields_there_is_no_trailer_section() {
        let host = (http::header::HOST, http::HeaderValue::from_static("a"));
        assert_eq!(
            passable(HeaderMap::from_iter([host]), &NamedFields::default()),
            None
        );
    }

    #[test]
    fn names_without_bound_are_not_kept_and_then_no_trailer_passes() {
        let passes = |names: &[&str]| {
            let mut named = NamedFields::default();
            names.iter().for_each(|name| named.add(name));
            let kept = named.0.as_ref().map_or(0, |named| named.names.len());
            let sum = (
                "x-sum".parse().expect("a name"),
                http::HeaderValue::from_static("1"),
            );
            (
                kept,
                passable(HeaderMap::from_iter([sum]), &named).is_some(),
            )
        };
        let numbered: Vec<String> = (0..1000).map(|number| format!("x-{number}")).collect();
        let numbered: Vec<&str> = numbered.iter().map(String::as_str).collect();
        assert_eq!(
            passes(&["close", "Keep-Alive", "TE", "not a name", ""]),
            (0, true)
        );
        assert_eq!(passes(&["a"; 1000]), (1, true));
        assert_eq!(passes(&numbered[..16]), (16, true));
        assert_eq!(passes(&numbered), (0, false));
        assert_eq!(passes(&[&*"a".repeat(513)]), (0, false));
        assert_eq!(passes(&["X-Sum"]), (1, false));
    }
}
