//! When the kernel acknowledges the slices of an event stream.
//!
//! Linux acknowledges a small segment as soon as it is read: a packet for each event, and the reader pays for it. With
//! `TCP_QUICKACK` off (tcp(7)) it waits for the next segment, at most some 40 ms, and acknowledges both. But a server that
//! keeps Nagle's algorithm on (RFC 9293 §3.7.4) would hold the next event back until then, and such servers are common:
//! Dynamo's frontend is one. So a stream has to show first that its server does not wait: an event that comes while the
//! acknowledgement of the one before is still owed was not held back for it. Only a few streams of an endpoint may fail at
//! that, each at the price of one event that is some milliseconds late; then the endpoint is not asked again.
//!
//! Must not know: what an event is.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;

/// A shorter gap ends before the kernel's timer (40 ms, less a tick of its clock).
const SHORT: Duration = Duration::from_millis(30);
/// After a still shorter one there is more than one segment to a read, and every second is acknowledged in any case.
const CROWDED: Duration = Duration::from_millis(1);
/// Streams of an endpoint that may try it before one of them has succeeded.
const TRIES: u8 = 2;

/// What is known of the servers behind an endpoint. Shared by all threads.
#[derive(Debug, Default)]
pub struct Patience {
    tries: AtomicU8,
    /// A server has shown that it does not wait.
    unneeded: AtomicBool,
}

impl Patience {
    /// May another stream try it?
    fn admits(&self) -> bool {
        self.unneeded.load(Ordering::Relaxed)
            || self.tries.load(Ordering::Relaxed) < TRIES
                && self.tries.fetch_add(1, Ordering::Relaxed) < TRIES
    }

    fn found_unneeded(&self) {
        // Reads first: a store by every stream would bounce the line between cores.
        if !self.unneeded.load(Ordering::Relaxed) {
            self.unneeded.store(true, Ordering::Relaxed);
        }
    }
}

/// How the slices of one stream are acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acks {
    /// As the kernel does when nobody asks.
    #[default]
    Prompt,
    /// The next slice's is to be delayed. So many segments had been sent when that was asked for.
    Asked { sent: u32 },
    /// That of the last slice is owed. If the next comes before it is paid, the server does not wait.
    Owed,
    /// All are delayed.
    Delayed,
    /// They were, until a gap was longer than the kernel waits: it then falls back by itself.
    Lapsed,
    /// The server may have waited, or the socket cannot do it.
    Never,
}

impl Acks {
    /// A slice was read from `socket`, `gap` after the one before.
    pub fn read(&mut self, gap: Duration, socket: &impl Socket, patience: &Patience) {
        let short = (CROWDED..SHORT).contains(&gap);
        *self = match *self {
            Self::Prompt if short && patience.admits() => Self::ask(socket),
            Self::Asked { .. } if !short => Self::Prompt,
            Self::Asked { sent } => match socket.segments_sent() {
                Ok(now) if now == sent => Self::Owed,
                _ => Self::Never,
            },
            Self::Owed => match socket.delays() {
                // What was owed is still owed, or was paid by reading this slice.
                Ok(true) if short => {
                    patience.found_unneeded();
                    Self::Delayed
                }
                _ => Self::Never,
            },
            Self::Delayed if gap >= SHORT => Self::Lapsed,
            Self::Lapsed if short => match socket.delay() {
                Ok(()) => Self::Delayed,
                Err(_) => Self::Never,
            },
            other => other,
        }
    }

    fn ask(socket: &impl Socket) -> Self {
        match socket.delay().and_then(|()| socket.segments_sent()) {
            Ok(sent) => Self::Asked { sent },
            Err(_) => Self::Never,
        }
    }
}

/// What of a socket this needs.
pub trait Socket {
    /// Has the kernel delay acknowledgements until one of them was late.
    fn delay(&self) -> io::Result<()>;
    /// Does the kernel delay them, and was none late?
    fn delays(&self) -> io::Result<bool>;
    /// Segments sent so far, acknowledgements among them.
    fn segments_sent(&self) -> io::Result<u32>;
}

impl Socket for TcpStream {
    fn delay(&self) -> io::Result<()> {
        self.set_quickack(false)
    }

    fn delays(&self) -> io::Result<bool> {
        self.quickack().map(|quick| !quick)
    }

    fn segments_sent(&self) -> io::Result<u32> {
        // SAFETY: a struct of numbers, of which zeros are values.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = libc::socklen_t::try_from(size_of_val(&info)).expect("a few hundred");
        // SAFETY: the kernel writes at most `length` bytes to `info`, both of which outlive the call.
        let failed = unsafe {
            libc::getsockopt(
                self.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(info.tcpi_segs_out)
    }
}

#[cfg(test)]
mod tests;
