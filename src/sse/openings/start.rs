//! The block, item or choice that an event without content opens, with its kind and ID.

use serde::Deserialize;

/// Maximum length of an ID or name that is kept, in bytes. A longer one is treated as absent, as is an ID that JSON escapes.
const MAX_NAME: usize = 256;

/// Maximum number of bytes of text that are kept per event.
const MAX_TEXT: usize = 512;

const KEEP_ALIVE: &str = "ping";

/// An item that an event opens for the client.
#[derive(Clone, Debug)]
pub struct Start {
    /// Its kind, in its family.
    kind: &'static str,
    /// The choice, the block, or the item and its part.
    index: [u32; 2],
    /// What kind of block, item or part it is, and which tool it calls.
    pub(super) shape: Box<str>,
    pub(super) id: Option<Box<str>>,
    pub(super) call_id: Option<Box<str>>,
    pub(super) number: Option<u64>,
    /// Whether the client shows it even if no content follows, as it does a block with a tool call.
    pub(super) is_block: bool,
    /// The owner of the IDs, and its index, if later events repeat them. Several events may contain IDs of the same item.
    owner: Option<(&'static str, u32)>,
}

/// The object in an event that describes what it opens.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Part {
    #[serde(rename = "type")]
    pub kind: Option<Box<str>>,
    pub name: Option<Box<str>>,
    pub id: Option<Box<str>>,
    pub call_id: Option<Box<str>>,
}

impl Start {
    pub fn new(kind: &'static str, index: [u32; 2]) -> Self {
        Self {
            kind,
            index,
            shape: "".into(),
            id: None,
            call_id: None,
            number: None,
            is_block: false,
            owner: None,
        }
    }

    /// A keep-alive opens nothing, and any number of them may be sent.
    pub fn keep_alive() -> Self {
        Self::new(KEEP_ALIVE, [0, 0])
    }

    pub(super) fn is_keep_alive(&self) -> bool {
        self.kind == KEEP_ALIVE
    }

    /// Described by `part`.
    pub fn with(mut self, part: Part) -> Self {
        let short = |text: Option<Box<str>>| text.filter(|text| text.len() <= MAX_NAME);
        let shape = [part.kind, part.name].map(|text| short(text).unwrap_or_default());
        self.shape = shape.join(" ").into();
        // Ids are compared with JSON, and written into it, without being unescaped or escaped.
        let plain = |id: Option<Box<str>>| {
            let is_escaped = |byte: u8| byte < b' ' || byte == b'"' || byte == b'\\';
            short(id).filter(|id| !id.bytes().any(is_escaped))
        };
        self.id = plain(part.id);
        self.call_id = plain(part.call_id);
        self
    }

    /// A block, an item, or a part of one, described by `part`.
    pub fn block(self, part: Part) -> Self {
        Self {
            is_block: true,
            ..self.with(part)
        }
    }

    /// With IDs that belong to the `owner` of this index and that later events repeat.
    pub fn repeated(mut self, owner: &'static str, index: u32) -> Self {
        self.owner = Some((owner, index));
        self
    }

    /// With a sequence number.
    pub fn numbered(mut self, number: Option<u64>) -> Self {
        self.number = number;
        self
    }

    /// Whether its text is too long to be kept.
    pub(super) fn is_long(&self) -> bool {
        self.text() > MAX_TEXT
    }

    /// The length of its text, in bytes.
    pub(super) fn text(&self) -> usize {
        let ids = [&self.id, &self.call_id].into_iter().flatten();
        ids.fold(self.shape.len(), |sum, id| sum + id.len())
    }

    /// Whether it opens the same item as `other`.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.kind, self.index) == (other.kind, other.index)
    }

    /// Whether its IDs belong to the same item as those of `other`.
    pub(super) fn shares_ids(&self, other: &Self) -> bool {
        self.owner.is_some() && self.owner == other.owner
    }
}
