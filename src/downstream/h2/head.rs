//! Checks a request head as soon as it is decoded, before its stream has a task.
//!
//! HPACK can expand a field of one byte to an entry of a hundred bytes, and a connection decodes all heads that it has read before
//! the first of them is handled. A head that waits for its task is therefore charged to the memory budget, and one that is refused
//! is dropped.

use std::sync::Arc;

use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request};

use crate::downstream::refusal::{NO_MEMORY, Refusal};
use crate::http1::{HeadError, MAX_HEADERS, expectations_are_known, host_is_valid};
use crate::memory::{Budget, Charge};
use crate::proxy::charge_head;

/// Charges the head of a valid request to `memory`. Removes the fields of others.
///
/// # Errors
/// Why the request is refused.
pub(super) fn admit<B>(request: &mut Request<B>, memory: &Arc<Budget>) -> Result<Charge, Refusal> {
    let admitted = match refusal(request) {
        None => charge_head(request, memory).ok_or(NO_MEMORY),
        Some(refusal) => Err(refusal),
    };
    if admitted.is_err() {
        *request.headers_mut() = HeaderMap::new();
    }
    admitted
}

/// Applies checks that HTTP/1.1 heads undergo but that HTTP/2 itself does not require (RFC 9113 §8.3.1).
fn refusal<B>(request: &Request<B>) -> Option<Refusal> {
    if request.headers().len() > MAX_HEADERS {
        return Some(HeadError::TooMany.into());
    }
    if request.method() == Method::CONNECT {
        return Some(HeadError::Connect.into());
    }
    // RFC 9113 §8.3.1: other schemes are for proxies that translate, and model servers speak HTTP.
    if !matches!(request.uri().scheme_str(), Some("http" | "https") | None) {
        return Some(Refusal::malformed("the scheme must be http or https"));
    }
    if !expectations_are_known(request.headers()) {
        return Some(HeadError::Expect.into());
    }
    // RFC 9113 §8.2.1. HTTP/1.1 would strip this whitespace, so the model server would not receive the value checked here.
    let is_padded = |value: &HeaderValue| {
        let ends = [value.as_bytes().first(), value.as_bytes().last()];
        ends.iter().any(|end| matches!(end, Some(b' ' | b'\t')))
    };
    if request.headers().values().any(is_padded) {
        let message = "a header value begins or ends with whitespace";
        return Some(Refusal::malformed(message));
    }
    // RFC 9113 §8.3.1: a path begins with a slash, except `*` for OPTIONS of the server as a whole.
    let path = request.uri().path_and_query();
    let path = path.map_or("", |path| path.as_str());
    if !path.starts_with('/') && (path, request.method()) != ("*", &Method::OPTIONS) {
        let message = "the path is not valid in a request to a server";
        return Some(Refusal::malformed(message));
    }
    let authority = request.uri().authority().map(Authority::as_str);
    let mut hosts = request.headers().get_all(HOST).iter();
    let is_valid = match (authority, hosts.next(), hosts.next()) {
        (_, Some(_), Some(_)) | (None, None, _) => false,
        (Some(authority), Some(host), None) if host.as_bytes() != authority.as_bytes() => false,
        (None, Some(host), None) => host_is_valid(host),
        (Some(authority), ..) => {
            HeaderValue::from_str(authority).is_ok_and(|host| host_is_valid(&host))
        }
    };
    let message = "the request needs exactly one valid authority";
    (!is_valid).then_some(Refusal::malformed(message))
}
