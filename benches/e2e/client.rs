//! The near end: a client that checks responses and takes times.

use super::h1::{self, Piece};
use super::h2;
use super::measure::Histogram;
use super::payload::{DONE, EVENT, Payload, RequestForm};

/// What is counted while `on`.
pub struct Meters {
    pub on: bool,
    pub events: u64,
    /// Responses that ended.
    pub ended: u64,
    /// From an event's writing to its arrival.
    pub latency: Histogram,
    /// Between two events of a stream.
    pub gap: Histogram,
    /// From the request being due to the first event.
    pub first: Histogram,
    /// From the request being due to the end of a reply.
    pub reply: Histogram,
    /// Looks for a reply of the new generation, or the old, to a request sent after a time.
    pub watch: Option<(bool, u64)>,
    /// When that reply came.
    pub seen: Option<u64>,
}

impl Meters {
    pub fn new() -> Self {
        Self {
            on: false,
            events: 0,
            ended: 0,
            latency: Histogram::new(),
            gap: Histogram::new(),
            first: Histogram::new(),
            reply: Histogram::new(),
            watch: None,
            seen: None,
        }
    }
}

/// A request and what came of it.
pub struct Task {
    id: u64,
    ask: RequestForm,
    /// When the request was due.
    started: u64,
    sequence: u64,
    /// Of an event, or of a reply, that is not yet whole.
    held: Vec<u8>,
    last: u64,
    new: bool,
    said_done: bool,
    ended: bool,
}

impl Task {
    pub fn new(id: u64, ask: RequestForm, started: u64) -> Self {
        Self {
            id,
            ask,
            started,
            sequence: 0,
            held: Vec::new(),
            last: 0,
            new: false,
            said_done: false,
            ended: false,
        }
    }

    pub fn is_streaming(&self) -> bool {
        self.sequence > 0
    }

    pub fn is_done(&self) -> bool {
        self.ended
    }

    fn piece(
        &mut self,
        piece: &Piece<'_>,
        now: u64,
        payload: &Payload,
        meters: &mut Meters,
    ) -> Result<(), String> {
        match piece {
            Piece::Head { new } => self.new = *new,
            Piece::Body(bytes) if self.ask.streams() => self.events(bytes, now, payload, meters)?,
            Piece::Body(bytes) => self.held.extend_from_slice(bytes),
            Piece::End => self.end(now, payload, meters)?,
        }
        Ok(())
    }

    fn events(
        &mut self,
        mut bytes: &[u8],
        now: u64,
        payload: &Payload,
        meters: &mut Meters,
    ) -> Result<(), String> {
        while !bytes.is_empty() {
            if self.held.is_empty() && bytes.len() >= EVENT {
                let (event, rest) = bytes.split_at(EVENT);
                self.event(event, now, payload, meters)?;
                bytes = rest;
                continue;
            }
            let missing = (EVENT - self.held.len()).min(bytes.len());
            self.held.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            if self.held.len() == EVENT {
                let event = std::mem::take(&mut self.held);
                self.event(&event, now, payload, meters)?;
                self.held = event;
                self.held.clear();
            }
        }
        if self.held == DONE {
            self.held.clear();
            self.said_done = true;
        }
        Ok(())
    }

    fn event(
        &mut self,
        event: &[u8],
        now: u64,
        payload: &Payload,
        meters: &mut Meters,
    ) -> Result<(), String> {
        let written = payload
            .check_event(event, self.id, self.sequence)
            .ok_or_else(|| {
                format!(
                    "event {} of stream {} is {}",
                    self.sequence,
                    self.id,
                    event.escape_ascii()
                )
            })?;
        if meters.on {
            meters.events += 1;
            meters.latency.record(now.saturating_sub(written));
            if self.sequence == 0 {
                meters.first.record(now - self.started);
            } else {
                meters.gap.record(now - self.last);
            }
        }
        self.sequence += 1;
        self.last = now;
        Ok(())
    }

