//! Parses the data of an event: text, reasoning, the end of the response, or something else.

use std::ops::Range;

use super::ContinuationReason;
use super::json::{self, Edit, Object};
use crate::sse::{Api, Usage, usage};

/// How an event of Messages affects a content block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockEvent {
    Start,
    Delta,
    Stop,
}

/// A parsed event.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// The whole event.
    pub object: Object<'a>,
    /// The delta of the only choice, in Chat.
    pub delta: Option<Object<'a>>,
    /// In Messages: the index of the block, and how it is affected.
    pub block: Option<(BlockEvent, u32)>,
    /// The range of the text between its quotes, if there is any.
    pub text: Option<Range<usize>>,
    pub reasoning: bool,
    pub role: bool,
    /// The model has finished.
    pub finish: bool,
    pub usage: Option<Usage>,
    /// Why the stream cannot be continued, if so.
    pub other: Option<ContinuationReason>,
}

impl<'a> Chunk<'a> {
    /// Reads only the usage of the event with this data. `None` if the data is not a JSON object.
    pub fn of(api: Api, data: &'a [u8]) -> Option<Self> {
        if !json::is_valid(data) {
            return None;
        }
        Some(Self {
            object: Object::whole(data)?,
            delta: None,
            block: None,
            text: None,
            reasoning: false,
            role: false,
            finish: false,
            usage: usage(api, data),
            other: None,
        })
    }

    /// Whether it adds nothing to the answer, and ends neither the answer nor a part of it.
    pub fn is_preamble(&self) -> bool {
        let ends_block = matches!(self.block, Some((BlockEvent::Stop, _)));
        let is_content = self.text.is_some() || self.reasoning || self.other.is_some();
        !(is_content || ends_block || self.finish)
    }

    pub fn prevent(&mut self, reason: ContinuationReason) {
        self.other.get_or_insert(reason);
    }

    pub fn read_text(&mut self, holder: &Object<'a>, key: &str) {
        let Some(member) = holder.get(key) else {
            return;
        };
        let value = &holder.text[member.value.clone()];
        if json::is_blank(value) {
            return;
        }
        if value.starts_with(b"\"") {
            self.text = Some(member.value.start + 1..member.value.end - 1);
        } else {
            self.prevent(ContinuationReason::Content);
        }
    }

    /// The edits that correct its token counts.
    pub fn correct_usage(&self, corrected: Usage) -> Vec<Edit> {
        let Some(usage) = self.object.object("usage") else {
            return Vec::new();
        };
        let total = corrected.prompt_tokens + corrected.completion_tokens;
        // The second server may have had some of the answer in its cache, as a part of its prompt.
        let details = usage.object("prompt_tokens_details");
        let cached = details.filter(|details| {
            let cached = details.value("cached_tokens").map(std::str::from_utf8);
            let cached = cached.and_then(|cached| cached.ok()?.parse::<u64>().ok());
            cached.is_some_and(|cached| cached > corrected.prompt_tokens)
        });
        let most = corrected.prompt_tokens.to_string();
        let cached = cached.map(|details| details.set("cached_tokens", &most));
        [
            ("prompt_tokens", corrected.prompt_tokens),
            ("completion_tokens", corrected.completion_tokens),
            ("input_tokens", corrected.prompt_tokens),
            ("output_tokens", corrected.completion_tokens),
            ("total_tokens", total),
        ]
        .into_iter()
        .filter(|(key, _)| usage.given(key).is_some())
        .map(|(key, value)| usage.set(key, &value.to_string()))
        .chain(cached)
        .collect()
    }
}
