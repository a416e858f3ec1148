//! The part of a stream that the client has: the text, the ids, the tokens.

mod identity;
mod joined;

use std::borrow::Cow;

use self::identity::{FIELDS, Identity, MODEL};
use self::joined::Joined;
pub use self::joined::{Opening, Rewritten};
use super::blocks::Blocks;
use super::chunk::{Chunk, Step};
use super::frame::Frame;
use super::json;
use super::text::{Text, given};
use super::{Reason, event};
use crate::sse::{Api, Usage};

/// The last event of a stream.
const DONE: &[u8] = b"[DONE]";

/// Most bytes kept of the fields that identify a stream and of the event around a text.
const MAX_AROUND: usize = 640;

/// How another server is asked for the rest of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumption {
    /// The same request again: the client has only reasoning so far.
    Resend,
    /// For the rest of the answer.
    Continue,
}

/// The part of a stream that the client has received.
#[derive(Debug)]
pub struct Sent {
    api: Api,
    /// Most bytes of text that are kept.
    most: usize,
    /// As the inside of a JSON string.
    text: Text,
    frame: Option<Frame>,
    identity: Identity,
    known: bool,
    /// Do the events of the first server repeat the role?
    repeats_role: bool,
    finished: bool,
    /// Tokens that earlier servers generated for it.
    earlier: u64,
    /// Events of the current server with text or reasoning.
    events: u64,
    /// Those of all servers with reasoning alone. Its tokens are in no prompt of a server that continues the text.
    reasoned: u64,
    /// Tokens that the current server reported.
    reported: Option<u64>,
    /// As the first server reported them.
    prompt: Option<u64>,
    /// The content blocks of Messages.
    blocks: Blocks,
    /// Set if another server continues it, so that ids and counts are rewritten. Boxed: of most streams, none does.
    joined: Option<Box<Joined>>,
    prevented: Option<Reason>,
}

impl Sent {
    /// Nothing yet. Keeps at most `most` bytes of text.
    #[must_use]
    pub fn new(api: Api, most: usize) -> Self {
        Self {
            api,
            most,
            text: Text::default(),
            frame: None,
            identity: Identity::default(),
            known: false,
            repeats_role: false,
            finished: false,
            earlier: 0,
            events: 0,
            reasoned: 0,
            reported: None,
            prompt: None,
            blocks: Blocks::default(),
            joined: None,
            prevented: None,
        }
    }

    /// Can streams of this family be continued?
    #[must_use]
    pub const fn is_for(api: Api) -> bool {
        matches!(api, Api::Chat | Api::Completions | Api::Messages)
    }

    /// What prevents that the stream is continued, if something does. Then nothing is kept of it.
    #[must_use]
    pub const fn prevented(&self) -> Option<Reason> {
        self.prevented
    }

    /// Prevents that the stream is continued.
    pub fn prevent(&mut self, reason: Reason) {
        self.prevented.get_or_insert(reason);
        self.text = Text::default();
        self.frame = None;
    }

    /// The memory that it holds, in bytes.
    #[must_use]
    pub fn held(&self) -> usize {
        let frame = self.frame.as_ref().map_or(0, |frame| frame.bytes.len());
        let joined = self.joined.as_ref().map_or(0, |joined| joined.held());
        self.text.held() + frame + self.identity.len() + joined
    }

