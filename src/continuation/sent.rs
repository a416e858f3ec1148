//! The part of a stream that the client has: the text, the IDs, the tokens.

mod event_template;
mod joined;

use std::borrow::Cow;
use std::num::NonZeroU32;

use self::event_template::{EventTemplate, FIELDS, MODEL};
use self::joined::Joined;
pub use self::joined::{JoinAction, Rewritten};
use super::blocks::Blocks;
use super::chunk::{BlockEvent, Chunk};
use super::json;
use super::text::{Text, given};
use super::{ContinuationReason, event};
use crate::sse::{Api, DONE, Usage};

/// How to request the rest of a response from another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumption {
    /// Repeat the request: the client has only reasoning so far.
    Resend,
    /// Request the rest of the answer.
    Continue,
}

/// The part of a stream that the client has received. This type is small, because thousands of streams have one.
#[derive(Debug)]
pub struct Sent {
    api: Api,
    /// Maximum number of bytes of text that are kept.
    most: u32,
    /// The text, as the contents of a JSON string.
    text: Text,
    /// `None` before the first event.
    template: Option<EventTemplate>,
    /// Whether the events of the first server repeat the role.
    repeats_role: bool,
    finished: bool,
    /// Events of the current server with text or reasoning.
    events: u32,
    /// Events of all servers with only reasoning. A server that continues the text does not get these tokens in its prompt.
    reasoned: u32,
    /// Tokens that the current server reported.
    reported: Option<NonZeroU32>,
    /// As the first server reported them.
    prompt: Option<NonZeroU32>,
    /// The content blocks of Messages.
    blocks: Blocks,
    /// Set if another server continues the stream, so that IDs and counts are rewritten. Boxed, because most streams are never
    /// continued.
    joined: Option<Box<Joined>>,
    prevented: Option<ContinuationReason>,
}

impl Sent {
    /// An empty part. Keeps at most `most` bytes of text.
    #[must_use]
    pub fn new(api: Api, most: usize) -> Self {
        Self {
            api,
            most: count(most as u64),
            text: Text::default(),
            template: None,
            repeats_role: false,
            finished: false,
            events: 0,
            reasoned: 0,
            reported: None,
            prompt: None,
            blocks: Blocks::default(),
            joined: None,
            prevented: None,
        }
    }

    /// Whether streams of this family can be continued.
    #[must_use]
    pub const fn is_for(api: Api) -> bool {
        matches!(api, Api::Chat | Api::Completions | Api::Messages)
    }

    /// Why the stream cannot be continued, if it cannot. In that case, nothing of it is kept.
    #[must_use]
    pub const fn prevented(&self) -> Option<ContinuationReason> {
        self.prevented
    }

    /// Prevents the stream from being continued.
    pub fn prevent(&mut self, reason: ContinuationReason) {
        self.prevented.get_or_insert(reason);
        self.text = Text::default();
        self.forget_event();
    }

    fn forget_event(&mut self) {
        if let Some(template) = &mut self.template {
            template.forget_event();
        }
    }

    /// The memory that it holds, in bytes.
    #[must_use]
    pub fn held(&self) -> usize {
        let template = self.template.as_ref().map_or(0, EventTemplate::held);
        let joined = self.joined.as_ref().map_or(0, |joined| joined.held());
        self.text.held() + template + joined
    }

