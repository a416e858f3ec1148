//! Records what clients and servers see of each exchange while it happens. The invariants are checked once everything is quiet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crate::client::request::ClientRequest;
use crate::server::behavior::Behavior;
use crate::wire::{Id, Tag};

/// One exchange.
pub struct Exchange {
    pub planned: ClientRequest,
    pub actions: ClientActions,
    pub seen: ClientView,
    pub visits: Vec<Visit>,
}

/// What the client did.
#[derive(Clone, Debug, Default)]
pub struct ClientActions {
    /// When the first byte was sent.
    pub began: Option<Instant>,
    /// Whether the whole request was sent.
    pub whole: bool,
    /// The previous exchange on the same connection.
    pub previous: Option<Id>,
    /// Whether the client ended the exchange before its response was complete, by a close, half-close or reset.
    pub left: bool,
}

/// What the client saw.
#[derive(Clone, Debug, Default)]
pub struct ClientView {
    pub interim: Vec<u16>,
    pub head: Option<ClientHead>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    pub end: Option<ClientEnd>,
}

impl ClientView {
    pub fn is_whole(&self) -> bool {
        matches!(self.end, Some(ClientEnd::Whole | ClientEnd::Closed))
    }
}

#[derive(Clone, Debug)]
pub struct ClientHead {
    pub status: u16,
    /// `x-crossfade-generation`: absent if crossfade rejected the request.
    pub generation: Option<String>,
    /// The visit that sent the response; absent if crossfade generated it.
    pub tag: Option<Tag>,
    pub is_events: bool,
    /// Whether the framing has a place for trailers.
    pub may_have_trailers: bool,
}

/// How a response ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEnd {
    /// As its framing says.
    Whole,
    /// With the connection, if the framing has no other end.
    Closed,
    Fin,
    Reset,
}

/// What a server saw of an exchange, and what it did.
pub struct Visit {
    pub server: usize,
    pub connection: usize,
    pub began: Instant,
    pub behavior: Behavior,
    /// Whether the whole request arrived.
    pub whole: bool,
    pub body_bytes: usize,
    /// The complete body of the response that the behavior calls for.
    pub answer: Vec<u8>,
    pub end: VisitEnd,
}

/// How a server ended an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisitEnd {
    /// Not by itself: the server was stopped, or its peer went away.
    Open,
    /// The complete response was sent, with a clean end.
    Whole,
    /// The server broke off the response.
    Cut,
    /// The server said that it did not process the request.
    Refused,
}

/// A violation of an invariant.
#[derive(Clone, Debug)]
pub struct Violation {
    pub id: Option<Id>,
    pub what: String,
}

/// The records of one wave.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Records>>);

#[derive(Default)]
pub struct Records {
    pub exchanges: BTreeMap<Id, Exchange>,
    pub violations: Vec<Violation>,
}

impl Ledger {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap()
    }

    /// Takes all records.
    pub fn close(&self) -> Records {
        std::mem::take(&mut self.records())
    }

    pub fn violation(&self, id: Option<Id>, what: impl Into<String>) {
        let what = what.into();
        self.records().violations.push(Violation { id, what });
    }

    pub fn planned(&self, planned: &ClientRequest) {
        let exchange = Exchange {
            planned: planned.clone(),
            actions: ClientActions::default(),
            seen: ClientView::default(),
            visits: Vec::new(),
        };
        self.records().exchanges.insert(planned.id, exchange);
    }

    pub fn actions(&self, id: Id, change: impl FnOnce(&mut ClientActions)) {
        if let Some(exchange) = self.records().exchanges.get_mut(&id) {
            change(&mut exchange.actions);
        }
    }

    pub fn seen(&self, id: Id, change: impl FnOnce(&mut ClientView)) {
        if let Some(exchange) = self.records().exchanges.get_mut(&id) {
            change(&mut exchange.seen);
        }
    }

    /// The request of this exchange, and the number of earlier visits.
    pub fn known(&self, id: Id) -> Option<(ClientRequest, usize)> {
        let records = self.records();
        let exchange = records.exchanges.get(&id)?;
        Some((exchange.planned.clone(), exchange.visits.len()))
    }

    /// Opens a visit.
    pub fn visit(&self, id: Id, visit: Visit) -> Tag {
        let mut records = self.records();
        let exchange = records
            .exchanges
            .get_mut(&id)
            .expect("`known` was checked before");
        exchange.visits.push(visit);
        Tag {
            id,
            visit: exchange.visits.len() - 1,
        }
    }

    pub fn visited(&self, tag: Tag, change: impl FnOnce(&mut Visit)) {
        if let Some(exchange) = self.records().exchanges.get_mut(&tag.id) {
            change(&mut exchange.visits[tag.visit]);
        }
    }
}
