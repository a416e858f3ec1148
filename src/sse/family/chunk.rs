//! The chunks of Chat Completions and Completions.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::blank::Blank;
use crate::sse::Event;
use crate::sse::keep_alive::is_keep_alive;
use crate::sse::meaning::Tail;
use crate::sse::openings::{MAX_EVENTS, Part, Start};

/// The last event of a stream.
pub const DONE: &[u8] = b"[DONE]";

#[inline]
pub(super) fn tail(event: &Event<'_>) -> Option<Tail> {
    (event.data == DONE).then_some(Tail::Terminal)
}

#[derive(Deserialize)]
struct Chunk {
    /// It may be null, but must not be absent.
    #[serde(deserialize_with = "Option::deserialize")]
    choices: Option<Vec<Choice>>,
    usage: Option<IgnoredAny>,
}

#[derive(Deserialize)]
pub(super) struct Choice {
    delta: Option<Delta>,
    text: Option<Blank>,
    finish_reason: Option<IgnoredAny>,
}

impl Choice {
    pub(super) fn has_empty_delta(&self) -> bool {
        self.delta.as_ref().is_some_and(|delta| delta.0)
    }

    pub(super) fn has_empty_text(&self) -> bool {
        self.text.as_ref().is_some_and(|text| text.0)
    }
}

/// Whether a chunk is still empty: at most a role, no text, no finish reason.
pub(super) fn is_preamble(data: &[u8], is_empty: impl Fn(&Choice) -> bool) -> bool {
    let Ok(chunk) = serde_json::from_slice::<Chunk>(data) else {
        return false;
    };
    let choices = chunk.choices.unwrap_or_default();
    if choices.is_empty() {
        return chunk.usage.is_none();
    }
    choices
        .iter()
        .all(|choice| is_empty(choice) && choice.finish_reason.is_none())
}

/// Whether this is the rest of a non-empty JSON string, starting at its first byte.
pub(super) fn is_not_empty(text: Option<&[u8]>) -> bool {
    text.is_some_and(|text| text.first().is_some_and(|first| *first != b'"'))
}

/// The fields of a chunk that determine which choices it opens.
#[derive(Default, Deserialize)]
#[serde(default)]
struct OpeningFields<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    choices: Option<Vec<OpenedChoice>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OpenedChoice {
    index: u32,
    delta: Option<OpenedDelta>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OpenedDelta {
    role: Option<IgnoredAny>,
}

/// The choices that a chunk without content opens, with the ID that all chunks of a completion share.
pub(super) fn starts(event: &Event<'_>) -> Vec<Start> {
    if is_keep_alive(event) {
        return Vec::new();
    }
    let opened: OpeningFields<'_> = serde_json::from_slice(event.data).unwrap_or_default();
    // An ID that is not a string is treated as absent.
    let id: Option<Box<str>> = opened.id.and_then(|id| serde_json::from_str(id.get()).ok());
    let start = |kind, index| {
        let completion = Part {
            id: id.clone(),
            ..Part::default()
        };
        Start::new(kind, [index, 0])
            .with(completion)
            .repeated("completion", 0)
    };
    let choices = opened.choices.unwrap_or_default();
    if choices.is_empty() {
        return vec![start("chunk without choices", 0)];
    }
    // No more than needed to detect that there are too many.
    let choices = choices.into_iter().take(MAX_EVENTS + 1);
    choices
        .map(|choice| {
            let has_role = choice.delta.is_some_and(|delta| delta.role.is_some());
            let kind = if has_role { "role" } else { "choice" };
            start(kind, choice.index)
        })
        .collect()
}

/// Whether everything in an object but its `role` is blank.
struct Delta(bool);

impl<'de> Deserialize<'de> for Delta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(DeltaVisitor).map(Self)
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
