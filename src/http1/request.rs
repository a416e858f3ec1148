//! Parses a client's request head, and rejects it if two parsers could read it differently (RFC 9112 §3, §6, §11.2).

use std::fmt;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version};

use super::{
    Framing, MAX_HEADERS, NameFilter, content_length, decimal, header_map, line_ends_are_crlf, part,
};

/// A request head, and what it means for the connection.
#[derive(Debug)]
pub struct RequestHead {
    pub method: Method,
    /// The target in origin form, or `*`.
    pub uri: Uri,
    pub version: Version,
    pub headers: HeaderMap,
    pub framing: Framing,
    /// Whether the connection may be reused for another request (RFC 9112 §9.3).
    pub keep_alive: bool,
    /// Whether the client waits for `100 Continue` (RFC 9110 §10.1.1).
    pub expects_continue: bool,
    /// Length of the head, in bytes.
    pub length: usize,
}

/// Why a request head is rejected. None of it is forwarded, and the connection is closed.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum HeadError {
    Malformed,
    LineEnd,
    Target,
    Host,
    Length,
    LengthAndEncoding,
    Encoding,
    Expect,
    TooMany,
    Version,
    Connect,
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for HeadError {}

impl HeadError {
    /// The problem, as text for the client and the log.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Malformed => "the request head is malformed",
            Self::LineEnd => "the request head has a line that does not end in CRLF",
            Self::Target => "the request target is malformed",
            Self::Host => "the request needs exactly one valid Host",
            Self::Length => {
                "the request has more than one Content-Length, or one that is not a number"
            }
            Self::LengthAndEncoding => "the request has both Content-Length and Transfer-Encoding",
            Self::Encoding => {
                "the request has a Transfer-Encoding other than a single `chunked` over HTTP/1.1"
            }
            Self::Expect => "the request has an Expect value other than `100-continue`",
            Self::TooMany => "the request has too many header lines",
            Self::Version => "this HTTP version is not supported",
            Self::Connect => "CONNECT is not supported",
        }
    }

    /// The status of the response to the client.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::TooMany => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Self::Expect => StatusCode::EXPECTATION_FAILED,
            Self::Connect => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

/// Parses one request head at the start of `bytes`. Returns `None` if it is incomplete.
///
/// # Errors
/// The first reason to reject it.
pub fn parse_request(bytes: &[u8]) -> Result<Option<RequestHead>, HeadError> {
    let mut found = [const { std::mem::MaybeUninit::uninit() }; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut []);
    let length = match parsed.parse_with_uninit_headers(bytes, &mut found) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooMany),
        Err(httparse::Error::Version) => return Err(HeadError::Version),
        Err(_) => return Err(HeadError::Malformed),
    };
    if !line_ends_are_crlf(&bytes[..length]) {
        return Err(HeadError::LineEnd);
    }
    let version = match parsed.version {
        Some(0) => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    let method = parsed.method.unwrap_or_default();
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| HeadError::Malformed)?;
    if method == Method::CONNECT {
        return Err(HeadError::Connect);
    }
    let head = &bytes[..length];
    let copy = Bytes::copy_from_slice(head);
    let mut headers = header_map(parsed.headers, head, &copy, 0).ok_or(HeadError::Malformed)?;
    let names = NameFilter::of(&headers);
    let framing = framing(&headers, names, version)?;
    let path = parsed.path.ok_or(HeadError::Malformed)?.as_bytes();
    let uri = target(part(&copy, head, path), &method, version, &mut headers)?;
    let expects_continue = names.may_contain(&EXPECT) && expectation(&headers, version)?;
    Ok(Some(RequestHead {
        keep_alive: keep_alive(&headers, names, version),
        method,
        uri,
        version,
        headers,
        framing,
        expects_continue,
        length,
    }))
}

fn framing(headers: &HeaderMap, names: NameFilter, version: Version) -> Result<Framing, HeadError> {
    let lines = |name| names.may_contain(&name).then(|| headers.get_all(name));
    let mut lengths = lines(CONTENT_LENGTH).into_iter().flatten();
    let mut encodings = lines(TRANSFER_ENCODING).into_iter().flatten();
    match (
        lengths.next(),
        lengths.next(),
        encodings.next(),
        encodings.next(),
    ) {
        (None, _, None, _) => Ok(Framing::None),
        (Some(length), None, None, _) => match content_length(length) {
            Some(0) => Ok(Framing::None),
            Some(length) => Ok(Framing::Length(length)),
            None => Err(HeadError::Length),
        },
        (Some(_), Some(_), None, _) => Err(HeadError::Length),
        (None, _, Some(encoding), None)
            if version == Version::HTTP_11
                && encoding.as_bytes().eq_ignore_ascii_case(b"chunked") =>
        {
            Ok(Framing::Chunked)
        }
        (None, _, Some(_), _) => Err(HeadError::Encoding),
        (Some(_), _, Some(_), _) => Err(HeadError::LengthAndEncoding),
    }
}

