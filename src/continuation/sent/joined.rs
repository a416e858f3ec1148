//! Joins the stream of another server to the part that the client has.

use super::event_template::{EventTemplate, FIELDS, FINGERPRINT};
use super::{Resumption, Sent, count};
use crate::continuation::chunk::{BlockEvent, Chunk};
use crate::continuation::json::{self, Edit};
use crate::continuation::text::given;
use crate::continuation::{ContinuationReason, choices, event, messages};
use crate::sse::{Api, Usage};

/// How to treat an event at the beginning of another server's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinAction {
    /// The client already has it, or does not need it. `token`: the model generated something for it.
    Skip { token: bool },
    /// It continues the response.
    Begin,
    /// It does not continue the answer.
    Refuse(ContinuationReason),
}

/// An event of a continued part, as the client gets it.
#[derive(Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// An event to send before it.
    pub before: Option<String>,
    /// Its data.
    pub data: Vec<u8>,
}

/// The state that is needed once another server continues a stream.
#[derive(Debug)]
pub(super) struct Joined {
    /// Tokens that earlier servers generated for it.
    earlier: u64,
    /// Whitespace at the end of the text that was withheld from the current server (see [`given`]). If the server repeats it,
    /// the repetition is dropped.
    repeats: String,
    /// Nothing of the current server has been compared with it.
    is_first: bool,
    /// The number of events of the current server with only this whitespace. Each is a token that the client has counted.
    repeated: u64,
    /// The next event is forwarded without its reasoning, because the client has the reasoning of the first server.
    drops_reasoning: bool,
    /// What to add to the indexes of the current server's content blocks, once that is known.
    shift: Option<i64>,
}

impl Joined {
    /// The memory that it holds, in bytes.
    pub(super) fn held(&self) -> usize {
        size_of::<Self>() + self.repeats.capacity()
    }

    /// The rest of a quoted text after the whitespace that the client already has, without the quotes; `None` if nothing is
    /// left.
    fn without_repeats(&mut self, quoted: &[u8]) -> Option<Vec<u8>> {
        if self.repeats.is_empty() {
            return None;
        }
        let text = json::string(quoted)?;
        if std::mem::take(&mut self.is_first) {
            self.align(&text);
        }
        let same = self.repeats.chars().zip(text.chars());
        let same: usize = same
            .take_while(|(known, new)| known == new)
            .map(|(known, _)| known.len_utf8())
            .sum();
        // The server continues with something else, or may repeat the rest in its next event.
        match same < text.len() {
            true => self.repeats = String::new(),
            false => drop(self.repeats.drain(..same)),
        }
        let rest = serde_json::to_string(&text[same..]).ok()?;
        (same > 0).then(|| rest.as_bytes()[1..rest.len() - 1].to_vec())
    }

    /// The server may repeat only the end of the whitespace, for example a line break without the blanks before it.
    fn align(&mut self, text: &str) {
        let starts = self.repeats.char_indices().map(|(at, _)| at);
        let start = starts
            .map(|at| &self.repeats[at..])
            .find(|rest| text.starts_with(*rest) || rest.starts_with(text));
        if let Some(rest) = start {
            self.repeats = rest.to_owned();
        }
    }
}

impl Sent {
    /// Classifies the data of an event at the beginning of another server's stream that was requested with `resumption`.
    #[must_use]
    pub fn opening(&self, resumption: Resumption, data: &[u8]) -> JoinAction {
        let Some(chunk) = event::read(self.api, data) else {
            return match event::is_blank(data) {
                true => JoinAction::Skip { token: false },
                false => JoinAction::Refuse(ContinuationReason::AttemptsFailed),
            };
        };
        if chunk.reasoning && chunk.other.is_none() {
            if resumption == Resumption::Continue || self.api == Api::Messages {
                return JoinAction::Refuse(ContinuationReason::Reasoning);
            }
            if chunk.text.is_none() && !chunk.finish {
                return JoinAction::Skip { token: true };
            }
        }
        if chunk.is_preamble() {
            return JoinAction::Skip { token: false };
        }
        JoinAction::Begin
    }

    /// Another server continues the stream. It generated `skipped` tokens that are not sent to the client.
    pub fn join(&mut self, resumption: Resumption, skipped: u64) {
        let earlier = match resumption {
            // The server generates a whole answer.
            Resumption::Resend => {
                self.reasoned = count(skipped);
                0
            }
            Resumption::Continue => self.tokens(),
        };
        self.events = count(skipped);
        self.reported = None;
        self.forget_event();
        let repeats = self.said().map_or_else(String::new, |said| {
            said[given(self.api, &said).len()..].to_owned()
        });
        self.joined = Some(Box::new(Joined {
            earlier,
            repeats,
            is_first: true,
            repeated: 0,
            drops_reasoning: resumption == Resumption::Resend,
            shift: None,
        }));
    }

