//! When the kernel acknowledges the slices of an event stream.
//!
//! Linux acknowledges a small segment as soon as it is read: a packet for each event, and the reader pays for it. With
//! `TCP_QUICKACK` off (tcp(7)) it waits for the next segment, mostly at most 40 ms, and acknowledges both. But a server that
//! keeps Nagle's algorithm on (RFC 9293 §3.7.4) would hold the next event back until then, and such servers are common:
//! Dynamo's frontend is one. So a stream has to show first that its server does not wait: an event that comes while the
//! acknowledgement of the one before is owed was not held back for it. Where one fails at that, an event was some
//! milliseconds late: it does not ask again, and where a few have failed and none has succeeded, nor do others of its
//! endpoint.
//!
//! Must not know: what an event is.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;

/// A longer gap may be longer than the kernel waits (40 ms, less a tick of its clock).
const SHORT: Duration = Duration::from_millis(30);
/// With still shorter gaps nothing is gained: several segments are read at once.
const CROWDED: Duration = Duration::from_millis(1);
/// Slices that come in such gaps before a stream asks. Asking is six calls and an acknowledgement at once, so a stream that
/// ends soon had better not.
const SETTLED: u8 = 8;
/// How many streams of an endpoint may ask in vain before one has succeeded. One that is given up counts.
const TRIALS: u8 = 3;

/// `TCP_ESTABLISHED` of net/tcp_states.h.
const ESTABLISHED: u8 = 1;

/// What is known of an endpoint's servers. Shared by all threads.
#[derive(Debug, Default)]
pub struct Trials {
    asked: AtomicU8,
    /// One has shown that it does not wait. Then each stream may ask: a few that fail by chance must not end it for all.
    succeeded: AtomicBool,
}

impl Trials {
    fn admits(&self) -> bool {
        self.succeeded.load(Ordering::Relaxed)
            // Looks first, lest it run over.
            || self.asked.load(Ordering::Relaxed) < TRIALS
                && self.asked.fetch_add(1, Ordering::Relaxed) < TRIALS
    }

    /// A stream that asked could not have been delayed.
    fn give_back(&self) {
        // Below nothing only where success lets each stream ask, and nobody counts any more.
        self.asked.fetch_sub(1, Ordering::Relaxed);
    }

    fn succeeded(&self) {
        // Looks first: a store by every stream would bounce the line between cores.
        if !self.succeeded.load(Ordering::Relaxed) {
            self.succeeded.store(true, Ordering::Relaxed);
        }
    }
}

/// How the slices of one stream are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuickAck {
    /// As the kernel does when nobody asks. So many slices, of `SETTLED`, have come in gaps for which it is worth asking.
    Prompt(u8),
    /// What comes from now on is to be acknowledged with what follows it.
    Asked(Counts),
    /// The acknowledgement of a slice is owed. If the next one comes before it is paid, the server does not wait.
    Owed(Counts),
    /// Two slices are acknowledged at once.
    Delayed,
    /// They were, until one had to be acknowledged alone: then the kernel is prompt again by itself.
    Lapsed,
    /// The server may have waited, or it cannot be told.
    Never,
}

impl Default for QuickAck {
    fn default() -> Self {
        Self::Prompt(0)
    }
}

impl QuickAck {
    /// A slice was read from `socket`, `gap` after the one before.
    pub fn read(&mut self, gap: Duration, socket: &impl Socket, trials: &Trials) {
        let is_worth_asking = (CROWDED..SHORT).contains(&gap);
        *self = match *self {
            Self::Prompt(before) if is_worth_asking && before < SETTLED => Self::Prompt(before + 1),
            Self::Prompt(_) | Self::Lapsed if is_worth_asking && trials.admits() => socket
                .delay()
                .and_then(|()| socket.counts())
                .map_or(Self::Never, Self::Asked),
            Self::Asked(before) => match socket.counts() {
                // It had come before that was asked for.
                Ok(now) if now.received == before.received => return,
                Ok(now) if now.sent == before.sent && now.is_part_since(before) => Self::Owed(now),
                _ => Self::Never,
            },
            Self::Owed(before) => match (socket.counts(), socket.delays()) {
                (Ok(now), _) if now.received == before.received => return,
                // What was owed is still owed, or was paid when this slice was read; not with data of ours, and not because
                // the kernel was tired of waiting.
                (Ok(now), Ok(true))
                    if now.data_sent == before.data_sent && now.is_part_since(before) =>
                {
                    trials.succeeded();
                    Self::Delayed
                }
                _ => Self::Never,
            },
            Self::Delayed if gap >= SHORT && !socket.delays().unwrap_or(false) => Self::Lapsed,
            _ => return,
        }
    }

    /// The stream has ended by itself. Where that was too early to tell, and nothing has been acknowledged since (so that the
    /// server cannot have waited for it), its trial was none.
    pub fn ended(&mut self, socket: &impl Socket, trials: &Trials) {
        let (Self::Asked(before) | Self::Owed(before)) = *self else {
            return;
        };
        if socket.counts().is_ok_and(|now| now.sent == before.sent) {
            trials.give_back();
        }
        *self = Self::Never;
    }
}

/// What TCP has counted of a connection (`tcp_info` of linux/tcp.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Segments, acknowledgements among them.
    sent: u32,
    /// Segments with data.
    data_sent: u32,
    /// Bytes.
    received: u64,
    /// The largest segment that came, or a guess that is lower than what is usual, in bytes.
    largest: u32,
}

impl Counts {
    /// Was what came since `before` less than a full segment? Full ones are never held back, so they show nothing.
    const fn is_part_since(&self, before: Self) -> bool {
        self.received - before.received < self.largest as u64
    }
}

/// What of a socket this needs.
pub trait Socket {
    /// Pays what is owed, if nothing more has come, and has the kernel delay acknowledgements until one of them has to be paid
    /// alone.
    fn delay(&self) -> io::Result<()>;
    /// Does the kernel delay them still?
    fn delays(&self) -> io::Result<bool>;
    fn counts(&self) -> io::Result<Counts>;
}

impl Socket for TcpStream {
    fn delay(&self) -> io::Result<()> {
        self.set_quickack(true)?;
        self.set_quickack(false)
    }

    fn delays(&self) -> io::Result<bool> {
        self.quickack().map(|quick| !quick)
    }

    fn counts(&self) -> io::Result<Counts> {
        let info = crate::transport::tcp::info(self)?;
        // A server that closes sends what Nagle held back together with the end, acknowledged or not: it shows nothing.
        let ends = info.tcpi_state != ESTABLISHED;
        // A kernel that does not count has sent none, not even the request.
        if ends || info.tcpi_data_segs_out == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Counts {
            sent: info.tcpi_segs_out,
            data_sent: info.tcpi_data_segs_out,
            received: info.tcpi_bytes_received,
            largest: info.tcpi_rcv_mss,
        })
    }
}

#[cfg(test)]
mod tests;