/// The target in origin form. The authority of an absolute target replaces Host (RFC 9112 §3.2.2).
fn target(
    text: Bytes,
    method: &Method,
    version: Version,
    headers: &mut HeaderMap,
) -> Result<Uri, HeadError> {
    host(headers, version)?;
    // http::Uri would drop a fragment silently.
    if memchr::memchr(b'#', &text).is_some() {
        return Err(HeadError::Target);
    }
    if *text == *b"*" && method == Method::OPTIONS {
        return Ok(Uri::from_static("*"));
    }
    let is_origin_form = text.starts_with(b"/");
    let uri = Uri::from_maybe_shared(text).map_err(|_| HeadError::Target)?;
    if is_origin_form {
        return Ok(uri);
    }
    let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(HeadError::Target);
    };
    let value = HeaderValue::from_str(authority.as_str()).map_err(|_| HeadError::Target)?;
    if !host_is_valid(&value) {
        return Err(HeadError::Target);
    }
    headers.insert(HOST, value);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    match path.strip_prefix('?') {
        // RFC 9112 §3.2.1: a target without a path is sent with the path `/`.
        Some(query) => format!("/?{query}").parse(),
        None => path.parse(),
    }
    .map_err(|_| HeadError::Target)
}

/// RFC 9112 §3.2: exactly one valid Host in HTTP/1.1, at most one in HTTP/1.0.
fn host(headers: &HeaderMap, version: Version) -> Result<(), HeadError> {
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if host_is_valid(host) => Ok(()),
        (None, _) if version == Version::HTTP_10 => Ok(()),
        _ => Err(HeadError::Host),
    }
}

/// Whether it is `uri-host [ ":" port ]` (RFC 9110 §7.2), not empty and without user information.
#[must_use]
pub fn host_is_valid(host: &HeaderValue) -> bool {
    if is_plain(host.as_bytes()) {
        return true;
    }
    host.to_str()
        .ok()
        .and_then(|text| text.parse::<Authority>().ok())
        .is_some_and(|authority| {
            let port_is_valid = match authority.as_str().rsplit_once(':') {
                Some((_, port)) if !port.ends_with(']') => {
                    port.is_empty() || authority.port_u16().is_some()
                }
                _ => true,
            };
            !authority.as_str().contains('@') && !authority.host().is_empty() && port_is_valid
        })
}

/// The common case: a name or an IPv4 address, with or without a port. It does not need the full grammar.
fn is_plain(host: &[u8]) -> bool {
    let end = memchr::memchr(b':', host).unwrap_or(host.len());
    let (name, port) = host.split_at(end);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let port_is_valid = match port {
        [] => true,
        [_, digits @ ..] => decimal(digits).is_some_and(|port| port <= u16::MAX.into()),
    };
    !name.is_empty() && name.iter().all(is_name) && port_is_valid
}

fn keep_alive(headers: &HeaderMap, names: NameFilter, version: Version) -> bool {
    let says = |word: &str| names.list_contains(headers, &CONNECTION, word);
    match version {
        Version::HTTP_10 => says("keep-alive") && !says("close"),
        _ => !says("close"),
    }
}

fn expectation(headers: &HeaderMap, version: Version) -> Result<bool, HeadError> {
    // RFC 9110 §10.1.1: a server ignores the expectation of an HTTP/1.0 client.
    if version != Version::HTTP_11 || !headers.contains_key(EXPECT) {
        return Ok(false);
    }
    expectations_are_known(headers)
        .then_some(true)
        .ok_or(HeadError::Expect)
}