    fn end(&mut self, now: u64, payload: &Payload, meters: &mut Meters) -> Result<(), String> {
        let whole = if self.ask.streams() {
            self.said_done && self.held.is_empty()
        } else {
            payload.check_reply(&self.held, self.id)
        };
        if !whole {
            let (id, held) = (self.id, self.held.escape_ascii());
            return Err(format!("response {id} ended with {held}"));
        }
        self.held = Vec::new();
        self.ended = true;
        if !self.ask.streams() {
            if meters
                .watch
                .is_some_and(|(new, since)| self.new == new && self.started >= since)
            {
                meters.watch = None;
                meters.seen = Some(now);
            }
            if meters.on {
                meters.reply.record(now - self.started);
            }
        }
        if meters.on {
            meters.ended += 1;
        }
        Ok(())
    }
}

enum Protocol {
    Http1(h1::Reader, Option<usize>),
    /// With the task of each stream, which are numbered 1, 3, 5 …
    Http2(h2::Reader, Vec<usize>),
}

/// A client's connection.
pub struct Client {
    protocol: Protocol,
    /// Is it closed after its first response?
    pub keep: bool,
}

impl Client {
    pub fn new(http2: bool, keep: bool, out: &mut Vec<u8>) -> Self {
        let protocol = if http2 {
            Protocol::Http2(h2::Reader::new(out), Vec::new())
        } else {
            Protocol::Http1(h1::Reader::default(), None)
        };
        Self { protocol, keep }
    }

    /// Writes the request of task number `task`.
    pub fn request(
        &mut self,
        task: usize,
        ask: RequestForm,
        secure: bool,
        payload: &Payload,
        out: &mut Vec<u8>,
    ) {
        const PATH: &str = "/v1/chat/completions";
        let bench = format!("{}{task}", ask.letter());
        let body = payload.prompt(ask);
        match &mut self.protocol {
            Protocol::Http1(_, current) => {
                *current = Some(task);
                let length = body.len();
                out.extend_from_slice(
                    format!(
                        "POST {PATH} HTTP/1.1\r\nHost: bench\r\nUser-Agent: bench\r\nAccept: */*\r\nContent-Type: application/json\r\nX-Bench: {bench}\r\nContent-Length: {length}\r\n\r\n"
                    )
                    .as_bytes(),
                );
                out.extend_from_slice(body);
            }
            Protocol::Http2(reader, tasks) => {
                let scheme = if secure { "https" } else { "http" };
                reader.request(out, scheme, PATH, &bench, body);
                tasks.push(task);
            }
        }
    }

    /// Takes in bytes of responses and returns how many responses ended with them.
    ///
    /// # Errors
    /// Says what is not as it should be.
    pub fn feed(
        &mut self,
        input: &[u8],
        now: u64,
        payload: &Payload,
        all: &mut [Task],
        meters: &mut Meters,
        out: &mut Vec<u8>,
    ) -> Result<usize, String> {
        let mut ended = 0;
        match &mut self.protocol {
            Protocol::Http1(reader, current) => reader.feed(input, |piece| {
                let task = current.ok_or("a response to nothing")?;
                if matches!(piece, Piece::End) {
                    *current = None;
                    ended += 1;
                }
                all[task].piece(&piece, now, payload, meters)
            })?,
            Protocol::Http2(reader, tasks) => reader.feed(input, out, |stream, piece| {
                let task = tasks.get(stream as usize / 2).ok_or("a stream of nobody")?;
                ended += usize::from(matches!(piece, Piece::End));
                all[*task].piece(&piece, now, payload, meters)
            })?,
        }
        Ok(ended)
    }

    /// Is a response under way?
    pub fn is_waiting(&self, all: &[Task]) -> bool {
        match &self.protocol {
            Protocol::Http1(_, current) => current.is_some(),
            Protocol::Http2(_, tasks) => tasks.iter().any(|task| !all[*task].is_done()),
        }
    }
}
