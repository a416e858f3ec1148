//! What clients and servers saw of each exchange: they write it down here while it happens, and the invariants are judged by
//! it once all is quiet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crate::client::ask::Ask;
use crate::server::deed::Deed;
use crate::wire::{Id, Tag};

/// One exchange.
pub struct Exchange {
    pub ask: Ask,
    pub asked: Asked,
    pub seen: Seen,
    pub visits: Vec<Visit>,
}

/// What the client did.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// When the first byte went out.
    pub began: Option<Instant>,
    /// The whole request went out.
    pub whole: bool,
    /// The exchange before it on the same connection.
    pub previous: Option<Id>,
    /// It ended the exchange before its answer was there: by a close, a half-close or a reset.
    pub left: bool,
}

/// What the client saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub interim: Vec<u16>,
    pub head: Option<SeenHead>,
    pub body: Vec<u8>,
    pub end: Option<SeenEnd>,
}

impl Seen {
    pub fn is_whole(&self) -> bool {
        matches!(self.end, Some(SeenEnd::Whole | SeenEnd::Closed))
    }
}

#[derive(Clone, Debug)]
pub struct SeenHead {
    pub status: u16,
    /// `x-crossfade-generation`: absent where crossfade refused the request.
    pub generation: Option<String>,
    /// The visit that answers; absent where crossfade answers by itself.
    pub tag: Option<Tag>,
    pub is_events: bool,
}

/// How an answer ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenEnd {
    /// As its framing says.
    Whole,
    /// By the end of a connection, with nothing in the framing to say that this is the end.
    Closed,
    Fin,
    Reset,
}

/// What a server saw of an exchange, and did.
pub struct Visit {
    pub server: usize,
    pub connection: usize,
    pub began: Instant,
    pub deed: Deed,
    /// The whole request came.
    pub whole: bool,
    pub body_bytes: usize,
    /// All of the body that the deed is to answer with.
    pub answer: Vec<u8>,
    pub end: VisitEnd,
}

/// How a server ended an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisitEnd {
    /// Not by itself: it was stopped, or the other side went away.
    Open,
    /// All of the answer was sent, with a clean end.
    Whole,
    /// It broke the answer off.
    Cut,
    /// It said that it did not process the request.
    Refused,
}

/// Something that must not be.
#[derive(Clone, Debug)]
pub struct Violation {
    pub id: Option<Id>,
    pub what: String,
}

/// The records of one wave.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Book>>);

#[derive(Default)]
pub struct Book {
    pub exchanges: BTreeMap<Id, Exchange>,
    pub violations: Vec<Violation>,
}

impl Ledger {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap()
    }

    /// Takes out all that was written down.
    pub fn close(&self) -> Book {
        std::mem::take(&mut self.book())
    }

    pub fn violation(&self, id: Option<Id>, what: impl Into<String>) {
        let what = what.into();
        self.book().violations.push(Violation { id, what });
    }

    pub fn ask(&self, ask: &Ask) {
        let exchange = Exchange {
            ask: ask.clone(),
            asked: Asked::default(),
            seen: Seen::default(),
            visits: Vec::new(),
        };
        self.book().exchanges.insert(ask.id, exchange);
    }

    pub fn asked(&self, id: Id, change: impl FnOnce(&mut Asked)) {
        if let Some(exchange) = self.book().exchanges.get_mut(&id) {
            change(&mut exchange.asked);
        }
    }

    pub fn seen(&self, id: Id, change: impl FnOnce(&mut Seen)) {
        if let Some(exchange) = self.book().exchanges.get_mut(&id) {
            change(&mut exchange.seen);
        }
    }

    /// The request of this exchange, and how many visits there were before.
    pub fn known(&self, id: Id) -> Option<(Ask, usize)> {
        let book = self.book();
        let exchange = book.exchanges.get(&id)?;
        Some((exchange.ask.clone(), exchange.visits.len()))
    }

    /// Opens a visit.
    pub fn visit(&self, id: Id, visit: Visit) -> Tag {
        let mut book = self.book();
        let exchange = book.exchanges.get_mut(&id).expect("known was asked before");
        exchange.visits.push(visit);
        Tag {
            id,
            visit: exchange.visits.len() - 1,
        }
    }

    pub fn visited(&self, tag: Tag, change: impl FnOnce(&mut Visit)) {
        if let Some(exchange) = self.book().exchanges.get_mut(&tag.id) {
            change(&mut exchange.visits[tag.visit]);
        }
    }
}
