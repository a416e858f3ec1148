//! The opening events of a stream whose request is retried on another target before its first content: which of the new stream's
//! events the client already has, and which IDs and numbers it expects in the following ones.
//!
//! The `openai` and `anthropic` client libraries build a response from these events. They fail on an event that refers to a block
//! or an item that was not opened, on an item that is opened twice, and (`openai`, Responses) on a response whose ID changes. So
//! an event is dropped only if the client has an equal one, and a family whose later events repeat IDs keeps the IDs of the first
//! target. No library fails on a chat chunk with a different ID, but the API promises that all chunks of a chat have the same ID,
//! creation time, and model.

mod members;
mod rewrite;
mod start;

use bytes::Bytes;

use super::{Api, Decoder, Event};
use members::Members;
use rewrite::rewrite;
pub(super) use start::{Part, Start};

/// Maximum number of opening events that are kept. A stream that sent more cannot be continued.
pub(super) const MAX_EVENTS: usize = 64;

/// How an opening event relates to those that the client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The client does not have it.
    Forward,
    /// The client has an equal one.
    LeaveOut,
    /// The client has a different one at that position, such as a call of another tool: the streams are incompatible.
    Conflict,
}

/// The opening events that a client has, and how a later stream refers to them.
///
/// Boxed, because most streams send no opening event before the content, but each open stream has one of these.
#[derive(Debug, Default)]
pub struct Openings(Option<Box<SentOpenings>>);

/// At least one opening event that a client has.
#[derive(Debug, Default)]
struct SentOpenings {
    sent: Vec<Start>,
    /// More events were sent than are kept.
    overflowed: bool,
    /// The part of `sent` that the current stream has not repeated yet.
    due: Vec<Start>,
    /// The current stream continues a partly sent one.
    continues: bool,
    /// IDs in the current stream, each with the ID by which the client knows the same item.
    ids: Vec<(Box<str>, Box<str>)>,
    /// The members that all events of the family share.
    members: Members,
    numbers: Numbers,
}

/// The sequence numbers, which only increase across targets.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    last: Option<u64>,
    /// Added to the numbers of the current stream; unknown before its first one.
    offset: Option<u64>,
}

impl Numbers {
    /// The number that the client sees for `number` of the current stream.
    fn shown(&mut self, number: u64) -> u64 {
        let next = self.last.map_or(0, |last| last.saturating_add(1));
        let offset = *self.offset.get_or_insert(next.saturating_sub(number));
        let shown = number.saturating_add(offset);
        self.last = self.last.max(Some(shown));
        shown
    }
}

impl Openings {
    /// Records complete events that were sent together.
    pub fn sent_all(&mut self, api: Api, bytes: &[u8]) {
        let mut decoder = Decoder::new(bytes.len());
        let mut events = decoder.feed(bytes);
        while let Some(event) = events.next() {
            if event.has_data {
                self.sent(api, &event);
            }
        }
    }

    /// Whether the client has no opening event.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Records an opening event that was sent.
    pub fn sent(&mut self, api: Api, event: &Event<'_>) {
        let starts = api.starts(event);
        if !starts.is_empty() {
            let known = self.0.get_or_insert_default();
            known.add(starts);
            if api.shares_members() {
                known.members.learn(event.data);
            }
        }
    }

    /// Content follows, so no other target will continue the stream.
    pub fn settled(&mut self) {
        if let Some(known) = &mut self.0 {
            known.settled();
        }
    }

    /// The memory that it holds, in bytes.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.as_ref().map_or(0, |known| known.held())
    }

    /// The stream of another target follows.
    pub fn next_stream(&mut self) {
        if let Some(known) = &mut self.0 {
            known.next_stream();
        }
    }

    /// Compares an opening event of the current stream with those that the client has.
    pub fn classify(&mut self, api: Api, event: &Event<'_>) -> Opening {
        match &mut self.0 {
            Some(known) => known.classify(api, event),
            None => Opening::Forward,
        }
    }

    /// Whether the current stream lacks a block that the client has from an earlier one. The client would show it as part of the
    /// response, although no server sent that response.
    #[must_use]
    pub fn lacks_blocks(&self) -> bool {
        let known = self.0.as_ref();
        known.is_some_and(|known| known.due.iter().any(|start| start.is_block))
    }

    /// Learns the ID of the current stream from its first event with content, if that is its first event.
    pub fn learn(&mut self, api: Api, event: &Event<'_>) {
        if let Some(known) = self.0.as_mut().filter(|known| known.continues) {
            for start in api.starts(event) {
                known.learn_ids(&start);
            }
        }
    }

    /// Whether IDs or numbers of the current stream are rewritten, and its client would fail without that.
    #[must_use]
    pub fn must_rewrite(&self, api: Api) -> bool {
        let known = self.0.as_ref();
        api.checks_ids() && known.is_some_and(|known| known.rewrites(api))
    }

    /// The same events with the IDs and numbers that the client knows. `bytes` are complete events of the current stream.
    #[must_use]
    pub fn rewritten(&mut self, api: Api, bytes: Bytes) -> Bytes {
        match &mut self.0 {
            Some(known) => known.rewritten(api, bytes),
            None => bytes,
        }
    }
}