    /// The text, as the inside of a JSON string.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        self.text.whole()
    }

    /// The text as it is read. `None` if it is broken in the middle of a character.
    fn said(&self) -> Option<String> {
        let text = self.text.whole();
        json::string(&[b"\"", &text[..], b"\""].concat()).map(Cow::into_owned)
    }

    /// How many tokens it took: as reported, else one for each event with text or reasoning.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        let own = self.reported.unwrap_or(self.events);
        self.earlier + own.saturating_sub(self.repeated())
    }

    /// The model that its events name.
    #[must_use]
    pub fn model(&self) -> Option<Cow<'_, str>> {
        json::string(self.identity.values()[MODEL]?)
    }

    /// What to ask another server.
    ///
    /// # Errors
    /// Why the stream cannot be continued.
    pub fn resumption(&self) -> Result<Resumption, Reason> {
        if let Some(reason) = self.prevented {
            return Err(reason);
        }
        if self.finished {
            return Err(Reason::Finished);
        }
        let said = self.said();
        let is_blank = said.is_some_and(|said| given(self.api, &said).is_empty());
        // The client has nothing that could contradict another answer.
        Ok(if is_blank {
            Resumption::Resend
        } else {
            Resumption::Continue
        })
    }

    /// Another server begins the stream anew. The client has no content.
    pub fn restart(&mut self) {
        *self = Self::new(self.api, self.most);
    }

    /// Takes the data of an event before the first content. In Messages, only such events name the model and open the block.
    pub fn open(&mut self, data: &[u8]) {
        if self.api == Api::Messages && !data.is_empty() {
            self.take(data);
        }
    }

    /// Takes the data of an event that the client gets, as the first server sent it.
    #[inline]
    pub fn take(&mut self, data: &[u8]) {
        if self.prevented.is_some() {
            return;
        }
        let framed = self.frame.as_ref().and_then(|frame| frame.text_of(data));
        match framed {
            Some(text) => {
                self.events += u64::from(!text.is_empty());
                self.push(text);
            }
            None => self.read(data),
        }
    }

    fn read(&mut self, data: &[u8]) {
        let Some(chunk) = event::read(self.api, data) else {
            return self.take_other(data);
        };
        // In Messages, only the first event has it.
        let has_role = self.api != Api::Messages || chunk.object.get("message").is_some();
        if has_role && !self.known {
            self.known = true;
            self.learn_identity(&chunk);
        }
        if let Some((step, index)) = chunk.block {
            if step == Step::Start && self.blocks.has_begun() {
                self.prevent(chunk.other.unwrap_or(Reason::Content));
            }
            self.blocks.note(step, index);
        }
        self.record(&chunk);
        let Some(text) = chunk.text else { return };
        self.repeats_role = chunk.role;
        let is_pure = !chunk.reasoning && !chunk.finish && chunk.usage.is_none();
        let most = MAX_AROUND.saturating_sub(self.identity.len());
        let frame = is_pure.then(|| Frame::around(data, &text, most));
        self.push(&data[text]);
        self.frame = frame.flatten().filter(|_| self.prevented.is_none());
    }

    /// Takes the data of an event that is no chunk.
    fn take_other(&mut self, data: &[u8]) {
        match data == DONE {
            true => self.finished = true,
            false => self.prevent(Reason::Content),
        }
    }

    /// Records what a chunk says, without its text.
    fn record(&mut self, chunk: &Chunk<'_>) {
        if let Some(usage) = chunk.usage {
            self.report(usage);
        }
        self.finished |= chunk.finish;
        if self.api == Api::Messages {
            // A block of text that has ended is not added to.
            self.finished |= matches!(chunk.block, Some((Step::Stop, _)));
            if chunk.reasoning {
                self.prevent(Reason::Reasoning);
            }
        }
        if let Some(reason) = chunk.other {
            self.prevent(reason);
        }
        self.events += u64::from(chunk.reasoning || chunk.text.is_some());
        self.reasoned += u64::from(chunk.reasoning && chunk.text.is_none());
    }

    fn report(&mut self, usage: Usage) {
        if usage.completion_tokens > 0 {
            self.reported = self.reported.max(Some(usage.completion_tokens));
        }
        if !self.is_joined() && usage.prompt_tokens > 0 {
            self.prompt = Some(usage.prompt_tokens);
        }
    }

    fn learn_identity(&mut self, chunk: &Chunk<'_>) {
        let message = chunk.object.object("message");
        let holder = message.as_ref().unwrap_or(&chunk.object);
        match Identity::of(FIELDS.map(|key| holder.value(key))) {
            Some(identity) => self.identity = identity,
            None => self.prevent(Reason::Content),
        }
    }

    fn push(&mut self, text: &[u8]) {
        if self.prevented.is_some() {
            return;
        }
        if self.text.len() + text.len() > self.most {
            return self.prevent(Reason::TextTooLong);
        }
        self.text.push(text);
    }
}
