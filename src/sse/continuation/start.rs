//! What an opening event opens: which block, item or choice, of what kind, under which id.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::MOST;
use crate::sse::meaning::with_type;
use crate::sse::{Api, Event};

/// Longest id or name that is kept, in bytes. What is longer is taken for absent.
const LONGEST: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A choice of a chunk, with a role or without.
    Choice {
        role: bool,
    },
    /// A chunk without choices.
    EmptyChunk,
    MessageStart,
    BlockStart,
    Ping,
    Created,
    Queued,
    InProgress,
    Item,
    Part,
}

/// Most bytes of text of one thing that are remembered.
const LONG: usize = 512;

/// One thing that an opening event shows a client.
#[derive(Clone, Debug)]
pub(super) struct Start {
    pub kind: Kind,
    /// The choice, the block, or the item and its part.
    place: [u32; 2],
    /// What kind of block, item or part it is, and which tool it calls.
    pub shape: Box<str>,
    pub id: Option<Box<str>>,
    pub call_id: Option<Box<str>>,
    pub number: Option<u64>,
}

impl Start {
    /// Is its text too long to be remembered?
    pub fn is_long(&self) -> bool {
        self.text() > LONG
    }

    /// The length of its text, in bytes.
    pub fn text(&self) -> usize {
        let ids = [&self.id, &self.call_id].into_iter().flatten();
        ids.fold(self.shape.len(), |sum, id| sum + id.len())
    }

    /// Does it open the same thing as `other`?
    pub fn is_at(&self, other: &Self) -> bool {
        (self.kind, self.place) == (other.kind, other.place)
    }
}

/// What of an event's data matters here.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Probe {
    choices: Vec<Choice>,
    response: Part,
    item: Part,
    part: Part,
    content_block: Part,
    index: u32,
    output_index: u32,
    content_index: u32,
    sequence_number: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Choice {
    index: u32,
    delta: Option<Delta>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Delta {
    role: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Part {
    #[serde(rename = "type")]
    kind: Option<Box<str>>,
    name: Option<Box<str>>,
    id: Option<Box<str>>,
    call_id: Option<Box<str>>,
}

/// What `event`, which has no content, opens. More than one thing only where a chunk has several choices, of which no more are
/// told than shows that they are too many.
pub(super) fn starts(api: Api, event: &Event<'_>) -> Vec<Start> {
    let probe: Probe = serde_json::from_slice(event.data).unwrap_or_default();
    let kind = match api {
        Api::Chat | Api::Completions => return choices(&probe),
        Api::Other => return Vec::new(),
        Api::Messages => with_type(event, |kind| match kind {
            b"message_start" => Some(Kind::MessageStart),
            b"content_block_start" => Some(Kind::BlockStart),
            b"ping" => Some(Kind::Ping),
            _ => None,
        }),
        Api::Responses => with_type(event, |kind| match kind {
            b"response.created" => Some(Kind::Created),
            b"response.queued" => Some(Kind::Queued),
            b"response.in_progress" => Some(Kind::InProgress),
            b"response.output_item.added" => Some(Kind::Item),
            b"response.content_part.added" => Some(Kind::Part),
            _ => None,
        }),
    };
    kind.map(|kind| typed(kind, probe)).into_iter().collect()
}

fn choices(probe: &Probe) -> Vec<Start> {
    let start = |kind, index| Start {
        kind,
        place: [index, 0],
        shape: "".into(),
        id: None,
        call_id: None,
        number: None,
    };
    if probe.choices.is_empty() {
        return vec![start(Kind::EmptyChunk, 0)];
    }
    let has_role = |choice: &Choice| {
        choice
            .delta
            .as_ref()
            .is_some_and(|delta| delta.role.is_some())
    };
    let choices = probe.choices.iter();
    choices
        .take(MOST + 1)
        .map(|choice| {
            let role = has_role(choice);
            start(Kind::Choice { role }, choice.index)
        })
        .collect()
}

fn typed(kind: Kind, probe: Probe) -> Start {
    let (place, part, has_shape) = match kind {
        Kind::BlockStart => ([probe.index, 0], probe.content_block, true),
        Kind::Item => ([probe.output_index, 0], probe.item, true),
        Kind::Part => ([probe.output_index, probe.content_index], probe.part, true),
        Kind::Created | Kind::Queued | Kind::InProgress => ([0, 0], probe.response, false),
        _ => ([0, 0], Part::default(), false),
    };
    let short = |text: Option<Box<str>>| text.filter(|text| text.len() <= LONGEST);
    let shape = [part.kind, part.name].map(|text| short(text).unwrap_or_default());
    Start {
        kind,
        place,
        shape: match has_shape {
            true => shape.join(" ").into(),
            false => "".into(),
        },
        id: short(part.id),
        call_id: short(part.call_id),
        number: probe.sequence_number,
    }
}