impl SentOpenings {
    fn add(&mut self, starts: Vec<Start>) {
        for start in starts {
            if let Some(number) = start.number {
                self.numbers.shown(number);
            }
            if start.is_keep_alive() && self.sent.iter().any(Start::is_keep_alive) {
                continue;
            }
            if self.sent.len() < MAX_EVENTS && !start.is_long() {
                self.sent.push(start);
            } else {
                self.overflowed = true;
            }
        }
    }

    fn settled(&mut self) {
        self.sent = Vec::new();
        self.due = Vec::new();
    }

    fn held(&self) -> usize {
        let places = (self.sent.capacity() + self.due.capacity()) * size_of::<Start>()
            + self.ids.capacity() * size_of::<(Box<str>, Box<str>)>();
        let texts = self.sent.iter().chain(&self.due).map(Start::text);
        let ids = self.ids.iter().map(|(own, known)| own.len() + known.len());
        size_of::<Self>() + places + self.members.text() + texts.chain(ids).sum::<usize>()
    }

    fn next_stream(&mut self) {
        self.due.clone_from(&self.sent);
        self.continues = !self.sent.is_empty();
        self.ids.clear();
        self.numbers.offset = None;
    }

    fn classify(&mut self, api: Api, event: &Event<'_>) -> Opening {
        if !self.continues {
            return Opening::Forward;
        }
        if self.overflowed {
            return Opening::Conflict;
        }
        let starts = api.starts(event);
        if starts.len() > MAX_EVENTS || starts.iter().any(Start::is_long) {
            return Opening::Conflict;
        }
        for start in &starts {
            self.learn_ids(start);
        }
        let due = |start: &Start| self.due.iter().position(|sent| sent.is_same(start));
        let found: Vec<Option<usize>> = starts.iter().map(due).collect();
        let fits = |(start, at): (&Start, &Option<usize>)| {
            at.is_none_or(|at| self.due[at].shape == start.shape)
        };
        if !starts.iter().zip(&found).all(fits) {
            return Opening::Conflict;
        }
        // A chunk may open several choices. A repeated role is harmless, but a missing one may not be.
        if starts.is_empty() || found.contains(&None) {
            return Opening::Forward;
        }
        for start in &starts {
            if let Some(at) = self.due.iter().position(|sent| sent.is_same(start)) {
                self.due.swap_remove(at);
            }
        }
        Opening::LeaveOut
    }

    /// Maps the IDs of the current stream to those that the client knows from the first one.
    fn learn_ids(&mut self, start: &Start) {
        type IdOf = fn(&Start) -> Option<&Box<str>>;
        let pairs: [IdOf; 2] = [|start| start.id.as_ref(), |start| start.call_id.as_ref()];
        for id_of in pairs {
            let sent = { self.sent.iter() }.filter(|sent| sent.shares_ids(start));
            // An empty ID is none: some gateways send an event without values first.
            let known = { sent.filter_map(id_of) }.find(|id| !id.is_empty());
            if let (Some(own), Some(known)) = (id_of(start), known)
                && own != known
                && self.ids.len() < MAX_EVENTS
                && self.ids.iter().all(|(id, _)| id != own)
            {
                self.ids.push((own.clone(), known.clone()));
            }
        }
    }

    fn rewrites(&self, api: Api) -> bool {
        let renumbers = api.is_numbered() && self.numbers.offset != Some(0);
        let replaces = renumbers || !self.ids.is_empty() || !self.members.is_empty();
        self.continues && api.repeats_ids() && replaces
    }

    fn rewritten(&mut self, api: Api, bytes: Bytes) -> Bytes {
        if !self.rewrites(api) || bytes.is_empty() {
            return bytes;
        }
        let (ids, numbers) = (&self.ids, &mut self.numbers);
        let id_of = |own: &[u8]| {
            let known = ids.iter().find(|(id, _)| id.as_bytes() == own);
            known.map(|(_, known)| known.as_bytes())
        };
        let number = |number| numbers.shown(number);
        rewrite(&bytes, id_of, number, &self.members).map_or(bytes, Bytes::from)
    }
}

#[cfg(test)]
mod tests;
