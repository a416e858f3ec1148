//! What a server does with one request, derived from the numbers of the visit.

use std::time::Duration;

use crate::client::request::{ClientRequest, Kind};
use crate::draw::Draw;
use crate::support::scripts::Family;
use crate::wire::{Tag, whole_answer};

/// The behaviour of one visit.
#[derive(Clone, Debug)]
pub struct Behavior {
    /// Interim responses to send first.
    pub interim: Vec<u16>,
    /// Responds without waiting for the body of the request.
    pub early: bool,
    /// Does not read that body until the response is complete (HTTP/1.1 only). The connection remains in use.
    pub leaves_body: bool,
    pub wait: Duration,
    pub answer: Answer,
    pub fault: Fault,
    /// The response is sent in pieces of this many bytes. Pauses follow the first few.
    pub width: usize,
    pub pause: Duration,
    pub after: After,
    /// Sends trailers, where the framing has a place for them.
    pub trailers: bool,
    /// Switches protocols (HTTP/1.1 only): the response body is what it sends through the tunnel.
    pub switches: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Events {
        family: Family,
        count: usize,
        terminal: bool,
    },
    Whole {
        status: u16,
        length: usize,
        framing: AnswerFraming,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerFraming {
    Length,
    Chunked,
    UntilClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Breaks off after the request, without sending a byte.
    NoAnswer(Break),
    /// Stops inside the head.
    HalfHead(Break),
    /// Stops after this percentage of the body.
    Half(usize, Break),
    /// Sends a second response after the first.
    Twice,
}

/// How a connection is broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    Fin,
    Reset,
    /// Only after this long without data.
    Silence(Duration),
}

/// What happens to the connection after the complete response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Keeps,
    /// Announces the close in the head.
    Closes,
    /// Closes after this long, without an announcement.
    Vanishes(Duration),
}

impl Behavior {
    /// Draws the behaviour of visit `visit` at `server`. A calm one has no fault.
    pub fn of(seed: u64, server: usize, planned: &ClientRequest, visit: usize, calm: bool) -> Self {
        let mut draw = Draw::of(&[seed, 3, server as u64, planned.id.0, visit as u64]);
        let answer = answer(&mut draw, planned, calm);
        let fault = if calm || draw.percent(60) {
            Fault::None
        } else {
            fault(&mut draw)
        };
        let interim = match draw.within(0..=19) {
            0 => vec![103; draw.within(1..=20)],
            1 => vec![102],
            2 => vec![100],
            _ => Vec::new(),
        };
        let until_close = matches!(
            answer,
            Answer::Whole {
                framing: AnswerFraming::UntilClose,
                ..
            }
        );
        // A reset caused by a request that is still being sent looks like the end of a response that ends with its connection.
        let early = draw.percent(15) && !until_close;
        let after = match draw.within(0..=9) {
            _ if until_close => After::Closes,
            0 => After::Closes,
            1 => After::Vanishes(draw.millis(0..=15)),
            _ => After::Keeps,
        };
        let tiny = draw.percent(15);
        let mut behavior = Self {
            interim,
            early,
            leaves_body: early && draw.percent(40),
            wait: if draw.percent(40) {
                draw.millis(1..=80)
            } else {
                Duration::ZERO
            },
            answer,
            fault,
            width: if tiny {
                draw.within(1..=40)
            } else {
                draw.within(100..=30_000)
            },
            pause: draw.millis(0..=8),
            after,
            trailers: false,
            switches: false,
        };
        // Drawn last, so that earlier seeds keep their other choices.
        behavior.trailers = draw.percent(25);
        if planned.kind == Kind::Upgrade && behavior.status() == 200 && draw.percent(75) {
            behavior.switch();
        }
        behavior
    }

    fn switch(&mut self) {
        self.switches = true;
        (self.early, self.leaves_body, self.after) = (false, false, After::Closes);
        if let Answer::Whole { framing, .. } = &mut self.answer {
            *framing = AnswerFraming::UntilClose;
        }
        if self.fault == Fault::Twice {
            self.fault = Fault::None;
        }
    }

    /// Adapts it to HTTP/2, where no protocol is switched to.
    pub fn in_http2(mut self) -> Self {
        self.switches = false;
        self
    }

    /// The complete body of the response.
    pub fn body(&self, tag: Tag) -> Vec<u8> {
        match self.answer {
            Answer::Events {
                family,
                count,
                terminal,
            } => {
                let name = tag.to_string();
                let whole = family.stream(&name, count);
                let text = if terminal {
                    &whole[..]
                } else {
                    whole
                        .strip_suffix(&family.terminal(&name))
                        .unwrap_or(&whole)
                };
                text.as_bytes().to_vec()
            }
            Answer::Whole { length, .. } => whole_answer(tag, length),
        }
    }

    pub fn status(&self) -> u16 {
        match self.answer {
            _ if self.switches => 101,
            Answer::Events { .. } => 200,
            Answer::Whole { status, .. } => status,
        }
    }
}

fn answer(draw: &mut Draw, planned: &ClientRequest, calm: bool) -> Answer {
    let whole = |draw: &mut Draw, status| Answer::Whole {
        status,
        length: match draw.within(0..=9) {
            0 => 0,
            1..=7 => draw.within(1..=3_000),
            _ => draw.within(10_000..=150_000),
        },
        framing: draw.pick(&[
            AnswerFraming::Length,
            AnswerFraming::Length,
            AnswerFraming::Chunked,
            AnswerFraming::UntilClose,
        ]),
    };
    if !calm && draw.percent(12) {
        let status = draw.pick(&[400, 401, 404, 413, 429, 500, 502, 503, 504, 529]);
        return whole(draw, status);
    }
    match planned.kind {
        Kind::Stream(family) => Answer::Events {
            family,
            count: match draw.within(0..=9) {
                0 => draw.within(200..=500),
                _ => draw.within(1..=20),
            },
            terminal: calm || draw.percent(95),
        },
        Kind::Head => Answer::Whole {
            status: 200,
            length: draw.within(0..=500),
            framing: AnswerFraming::Length,
        },
        Kind::Unary(_) | Kind::Get | Kind::Upgrade => whole(draw, 200),
    }
}

fn fault(draw: &mut Draw) -> Fault {
    let how = match draw.within(0..=3) {
        0 => Break::Silence(draw.millis(100..=700)),
        1 => Break::Reset,
        _ => Break::Fin,
    };
    match draw.within(0..=9) {
        0..=2 => Fault::NoAnswer(how),
        3 => Fault::HalfHead(how),
        4..=8 => Fault::Half(draw.within(0..=100), how),
        _ => Fault::Twice,
    }
}
