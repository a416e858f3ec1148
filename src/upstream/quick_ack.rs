//! Controls when the kernel acknowledges the slices of an event stream.
//!
//! Linux acknowledges a small segment as soon as it is read: one packet per event, paid for by the reader. With `TCP_QUICKACK`
//! off (tcp(7)) it waits for the next segment, usually for at most 40 ms, and acknowledges both together. But a server that uses
//! Nagle's algorithm (RFC 9293 §3.7.4) would hold back the next event until then, and such servers are common: Dynamo's frontend
//! is one.
//!
//! So each stream first tests that its server does not wait: an event that arrives while the acknowledgement of the previous one
//! is pending was not held back for it. A failed test delays an event by some milliseconds. The stream then does not try again,
//! and after a few failures without a success no other stream of the endpoint does.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::transport::tcp;

/// Longer gaps may exceed the kernel's delay (40 ms, less a tick of its clock).
const SHORT: Duration = Duration::from_millis(30);
/// Shorter gaps gain nothing: several segments are read together.
const CROWDED: Duration = Duration::from_millis(1);
/// Slices with suitable gaps before a stream tries. A test costs six system calls and an immediate acknowledgement, which is not
/// worthwhile for a stream that ends soon.
const SETTLED: u8 = 8;
/// How many streams of an endpoint may try without a success. Abandoned tests count.
const MAX_DELAY_TESTS: u8 = 3;

/// The results of an endpoint's tests. Shared by all threads.
#[derive(Debug, Default)]
pub struct DelayTests {
    started: AtomicU8,
    /// A test showed that the server does not wait. In that case, every stream may try: a few coincidental failures must not
    /// disable it for all.
    succeeded: AtomicBool,
}

impl DelayTests {
    fn admits(&self) -> bool {
        self.succeeded.load(Ordering::Relaxed)
            // Load first, so that the counter cannot overflow.
            || self.started.load(Ordering::Relaxed) < MAX_DELAY_TESTS
                && self.started.fetch_add(1, Ordering::Relaxed) < MAX_DELAY_TESTS
    }

    /// Returns a test: the stream tried, but ended before the server could have delayed it.
    fn give_back(&self) {
        // Drops below zero only after a success, when the counter no longer matters.
        self.started.fetch_sub(1, Ordering::Relaxed);
    }

    fn succeeded(&self) {
        // Load first: a store by every stream would bounce the cache line between cores.
        if !self.succeeded.load(Ordering::Relaxed) {
            self.succeeded.store(true, Ordering::Relaxed);
        }
    }
}

/// How the slices of one stream are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuickAck {
    /// The kernel's default. This many of `SETTLED` slices have arrived with gaps for which a test is worthwhile.
    Prompt(u8),
    /// Delayed acknowledgement was requested. Counts from here on.
    Asked(Counts),
    /// The acknowledgement of a slice is owed. If the next slice arrives before it is sent, the server does not wait.
    Owed(Counts),
    /// The test succeeded: two slices share one acknowledgement.
    Delayed,
    /// As `Delayed`, until a slice had to be acknowledged alone, which makes the kernel acknowledge immediately again.
    Lapsed,
    /// The server may have waited, or that is unknown.
    Never,
}

impl Default for QuickAck {
    fn default() -> Self {
        Self::Prompt(0)
    }
}

impl QuickAck {
    /// Call this for each slice read from `socket`, `gap` after the previous one.
    pub fn read(&mut self, gap: Duration, socket: &impl Socket, delay_tests: &DelayTests) {
        let is_worth_a_test = (CROWDED..SHORT).contains(&gap);
        *self = match *self {
            Self::Prompt(before) if is_worth_a_test && before < SETTLED => Self::Prompt(before + 1),
            Self::Prompt(_) | Self::Lapsed if is_worth_a_test && delay_tests.admits() => socket
                .delay()
                .and_then(|()| socket.counts())
                .map_or(Self::Never, Self::Asked),
            Self::Asked(before) => match socket.counts() {
                // The slice arrived before delaying was requested.
                Ok(now) if now.received == before.received => return,
                Ok(now) if now.sent == before.sent && now.is_part_since(before) => Self::Owed(now),
                _ => Self::Never,
            },
            Self::Owed(before) => match (socket.counts(), socket.delays()) {
                (Ok(now), _) if now.received == before.received => return,
                // The acknowledgement is still owed, or was sent when this slice was read. It was not sent with data of ours,
                // nor because the kernel's delay ran out.
                (Ok(now), Ok(true))
                    if now.data_sent == before.data_sent && now.is_part_since(before) =>
                {
                    delay_tests.succeeded();
                    Self::Delayed
                }
                _ => Self::Never,
            },
            Self::Delayed if gap >= SHORT && !socket.delays().unwrap_or(false) => Self::Lapsed,
            _ => return,
        }
    }

    /// The stream ended by itself. If it ended too early for a result, and nothing has been acknowledged since (so the server
    /// cannot have waited for it), its test does not count.
    pub fn ended(&mut self, socket: &impl Socket, delay_tests: &DelayTests) {
        let (Self::Asked(before) | Self::Owed(before)) = *self else {
            return;
        };
        if socket.counts().is_ok_and(|now| now.sent == before.sent) {
            delay_tests.give_back();
        }
        *self = Self::Never;
    }
}

/// TCP's counters of a connection (`tcp_info` in linux/tcp.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Segments, including acknowledgements.
    sent: u32,
    /// Segments with data.
    data_sent: u32,
    /// Bytes.
    received: u64,
    /// The largest segment received so far, or an estimate below the usual size, in bytes.
    largest: u32,
}

impl Counts {
    /// Whether the data received since `before` is less than a full segment. Nagle's algorithm never holds back full segments,
    /// so they prove nothing.
    const fn is_part_since(&self, before: Self) -> bool {
        self.received - before.received < self.largest as u64
    }
}

/// The socket operations that this module needs.
pub trait Socket {
    /// Sends the owed acknowledgement, if nothing more has arrived, and makes the kernel delay acknowledgements until one has
    /// to be sent alone.
    fn delay(&self) -> io::Result<()>;
    /// Whether the kernel still delays them.
    fn delays(&self) -> io::Result<bool>;
    fn counts(&self) -> io::Result<Counts>;
}

impl Socket for TcpStream {
    fn delay(&self) -> io::Result<()> {
        tcp::delay_acknowledgements(self)
    }

    fn delays(&self) -> io::Result<bool> {
        tcp::delays_acknowledgements(self)
    }

    fn counts(&self) -> io::Result<Counts> {
        let info = tcp::info(self)?;
        // A server that closes sends what Nagle's algorithm held back together with its FIN, acknowledged or not, so it proves
        // nothing. If data segments are not counted, nothing is known: at least the request was sent.
        if !info.is_established || info.data_segments_sent == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Counts {
            sent: info.segments_sent,
            data_sent: info.data_segments_sent,
            received: info.bytes_received,
            largest: info.largest_received,
        })
    }
}

#[cfg(test)]
mod tests;
