//! Whether values have content, without storing them: the tree of a small text can take a hundred times its memory.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Whether a value is null, or an empty string, list or object.
pub(super) struct Blank(pub bool);

/// The fields of a block, an item or a part of one that have content. Servers usually open it empty and send the content in deltas.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Payload {
    text: Option<Blank>,
    thinking: Option<Blank>,
    /// Of redacted thinking.
    data: Option<Blank>,
    /// Of the result of a tool that the server calls, and of an item.
    content: Option<Blank>,
    input: Option<Blank>,
    arguments: Option<Blank>,
    refusal: Option<Blank>,
    citations: Option<Blank>,
    /// Of reasoning, which may also be encrypted.
    summary: Option<Blank>,
    encrypted_content: Option<Blank>,
    signature: Option<Blank>,
    /// Of tools that the server runs itself.
    code: Option<Blank>,
    action: Option<Blank>,
    output: Option<Blank>,
    outputs: Option<Blank>,
    result: Option<Blank>,
    results: Option<Blank>,
}

impl Payload {
    pub(super) fn is_blank(&self) -> bool {
        let fields = [
            &self.text,
            &self.thinking,
            &self.data,
            &self.content,
            &self.input,
            &self.arguments,
            &self.refusal,
            &self.citations,
            &self.summary,
            &self.encrypted_content,
            &self.signature,
            &self.code,
            &self.action,
            &self.output,
            &self.outputs,
            &self.result,
            &self.results,
        ];
        fields.into_iter().flatten().all(|field| field.0)
    }
}

impl<'de> Deserialize<'de> for Blank {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BlankVisitor).map(Self)
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
