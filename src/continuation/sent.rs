//! What a client has of a stream: the text, the ids, the tokens. And how the stream of another server is joined to it.

use std::borrow::Cow;

use super::Reason;
use super::chunk::Chunk;
use super::json::{self, Edit};
use crate::sse::{Api, Usage};

/// The last event of a stream.
const DONE: &[u8] = b"[DONE]";

/// Fields of a chunk that tell one stream from another.
const IDENTITY: [&str; 4] = ["id", "created", "model", "system_fingerprint"];

/// Where the model is among them.
const MODEL: usize = 2;

/// Most bytes kept of these fields.
const MAX_IDENTITY: usize = 512;

/// Most bytes kept of the event around a text.
const MAX_FRAME: usize = 512;

/// By how much the text's buffer grows at least, in bytes.
const GROWTH: usize = 512;

/// What another server is to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The same request again: the client has only reasoning so far.
    Again,
    /// For the rest of the answer.
    Rest,
}

/// What an event at the beginning of another server's stream means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The client has it, or has no use for it. `token`: the model generated something for it.
    Skip { token: bool },
    /// The answer goes on with it.
    Begin,
    /// It does not continue the answer.
    Refuse(Reason),
}

/// The event around a text. Consecutive events of a stream mostly differ in their text only, so most need not be parsed.
#[derive(Debug)]
struct Frame {
    bytes: Box<[u8]>,
    /// Where the text is.
    at: usize,
}

impl Frame {
    fn around(data: &[u8], text: &std::ops::Range<usize>) -> Option<Self> {
        let bytes = [&data[..text.start], &data[text.end..]].concat();
        (bytes.len() <= MAX_FRAME).then(|| Self {
            bytes: bytes.into(),
            at: text.start,
        })
    }

    /// The text of an event that is like this one but for its text.
    fn text_of<'a>(&self, data: &'a [u8]) -> Option<&'a [u8]> {
        let (before, after) = self.bytes.split_at(self.at);
        let rest = data.strip_prefix(before)?.strip_suffix(after)?;
        let is_plain = memchr::memchr2(b'"', b'\\', rest).is_none();
        let ends_with_it =
            || json::end_of_string(data, self.at - 1) == Some(self.at + rest.len() + 1);
        (is_plain || ends_with_it()).then_some(rest)
    }
}

/// What a client has of a stream.
#[derive(Debug)]
pub struct Sent {
    api: Api,
    /// Most bytes of text that are kept.
    most: usize,
    /// As the inside of a JSON string.
    text: Vec<u8>,
    frame: Option<Frame>,
    /// The values of [`IDENTITY`].
    identity: [Option<Box<[u8]>>; IDENTITY.len()],
    known: bool,
    /// Do the events of the first server repeat the role?
    repeats_role: bool,
    has_reasoning: bool,
    finished: bool,
    /// Tokens that earlier servers generated for it.
    earlier: u64,
    /// Events of the current server with text or reasoning.
    events: u64,
    /// Tokens that the current server reported.
    reported: Option<u64>,
    /// As the first server reported them.
    prompt: Option<u64>,
    /// Another server continues it, so that ids and counts are rewritten.
    joined: bool,
    prevented: Option<Reason>,
}

impl Sent {
    /// Nothing yet. Keeps at most `most` bytes of text.
    #[must_use]
    pub fn new(api: Api, most: usize) -> Self {
        Self {
            api,
            most,
            text: Vec::new(),
            frame: None,
            identity: Default::default(),
            known: false,
            repeats_role: false,
            has_reasoning: false,
            finished: false,
            earlier: 0,
            events: 0,
            reported: None,
            prompt: None,
            joined: false,
            prevented: None,
        }
    }

    /// Can streams of this family be continued?
    #[must_use]
    pub const fn is_for(api: Api) -> bool {
        matches!(api, Api::Chat | Api::Completions)
    }

    /// What prevents that the stream is continued, if something does. Then nothing is kept of it.
    #[must_use]
    pub const fn prevented(&self) -> Option<Reason> {
        self.prevented
    }

    /// Prevents that the stream is continued.
    pub fn prevent(&mut self, reason: Reason) {
        self.prevented.get_or_insert(reason);
        self.text = Vec::new();
        self.frame = None;
    }

    /// What it holds, in bytes.
    #[must_use]
    pub fn held(&self) -> usize {
        let frame = self.frame.as_ref().map_or(0, |frame| frame.bytes.len());
        let identity = self.identity.iter().flatten().map(|value| value.len());
        self.text.capacity() + frame + identity.sum::<usize>()
    }

