//! How the stream of a second target continues what a client already has of the first one's: which of its opening events
//! repeat events that went out, and under which ids and numbers the client knows what follows.
//!
//! Must not know: how events are framed, why a stream moved.
//!
//! The `openai` and `anthropic` client libraries build an answer up from these events. They fail on an event that refers to
//! a block or an item they were not shown, on an item shown twice, and (`openai`, Responses) on an answer whose id changes.
//! So only what went out is left out, and the Responses stream, the only one whose later events repeat ids, goes on with
//! the ids of the first target.

mod rewrite;
mod start;

use bytes::Bytes;

use super::{Api, Decoder, Event};
use rewrite::rewrite;
use start::{Kind, Start, starts};

/// Most opening events that are remembered. A stream that sent more cannot be continued.
const MOST: usize = 64;

/// What to do with an opening event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The client does not have it.
    Forward,
    /// The client has its equal.
    LeaveOut,
    /// The client was shown something else in its place, as a call of another tool: the streams do not fit together.
    Conflict,
}

/// The opening events that a client has, and how a later stream refers to them.
#[derive(Debug, Default)]
pub struct Continuation {
    sent: Vec<Start>,
    /// More went out than is remembered.
    overflowed: bool,
    /// Of `sent`, what the present stream has not repeated yet.
    due: Vec<Start>,
    /// The present stream continues another one of which something went out.
    continues: bool,
    /// Ids of the present stream, and those by which the client knows the same thing.
    ids: Vec<(Box<str>, Box<str>)>,
    numbers: Numbers,
}

/// The numbering of a Responses stream: it only goes up, whoever sends it.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    last: Option<u64>,
    /// What is added to the numbers of the present stream; not known before its first.
    offset: Option<u64>,
}

impl Numbers {
    /// The number that the client sees for `number` of the present stream.
    fn shown(&mut self, number: u64) -> u64 {
        let next = self.last.map_or(0, |last| last.saturating_add(1));
        let offset = *self.offset.get_or_insert(next.saturating_sub(number));
        let shown = number.saturating_add(offset);
        self.last = self.last.max(Some(shown));
        shown
    }
}

impl Continuation {
    /// Whole events went out together.
    pub fn sent_all(&mut self, api: Api, bytes: &[u8]) {
        let mut decoder = Decoder::new(bytes.len());
        let mut events = decoder.feed(bytes);
        while let Some(event) = events.next() {
            if event.has_data {
                self.sent(api, &event);
            }
        }
    }

    /// An opening event went out.
    pub fn sent(&mut self, api: Api, event: &Event<'_>) {
        for start in starts(api, event) {
            if let Some(number) = start.number {
                self.numbers.shown(number);
            }
            if self.sent.len() < MOST && !start.is_long() {
                self.sent.push(start);
            } else {
                self.overflowed = true;
            }
        }
    }

    /// Content follows: no other target will go on with the stream.
    pub fn settled(&mut self) {
        self.sent = Vec::new();
        self.due = Vec::new();
    }

    /// What it holds, in bytes.
    #[must_use]
    pub fn held(&self) -> usize {
        let places = (self.sent.capacity() + self.due.capacity()) * size_of::<Start>()
            + self.ids.capacity() * size_of::<(Box<str>, Box<str>)>();
        let texts = self.sent.iter().chain(&self.due).map(Start::text);
        let ids = self.ids.iter().map(|(own, known)| own.len() + known.len());
        places + texts.chain(ids).sum::<usize>()
    }

    /// The stream of another target follows.
    pub fn moved(&mut self) {
        self.due.clone_from(&self.sent);
        self.continues = !self.sent.is_empty();
        self.ids.clear();
        self.numbers.offset = None;
    }

    /// What to do with an opening event of the present stream.
    pub fn judge(&mut self, api: Api, event: &Event<'_>) -> Opening {
        if !self.continues {
            return Opening::Forward;
        }
        if self.overflowed {
            return Opening::Conflict;
        }
        let starts = starts(api, event);
        if starts.len() > MOST || starts.iter().any(Start::is_long) {
            return Opening::Conflict;
        }
        for start in &starts {
            self.learn_ids(start);
        }
        let due = |start: &Start| self.due.iter().position(|sent| sent.is_at(start));
        let found: Vec<Option<usize>> = starts.iter().map(due).collect();
        let fits = |(start, at): (&Start, &Option<usize>)| {
            at.is_none_or(|at| self.due[at].shape == start.shape)
        };
        if !starts.iter().zip(&found).all(fits) {
            return Opening::Conflict;
        }
        // A chunk opens several choices at once. To be shown a role twice does no harm, to miss one may.
        if starts.is_empty() || found.contains(&None) {
            return Opening::Forward;
        }
        for start in &starts {
            if let Some(at) = self.due.iter().position(|sent| sent.is_at(start)) {
                self.due.swap_remove(at);
            }
        }
        Opening::LeaveOut
    }

    /// The client knows by other ids what it was shown of the first stream.
    fn learn_ids(&mut self, start: &Start) {
        let is_lifecycle = |kind| matches!(kind, Kind::Created | Kind::Queued | Kind::InProgress);
        let known = self.sent.iter().find(|sent| match start.kind {
            Kind::Item => sent.is_at(start),
            kind => is_lifecycle(kind) && is_lifecycle(sent.kind),
        });
        let Some(known) = known else { return };
        for (own, known) in [(&start.id, &known.id), (&start.call_id, &known.call_id)] {
            if let (Some(own), Some(known)) = (own, known)
                && own != known
                && self.ids.len() < MOST
                && self.ids.iter().all(|(id, _)| id != own)
            {
                self.ids.push((own.clone(), known.clone()));
            }
        }
    }

    /// The same events with the ids and numbers that the client knows. `bytes` are whole events of the present stream.
    #[must_use]
    pub fn rewritten(&mut self, api: Api, bytes: Bytes) -> Bytes {
        let changes = self.continues
            && api == Api::Responses
            && !(self.ids.is_empty() && self.numbers.offset == Some(0));
        if !changes || bytes.is_empty() {
            return bytes;
        }
        let (ids, numbers) = (&self.ids, &mut self.numbers);
        let id_of = |own: &[u8]| {
            let known = ids.iter().find(|(id, _)| id.as_bytes() == own);
            known.map(|(_, known)| known.as_bytes())
        };
        rewrite(&bytes, id_of, |number| numbers.shown(number)).map_or(bytes, Bytes::from)
    }
}

#[cfg(test)]
mod tests;
