//! What a client requests and how it behaves, derived from the numbers of its exchange.

use std::time::Duration;

use crate::draw::Draw;
use crate::support::scripts::Family;
use crate::wire::Id;

/// One request and the behaviour of its client.
#[derive(Clone, Debug)]
pub struct ClientRequest {
    pub id: Id,
    pub kind: Kind,
    /// Length of the body, in bytes.
    pub length: usize,
    pub framing: RequestFraming,
    /// Whether to send trailers with a chunked body.
    pub trailers: bool,
    /// Whether to send `Expect: 100-continue` and wait for the response for a while.
    pub expects: bool,
    /// Whether to list a field of its own in `Connection`.
    pub hop: bool,
    pub sending: Sending,
    pub leaving: Leaving,
    pub reading: Reading,
    /// What to send if the server switches protocols, in bytes.
    pub tunnel: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Stream(Family),
    Unary(Family),
    /// Served by old only.
    Get,
    Head,
    /// A GET that asks for another protocol, served by old only. If the server switches, both sides send what they have and
    /// close their direction.
    Upgrade,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFraming {
    None,
    Length,
    /// Chunks of this many bytes.
    Chunked(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    AtOnce,
    /// Pieces of this many bytes. Pauses follow the first few.
    Slow(usize, Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    Stays,
    /// Closes after this many bytes of the body.
    InBody(usize),
    /// Closes this long after the request.
    After(Duration),
    /// Closes its sending side after the request and waits for the response.
    HalfCloses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Fast,
    /// Reads of this many bytes. Pauses follow the first few.
    Slow(usize, Duration),
    /// Reads nothing for this long once it has the head.
    Stalls(Duration),
}

impl ClientRequest {
    /// Draws the request and behaviour for `id`.
    pub fn of(seed: u64, id: Id) -> Self {
        let mut draw = Draw::of(&[seed, 1, id.0]);
        let family = draw.pick(&Family::ALL);
        let kind = match draw.within(0..=9) {
            0..=5 => Kind::Stream(family),
            6..=7 => Kind::Unary(family),
            8 => Kind::Get,
            _ => Kind::Head,
        };
        let has_body = matches!(kind, Kind::Stream(_) | Kind::Unary(_));
        let length = match draw.within(0..=9) {
            0..=5 => draw.within(90..=2_000),
            6..=7 => draw.within(2_000..=40_000),
            8 => draw.within(60_000..=70_000),
            _ => draw.within(70_000..=300_000),
        };
        let framing = match draw.within(0..=3) {
            0 if length < 4_000 => RequestFraming::Chunked(1),
            0 | 1 => RequestFraming::Chunked(draw.within(7..=20_000)),
            _ => RequestFraming::Length,
        };
        let is_chunked = matches!(framing, RequestFraming::Chunked(_));
        let sending = if draw.percent(75) {
            Sending::AtOnce
        } else {
            Sending::Slow(draw.within(1..=length), draw.millis(1..=30))
        };
        let leaving = match draw.within(0..=19) {
            0 => Leaving::InBody(draw.within(0..=length)),
            1 | 2 => Leaving::After(draw.millis(0..=120)),
            3 => Leaving::HalfCloses,
            _ => Leaving::Stays,
        };
        let reading = match draw.within(0..=9) {
            0 => Reading::Slow(draw.within(1..=200), draw.millis(1..=10)),
            1 => Reading::Stalls(draw.millis(50..=500)),
            _ => Reading::Fast,
        };
        let mut planned = Self {
            id,
            kind,
            length: if has_body { length } else { 0 },
            framing: if has_body {
                framing
            } else {
                RequestFraming::None
            },
            trailers: has_body && is_chunked && draw.percent(20),
            expects: has_body && draw.percent(15),
            hop: draw.percent(10),
            sending,
            leaving,
            reading,
            tunnel: 0,
        };
        // Drawn last, so that earlier seeds keep their other choices.
        if kind == Kind::Get && draw.percent(50) {
            planned.kind = Kind::Upgrade;
            planned.tunnel = draw.pick(&[0, 1, 500, 20_000, 200_000]);
            if planned.leaving == Leaving::HalfCloses {
                planned.leaving = Leaving::Stays;
            }
        }
        planned
    }

    /// The same without the wish for another protocol.
    pub fn without_upgrade(mut self) -> Self {
        if self.kind == Kind::Upgrade {
            self.kind = Kind::Get;
        }
        self
    }

    /// Adapts it to HTTP/1.0, which has no chunked encoding, no `Expect` and no `Upgrade`.
    pub fn in_http10(self) -> Self {
        let mut this = self.without_upgrade();
        if let RequestFraming::Chunked(_) = this.framing {
            this.framing = RequestFraming::Length;
            this.trailers = false;
        }
        this.expects = false;
        this
    }

    /// Adapts it to HTTP/2, which has no `Connection` and `Upgrade` fields, and no half-close that could look like a client
    /// that left.
    pub fn in_http2(self) -> Self {
        let mut this = self.without_upgrade();
        this.hop = false;
        if this.leaving == Leaving::HalfCloses {
            this.leaving = Leaving::Stays;
        }
        this
    }

    pub fn method(&self) -> &'static str {
        match self.kind {
            Kind::Stream(_) | Kind::Unary(_) => "POST",
            Kind::Get | Kind::Upgrade => "GET",
            Kind::Head => "HEAD",
        }
    }

    pub fn target(&self) -> String {
        let path = match self.kind {
            Kind::Stream(family) | Kind::Unary(family) => family.path(),
            Kind::Get | Kind::Head | Kind::Upgrade => "/health",
        };
        format!("{path}?of={}", self.id)
    }

    pub fn body(&self) -> Vec<u8> {
        let is_stream = matches!(self.kind, Kind::Stream(_));
        crate::wire::request_body(self.id, is_stream, self.length)
    }

    /// What the client sends after a switch of protocols.
    pub fn tunnelled(&self) -> Vec<u8> {
        crate::wire::request_body(self.id, false, self.tunnel)
    }

    /// Does the client do everything needed to get a response?
    pub fn is_polite(&self) -> bool {
        self.leaving == Leaving::Stays
    }
}