    /// The text, as the contents of a JSON string.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        self.text.whole()
    }

    /// The text without JSON escapes. `None` if it ends in the middle of a character.
    fn said(&self) -> Option<String> {
        let text = self.text.whole();
        json::string(&[b"\"", &text[..], b"\""].concat()).map(Cow::into_owned)
    }

    /// The number of tokens: as reported, or else one per event with text or reasoning.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        let own = self.reported.map_or(self.events, NonZeroU32::get);
        self.earlier() + u64::from(own).saturating_sub(self.repeated())
    }

    /// The model that the events name.
    #[must_use]
    pub fn model(&self) -> Option<Cow<'_, str>> {
        json::string(self.template.as_ref()?.values()[MODEL]?)
    }

    /// What to ask another server.
    ///
    /// # Errors
    /// Why the stream cannot be continued.
    pub fn resumption(&self) -> Result<Resumption, ContinuationReason> {
        if let Some(reason) = self.prevented {
            return Err(reason);
        }
        if self.finished {
            return Err(ContinuationReason::Finished);
        }
        let said = self.said();
        let is_blank = said.is_some_and(|said| given(self.api, &said).is_empty());
        // The client has nothing that could contradict a different answer.
        Ok(if is_blank {
            Resumption::Resend
        } else {
            Resumption::Continue
        })
    }

    /// Another server restarts the stream. The client has no content.
    pub fn restart(&mut self) {
        *self = Self::new(self.api, self.most as usize);
    }

    /// Records the data of an event before the first content. In Messages, only such events name the model and open the block.
    pub fn open(&mut self, data: &[u8]) {
        if self.api == Api::Messages && !data.is_empty() {
            self.take(data);
        }
    }

    /// Records the data of an event that the client gets, as the first server sent it.
    #[inline]
    pub fn take(&mut self, data: &[u8]) {
        if self.prevented.is_some() {
            return;
        }
        let template = self.template.as_ref();
        match template.and_then(|template| template.text_of(data)) {
            Some(text) => {
                self.count_event(!text.is_empty());
                self.push(text);
            }
            None => self.read(data),
        }
    }

    fn read(&mut self, data: &[u8]) {
        let Some(chunk) = event::read(self.api, data) else {
            return self.take_other(data);
        };
        // In Messages, only the first event has the identity. In the other families, a keep-alive may not have it.
        let holder = match self.api {
            Api::Messages => "message",
            _ => "choices",
        };
        if self.template.is_none() && chunk.object.given(holder).is_some() {
            self.learn_identity(&chunk);
        }
        if let Some((step, index)) = chunk.block {
            if step == BlockEvent::Start && self.blocks.has_begun() {
                self.prevent(chunk.other.unwrap_or(ContinuationReason::Content));
            }
            self.blocks.note(step, index);
        }
        self.record(&chunk);
        let Some(text) = chunk.text else { return };
        self.repeats_role = chunk.role;
        let is_pure = !chunk.reasoning && !chunk.finish && chunk.usage.is_none();
        self.push(&data[text.clone()]);
        match &mut self.template {
            Some(template) if is_pure && self.prevented.is_none() => {
                template.keep_event(data, &text)
            }
            _ => self.forget_event(),
        }
    }

    /// Records the data of an event that is not a chunk.
    fn take_other(&mut self, data: &[u8]) {
        match data {
            DONE => self.finished = true,
            _ if event::is_blank(data) => {}
            _ => self.prevent(ContinuationReason::Content),
        }
    }

    /// Records what a chunk says, without its text.
    fn record(&mut self, chunk: &Chunk<'_>) {
        if let Some(usage) = chunk.usage {
            self.report(usage);
        }
        self.finished |= chunk.finish;
        if self.api == Api::Messages {
            // Nothing is added to a text block that has ended.
            self.finished |= matches!(chunk.block, Some((BlockEvent::Stop, _)));
            if chunk.reasoning {
                self.prevent(ContinuationReason::Reasoning);
            }
        }
        if let Some(reason) = chunk.other {
            self.prevent(reason);
        }
        self.count_event(chunk.reasoning || chunk.text.is_some());
        let reasons_only = chunk.reasoning && chunk.text.is_none();
        self.reasoned = self.reasoned.saturating_add(reasons_only.into());
    }

    fn count_event(&mut self, has_token: bool) {
        self.events = self.events.saturating_add(has_token.into());
    }

    fn report(&mut self, usage: Usage) {
        let reported = NonZeroU32::new(count(usage.completion_tokens));
        self.reported = self.reported.max(reported);
        if !self.is_joined() {
            self.prompt = NonZeroU32::new(count(usage.prompt_tokens)).or(self.prompt);
        }
    }

    fn learn_identity(&mut self, chunk: &Chunk<'_>) {
        let message = chunk.object.object("message");
        let holder = message.as_ref().unwrap_or(&chunk.object);
        self.template = EventTemplate::new(FIELDS.map(|key| holder.value(key)));
        if self.template.is_none() {
            self.prevent(ContinuationReason::Content);
        }
    }

    fn push(&mut self, text: &[u8]) {
        if self.prevented.is_some() {
            return;
        }
        if self.text.len() + text.len() > self.most as usize {
            return self.prevent(ContinuationReason::TextTooLong);
        }
        self.text.push(text);
    }
}

/// A count in the form in which it is kept.
fn count(number: u64) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}