    /// Whether events have to be rewritten.
    #[must_use]
    pub const fn is_joined(&self) -> bool {
        self.joined.is_some()
    }

    /// Tokens that earlier servers generated for it.
    pub(super) fn earlier(&self) -> u64 {
        self.joined.as_ref().map_or(0, |joined| joined.earlier)
    }

    /// Tokens of the current server that the client has from an earlier one.
    pub(super) fn repeated(&self) -> u64 {
        self.joined.as_ref().map_or(0, |joined| joined.repeated)
    }

    /// The token counts for the client, computed from those that the current server reports.
    #[must_use]
    pub fn corrected(&self, reported: Usage) -> Usage {
        let earlier = self.earlier();
        if earlier == 0 {
            return reported;
        }
        // Neither the reasoning nor the withheld whitespace.
        let in_prompt = earlier.saturating_sub(u64::from(self.reasoned) + self.repeated());
        let own = reported.prompt_tokens.saturating_sub(in_prompt);
        Usage {
            prompt_tokens: self.prompt.map_or(own, |prompt| prompt.get().into()),
            completion_tokens: earlier + reported.completion_tokens.saturating_sub(self.repeated()),
        }
    }

    /// Processes the data of an event of a continued part. Returns the event for the client, with the IDs of the first part and
    /// corrected counts; `None` if it is unchanged.
    pub fn pass(&mut self, data: &[u8]) -> Option<Rewritten> {
        let Some(chunk) = event::read(self.api, data) else {
            self.take_other(data);
            return None;
        };
        let mut edits: Vec<Edit> = Vec::new();
        let text = chunk.text.clone();
        let (mut rest, mut drops_reasoning) = (None, false);
        if let Some(joined) = &mut self.joined {
            if let Some(text) = &text {
                rest = joined.without_repeats(&data[text.start - 1..text.end + 1]);
            }
            if joined.earlier > 0 {
                joined.repeated += u64::from(rest.as_ref().is_some_and(Vec::is_empty));
            }
            drops_reasoning = std::mem::take(&mut joined.drops_reasoning);
        }
        let known = self.template.as_ref();
        let known = known.map_or([None; FIELDS.len()], EventTemplate::values);
        for (at, (key, known)) in FIELDS.iter().zip(known).enumerate() {
            let Some(member) = chunk.object.get(key) else {
                continue;
            };
            match known {
                Some(known) => edits.push(Edit::new(member.value.clone(), known)),
                // Clients would take it for that of the whole response, and the first server sent none.
                None if at == FINGERPRINT => edits.push(Edit::new(member.value.clone(), "null")),
                None => {}
            }
        }
        if let Some(usage) = chunk.usage {
            edits.extend(chunk.correct_usage(self.corrected(usage)));
        }
        if let (Some(delta), false) = (&chunk.delta, self.repeats_role) {
            edits.extend(delta.remove("role"));
        }
        // The first event with content may contain the end of the reasoning.
        if let (Some(delta), true) = (&chunk.delta, drops_reasoning) {
            edits.extend(choices::without_reasoning(delta));
        }
        let before = self.set_block_index(&chunk, &mut edits);
        self.record(&chunk);
        match (text, rest) {
            (Some(text), Some(rest)) => {
                self.push(&rest);
                edits.push(Edit::new(text, rest));
            }
            (Some(text), None) => self.push(&data[text]),
            (None, _) => {}
        }
        let data = json::edited(data, edits);
        Some(Rewritten { before, data })
    }

    /// Sets the block index of a Messages event. Returns the event that ends the previous block, if the server does not send one
    /// itself.
    fn set_block_index(&mut self, chunk: &Chunk<'_>, edits: &mut Vec<Edit>) -> Option<String> {
        if self.api != Api::Messages {
            return None;
        }
        let Some((step, index)) = chunk.block else {
            let closed = chunk.finish.then(|| self.blocks.close()).flatten();
            return closed.map(messages::end_of_block);
        };
        let starts = step == BlockEvent::Start;
        if starts && chunk.other.is_none() {
            self.prevent(ContinuationReason::Content);
        }
        let closed = starts.then(|| self.blocks.close()).flatten();
        let joined = self.joined.as_mut()?;
        let placed = self.blocks.map_index(step, index, &mut joined.shift);
        edits.push(chunk.object.set("index", &placed.to_string()));
        closed.map(messages::end_of_block)
    }
}
