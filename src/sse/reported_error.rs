//! The errors that an upstream reports in an event, and the HTTP status that each one stands for.

use std::sync::LazyLock;

use memchr::memmem;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// Data that reports an error contains this.
pub(super) static ERROR_KEY: LazyLock<memmem::Finder<'_>> =
    LazyLock::new(|| memmem::Finder::new(b"\"error\""));

/// Whether any key `error`, at any depth, has a value other than null. Generated text cannot match: its quotes are escaped.
#[inline]
pub(super) fn may_have_error(data: &[u8]) -> bool {
    ERROR_KEY.find_iter(data).any(|at| {
        data[at + ERROR_KEY.needle().len()..]
            .trim_ascii_start()
            .strip_prefix(b":")
            .is_some_and(|value| !value.trim_ascii_start().starts_with(b"null"))
    })
}

/// Whether the data is an object whose own `error` is not null.
#[cold]
pub(super) fn has_error(data: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct ErrorField {
        error: Option<IgnoredAny>,
    }
    serde_json::from_slice::<ErrorField>(data).is_ok_and(|probe| probe.error.is_some())
}

/// The HTTP status that an error event stands for: that of `{"error":{…}}`, of `{"response":{"error":{…}}}`, or of the data
/// itself (the `error` event of Responses).
#[cold]
pub(super) fn error_code(data: &[u8]) -> Option<u16> {
    let probe: Reported<'_> = object(data)?;
    let nested = probe
        .response
        .and_then(|response| object::<Reported<'_>>(response.get().as_bytes())?.error);
    match probe.error.or(nested) {
        Some(error) => {
            let error: Reported<'_> = object(error.get().as_bytes()).unwrap_or_default();
            match is_unavailable(&error) {
                true => Some(503),
                false => status(error.code).or_else(|| status(error.kind)),
            }
        }
        None => status(probe.code),
    }
}

/// The fields of an event, its response, or its error that describe a failure. Not parsed further, because a tree of values can
/// take a hundred times the memory of its text.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Reported<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
    #[serde(borrow)]
    code: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
}

/// Reads an object. An array would be taken for the fields in their order.
fn object<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Option<T> {
    let is_object = text.trim_ascii_start().first() == Some(&b'{');
    is_object
        .then(|| serde_json::from_slice(text).ok())
        .flatten()
}

/// Responses and Messages use one type for a dead worker and for any other fault of the server. Dynamo's message distinguishes
/// them.
fn is_unavailable(error: &Reported<'_>) -> bool {
    let is_number = |code: &RawValue| {
        code.get()
            .starts_with(|first: char| first == '-' || first.is_ascii_digit())
    };
    let says = |message: &RawValue| {
        let text = serde_json::from_str::<String>(message.get());
        text.is_ok_and(|text| text.contains("temporarily unavailable"))
    };
    !error.code.is_some_and(is_number) && error.message.is_some_and(says)
}

/// A status, as a number, a numeric string, or one of the types that the APIs use.
fn status(value: Option<&RawValue>) -> Option<u16> {
    let text = value?.get();
    let code = match text.starts_with('"') {
        false => text.parse().ok()?,
        true => match serde_json::from_str::<String>(text).ok()?.as_str() {
            "invalid_request_error" => 400,
            "authentication_error" => 401,
            "permission_error" => 403,
            "not_found_error" => 404,
            "rate_limit_error" | "rate_limit_exceeded" => 429,
            "api_error" | "server_error" | "internal_server_error" => 500,
            "service_unavailable" => 503,
            "overloaded_error" => 529,
            number => number.parse().ok()?,
        },
    };
    (100..600).contains(&code).then_some(code)
}