    /// The text, as the inside of a JSON string.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// How many tokens it took: as reported, else one for each event with text or reasoning.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.earlier + self.reported.unwrap_or(self.events)
    }

    /// The model that its events name.
    #[must_use]
    pub fn model(&self) -> Option<Cow<'_, str>> {
        json::string(self.identity[MODEL].as_deref()?)
    }

    /// What to ask another server.
    ///
    /// # Errors
    /// Why the stream cannot be continued.
    pub fn ask(&self) -> Result<Ask, Reason> {
        if let Some(reason) = self.prevented {
            return Err(reason);
        }
        if self.finished {
            return Err(Reason::Finished);
        }
        // Without text and reasoning the client has nothing that could contradict another answer.
        Ok(if self.text.is_empty() {
            Ask::Again
        } else {
            Ask::Rest
        })
    }

    /// Takes the data of an event that the client gets, as the current server sent it.
    #[inline]
    pub fn take(&mut self, data: &[u8]) {
        if self.prevented.is_some() {
            return;
        }
        let framed = self.frame.as_ref().and_then(|frame| frame.text_of(data));
        match framed {
            Some(text) => {
                self.events += 1;
                self.push(text);
            }
            None => self.read(data),
        }
    }

    fn read(&mut self, data: &[u8]) {
        if data == DONE {
            self.finished = true;
            return;
        }
        let Some(chunk) = Chunk::read(self.api, data) else {
            return self.prevent(Reason::Content);
        };
        if !self.known {
            self.known = true;
            self.learn_identity(&chunk);
        }
        if let Some(usage) = chunk.usage {
            self.report(usage);
        }
        self.finished |= chunk.finish;
        if let Some(reason) = chunk.other {
            return self.prevent(reason);
        }
        self.has_reasoning |= chunk.reasoning;
        self.events += u64::from(chunk.reasoning || chunk.text.is_some());
        let Some(text) = chunk.text else { return };
        if !self.joined {
            self.repeats_role = chunk.role;
        }
        let is_pure = !chunk.reasoning && !chunk.finish && chunk.usage.is_none();
        self.frame = is_pure.then(|| Frame::around(data, &text)).flatten();
        self.push(&data[text]);
    }

    fn report(&mut self, usage: Usage) {
        self.reported = self.reported.max(Some(usage.completion_tokens));
        if !self.joined && usage.prompt_tokens > 0 {
            self.prompt = Some(usage.prompt_tokens);
        }
    }

    fn learn_identity(&mut self, chunk: &Chunk<'_>) {
        let values = IDENTITY.map(|key| chunk.object.value(key));
        let length: usize = values.iter().flatten().map(|value| value.len()).sum();
        if length > MAX_IDENTITY {
            return self.prevent(Reason::Content);
        }
        self.identity = values.map(|value| value.map(Into::into));
    }

    fn push(&mut self, text: &[u8]) {
        let length = self.text.len() + text.len();
        if length > self.most {
            return self.prevent(Reason::TextTooLong);
        }
        if length > self.text.capacity() {
            // In smaller steps than a vector's own, because thousands of streams keep their text.
            let more = text.len().max(GROWTH).max(self.text.len() / 8);
            self.text
                .reserve_exact(more.min(self.most - self.text.len()));
        }
        self.text.extend_from_slice(text);
    }

    /// What the data of an event at the beginning of another server's stream means, if that was asked `ask`.
    #[must_use]
    pub fn opening(&self, ask: Ask, data: &[u8]) -> Opening {
        let Some(chunk) = Chunk::read(self.api, data) else {
            return Opening::Refuse(Reason::AttemptsFailed);
        };
        if chunk.reasoning && chunk.text.is_none() && !chunk.finish && chunk.other.is_none() {
            return match ask {
                Ask::Again => Opening::Skip { token: true },
                Ask::Rest => Opening::Refuse(Reason::Reasoning),
            };
        }
        if chunk.is_preamble() {
            return Opening::Skip { token: false };
        }
        Opening::Begin
    }

    /// Another server continues the stream. It generated `skipped` tokens that the client does not get.
    pub fn join(&mut self, ask: Ask, skipped: u64) {
        self.earlier = match ask {
            // It generates a whole answer.
            Ask::Again => 0,
            Ask::Rest => self.tokens(),
        };
        self.events = skipped;
        self.reported = None;
        self.frame = None;
        self.joined = true;
    }

    /// Do events have to be rewritten?
    #[must_use]
    pub const fn is_joined(&self) -> bool {
        self.joined
    }

    /// The token counts for the client, from those that the current server reports.
    #[must_use]
    pub fn corrected(&self, reported: Usage) -> Usage {
        if !self.joined || self.earlier == 0 {
            return reported;
        }
        let own = reported.prompt_tokens.saturating_sub(self.earlier);
        Usage {
            prompt_tokens: self.prompt.unwrap_or(own),
            completion_tokens: reported.completion_tokens + self.earlier,
        }
    }

    /// The data of an event of a continued part, as the client gets it: with the ids of the first part and corrected counts.
    #[must_use]
    pub fn rewritten(&self, data: &[u8]) -> Option<Vec<u8>> {
        let chunk = Chunk::read(self.api, data)?;
        let object = &chunk.object;
        let mut edits: Vec<Edit> = Vec::new();
        for (key, known) in IDENTITY.iter().zip(&self.identity) {
            if let (Some(known), Some(member)) = (known, object.get(key)) {
                edits.push(Edit::new(member.value.clone(), &known[..]));
            }
        }
        if let Some(usage) = chunk.usage {
            edits.extend(chunk.correct_usage(self.corrected(usage)));
        }
        if let (Some(delta), false) = (&chunk.delta, self.repeats_role) {
            edits.extend(delta.remove("role"));
        }
        Some(json::edited(data, edits))
    }
}
