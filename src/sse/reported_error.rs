//! The errors that an upstream reports in an event, and the HTTP status that each one stands for.

use std::sync::LazyLock;

use memchr::memmem;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

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
    #[derive(Deserialize)]
    struct ErrorObject {
        error: Option<Value>,
        response: Option<Response>,
        code: Option<Value>,
    }
    #[derive(Deserialize)]
    struct Response {
        error: Option<Value>,
    }
    let probe: ErrorObject = serde_json::from_slice(data).ok()?;
    let nested = probe.response.and_then(|response| response.error);
    match probe.error.or(nested) {
        Some(error) if is_unavailable(&error) => Some(503),
        Some(error) => status(error.get("code")).or_else(|| status(error.get("type"))),
        None => status(probe.code.as_ref()),
    }
}

/// Responses and Messages use one type for a dead worker and for any other fault of the server. Dynamo's message distinguishes
/// them.
fn is_unavailable(error: &Value) -> bool {
    let says = |text: &str| text.contains("temporarily unavailable");
    let numeric = error.get("code").is_some_and(Value::is_number);
    !numeric
        && error
            .get("message")
            .and_then(Value::as_str)
            .is_some_and(says)
}

/// A status, as a number, a numeric string, or one of the types that the APIs use.
fn status(value: Option<&Value>) -> Option<u16> {
    let code = match value? {
        Value::Number(number) => u16::try_from(number.as_u64()?).ok()?,
        Value::String(word) => match word.as_str() {
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
        _ => return None,
    };
    (100..600).contains(&code).then_some(code)
}
