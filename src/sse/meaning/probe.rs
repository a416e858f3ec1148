//! Looks into the JSON of an event for the few keys that a judgement needs. Whatever does not parse answers "no".
//!
//! Must not know: event names.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use memchr::memmem;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::sse::Api;

/// Whether the data is an object whose own `error` is not null.
#[cold]
pub(super) fn has_error(data: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Probe {
        error: Option<IgnoredAny>,
    }
    serde_json::from_slice::<Probe>(data).is_ok_and(|probe| probe.error.is_some())
}

/// The `type` of the data, or nothing.
pub(super) fn json_type(data: &[u8]) -> Cow<'_, str> {
    #[derive(Deserialize)]
    struct Probe<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
    }
    serde_json::from_slice::<Probe<'_>>(data)
        .map(|probe| probe.kind)
        .unwrap_or_default()
}

/// The HTTP status an error event stands for: of `{"error":{…}}`, of `{"response":{"error":{…}}}`, or of the data itself
/// (the `error` event of Responses).
#[cold]
pub(super) fn error_code(data: &[u8]) -> Option<u16> {
    #[derive(Deserialize)]
    struct Probe {
        error: Option<Value>,
        response: Option<Response>,
        code: Option<Value>,
    }
    #[derive(Deserialize)]
    struct Response {
        error: Option<Value>,
    }
    let probe: Probe = serde_json::from_slice(data).ok()?;
    let nested = probe.response.and_then(|response| response.error);
    match probe.error.or(nested) {
        Some(error) if is_unavailable(&error) => Some(503),
        Some(error) => status(error.get("code")).or_else(|| status(error.get("type"))),
        None => status(probe.code.as_ref()),
    }
}

/// Responses and Messages have one word for a dead worker and for any fault of the server: there Dynamo's message tells
/// them apart.
fn is_unavailable(error: &Value) -> bool {
    let says = |text: &str| text.contains("temporarily unavailable");
    let numeric = error.get("code").is_some_and(Value::is_number);
    !numeric
        && error
            .get("message")
            .and_then(Value::as_str)
            .is_some_and(says)
}

/// A status, as a number, a numeric string, or one of the words that the APIs use for one.
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

/// Whether a chunk of Chat Completions or Completions says nothing yet: at most a role, no text, no finish reason.
pub(super) fn is_preamble_chunk(api: Api, data: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Chunk {
        choices: Vec<Choice>,
        usage: Option<IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct Choice {
        delta: Option<Delta>,
        text: Option<Blank>,
        finish_reason: Option<IgnoredAny>,
    }
    if says_something(api, data) {
        return false;
    }
    let Ok(chunk) = serde_json::from_slice::<Chunk>(data) else {
        return false;
    };
    if chunk.choices.is_empty() {
        return chunk.usage.is_none();
    }
    chunk.choices.iter().all(|choice| {
        let says_nothing = match api {
            Api::Chat => choice.delta.as_ref().is_some_and(|delta| delta.0),
            _ => choice.text.as_ref().is_some_and(|text| text.0),
        };
        says_nothing && choice.finish_reason.is_none()
    })
}

/// The cheap look that finds text in most chunks that have some. Inside a JSON string the quotes would be escaped, so
/// generated text cannot raise this; text at a place of that name that is none of the API's does, as all that is unknown.
fn says_something(api: Api, data: &[u8]) -> bool {
    let text = match api {
        Api::Chat => DELTA.find(data).and_then(|at| {
            let delta = &data[at + DELTA.needle().len()..];
            let rest = delta.strip_prefix(b"\"role\":\"assistant\",");
            rest.unwrap_or(delta).strip_prefix(b"\"content\":\"")
        }),
        _ => TEXT.find(data).map(|at| &data[at + TEXT.needle().len()..]),
    };
    text.is_some_and(|text| text.first().is_some_and(|first| *first != b'"'))
}

static DELTA: LazyLock<memmem::Finder<'_>> = LazyLock::new(|| memmem::Finder::new(b"\"delta\":{"));
static TEXT: LazyLock<memmem::Finder<'_>> = LazyLock::new(|| memmem::Finder::new(b"\"text\":\""));

/// Whether a value is null, or an empty string, list or object.
struct Blank(bool);

/// Whether everything in an object but its `role` is blank.
struct Delta(bool);

impl<'de> Deserialize<'de> for Blank {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BlankVisitor).map(Self)
    }
}

impl<'de> Deserialize<'de> for Delta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(DeltaVisitor).map(Self)
    }
}

struct BlankVisitor;

impl<'de> Visitor<'de> for BlankVisitor {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_str<E>(self, text: &str) -> Result<bool, E> {
        Ok(text.is_empty())
    }

    fn visit_bool<E>(self, _: bool) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
        let mut blank = true;
        while list.next_element::<IgnoredAny>()?.is_some() {
            blank = false;
        }
        Ok(blank)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<bool, A::Error> {
        let mut blank = true;
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            blank = false;
        }
        Ok(blank)
    }
}

struct DeltaVisitor;

impl<'de> Visitor<'de> for DeltaVisitor {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a delta")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut delta: A) -> Result<bool, A::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Key {
            Role,
            #[serde(other)]
            Other,
        }
        let mut blank = true;
        while let Some(key) = delta.next_key()? {
            match key {
                Key::Role => drop(delta.next_value::<IgnoredAny>()?),
                Key::Other => blank &= delta.next_value::<Blank>()?.0,
            }
        }
        Ok(blank)
    }
}