/// Whether `100-continue` is the only expectation. No other one is defined (RFC 9110 §10.1.1).
#[must_use]
pub fn expectations_are_known(headers: &HeaderMap) -> bool {
    let mut expected = headers.get_all(EXPECT).iter();
    expected.all(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<RequestHead>, HeadError> {
        parse_request(text.as_bytes())
    }

    fn whole(text: &str) -> RequestHead {
        parse(text).expect("valid").expect("whole")
    }

    #[test]
    fn a_plain_head_is_parsed() {
        let head = whole(
            "POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: a:80\r\nContent-Length: 3\r\nX-A: \r\n\r\nabc",
        );
        assert_eq!(head.uri, "/v1/chat/completions?x=1");
        assert_eq!(head.framing, Framing::Length(3));
        assert_eq!(head.headers["x-a"], "");
        assert!(head.keep_alive && !head.expects_continue);
        assert!(
            parse("GET / HTTP/1.1\r\nHost: a\r\n")
                .expect("so far valid")
                .is_none()
        );
    }

    #[test]
    fn an_absolute_target_replaces_the_host() {
        let head = whole("GET http://real.example:81/a?b HTTP/1.1\r\nHost: other\r\n\r\n");
        assert_eq!(head.uri, "/a?b");
        assert_eq!(head.headers["host"], "real.example:81");
        for (target, path) in [
            ("http://a", "/"),
            ("http://a?q=/", "/?q=/"),
            ("http://a/?q", "/?q"),
        ] {
            let head = whole(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert_eq!(head.uri, path);
        }
    }

    #[test]
    fn heads_that_two_parsers_could_read_differently_are_refused() {
        use HeadError as E;
        let with = |lines: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        for (text, error) in [
            (
                with("Content-Length: 3\r\nContent-Length: 4\r\n"),
                E::Length,
            ),
            (
                with("Content-Length: 3\r\nContent-Length: 3\r\n"),
                E::Length,
            ),
            (with("Content-Length: 3, 3\r\n"), E::Length),
            (with("Content-Length: +3\r\n"), E::Length),
            (with("Content-Length: 0x3\r\n"), E::Length),
            (with("Content-Length: \r\n"), E::Length),
            (
                with("Content-Length: 99999999999999999999999\r\n"),
                E::Length,
            ),
            (
                with("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"),
                E::LengthAndEncoding,
            ),
            (
                with("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"),
                E::LengthAndEncoding,
            ),
            (with("Transfer-Encoding: chunked, chunked\r\n"), E::Encoding),
            (
                with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
                E::Encoding,
            ),
            (with("Transfer-Encoding: gzip, chunked\r\n"), E::Encoding),
            (with("Transfer-Encoding: identity\r\n"), E::Encoding),
            (with("Transfer-Encoding: xchunked\r\n"), E::Encoding),
            (with("X: a\r\n b\r\n"), E::Malformed),
            (with("X : a\r\n"), E::Malformed),
            (with(": a\r\n"), E::Malformed),
            (with("X: a\0b\r\n"), E::Malformed),
            (with("X: a\x07b\r\n"), E::Malformed),
            (with("X: a\x7fb\r\n"), E::Malformed),
            (with("X: a\nY: b\r\n"), E::LineEnd),
            (with("X: a\rY: b\r\n"), E::Malformed),
            (with("Expect: 200-ok\r\n"), E::Expect),
            (with("Expect: 100-continue\r\nExpect: x\r\n"), E::Expect),
            (with("Host: b\r\n"), E::Host),
            ("GET / HTTP/1.1\r\n\r\n".into(), E::Host),
            ("GET / HTTP/1.1\r\nHost: \r\n\r\n".into(), E::Host),
            ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n".into(), E::Host),
            ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n".into(), E::Host),
            ("GET / HTTP/1.1\r\nHost: u@b\r\n\r\n".into(), E::Host),
            ("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n".into(), E::Host),
            ("GET / HTTP/1.1\r\nHost: a:99999\r\n\r\n".into(), E::Host),
            ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n".into(), E::Host),
            ("GET a HTTP/1.1\r\nHost: a\r\n\r\n".into(), E::Target),
            ("GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n".into(), E::Target),
            ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n".into(), E::Target),
            (
                "GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n".into(),
                E::Target,
            ),
            ("GET * HTTP/1.1\r\nHost: a\r\n\r\n".into(), E::Target),
            ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n".into(), E::Malformed),
            ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n".into(), E::Malformed),
            ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".into(), E::Version),
            ("G\0T / HTTP/1.1\r\nHost: a\r\n\r\n".into(), E::Malformed),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n".into(), E::Connect),
            (
                "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".into(),
                E::Encoding,
            ),
        ] {
            assert_eq!(parse(&text).map(|_| ()), Err(error), "{text:?}");
        }
    }

    #[test]
    fn every_head_at_the_bound_of_lines_is_read_and_one_more_is_431() {
        let lines = |n: usize| "a: b\r\n".repeat(n);
        let text = |n| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", lines(n));
        assert!(parse(&text(MAX_HEADERS - 1)).expect("valid").is_some());
        let error = parse(&text(MAX_HEADERS)).map(|_| ());
        assert_eq!(error, Err(HeadError::TooMany));
    }

    #[test]
    fn persistence_follows_version_and_connection() {
        for (text, expected) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", true),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n",
                false,
            ),
            ("GET / HTTP/1.0\r\n\r\n", false),
            ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true),
        ] {
            assert_eq!(whole(text).keep_alive, expected, "{text:?}");
        }
    }
}
