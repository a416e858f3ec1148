//! The transport below an HTTP/2 connection: counts its traffic, and the unfinished frames and header blocks that it holds.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::memory::{Budget, Charge, FREE, Purpose, cost};

/// The bytes that have passed over a connection.
#[derive(Debug, Default)]
pub struct Traffic {
    received: AtomicU64,
    sent: AtomicU64,
}

impl Traffic {
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// How much is read before the readers of streams get their turn, in bytes. Data that they have not taken yet waits in frames.
const AT_ONCE: usize = 64 * 1024;
/// The unread DATA frames of a connection may be this many bytes short of 256 each, in total, before the connection is
/// closed. One turn of single-byte frames is a fifth of it.
pub const SMALL_FRAMES: usize = 8 * 1024 * 1024;

/// A transport whose traffic is counted.
pub struct Counted<T> {
    transport: T,
    traffic: Arc<Traffic>,
    frames: Unfinished,
    /// Read in this turn, in bytes.
    read: usize,
    /// For unfinished frames and header blocks.
    charge: Charge,
    memory: Arc<Budget>,
}

impl<T> Counted<T> {
    /// Unfinished frames are charged to `memory`.
    pub fn new(transport: T, memory: &Arc<Budget>) -> (Self, Arc<Traffic>) {
        let traffic = Arc::<Traffic>::default();
        let counted = Self {
            transport,
            traffic: Arc::clone(&traffic),
            frames: Unfinished::default(),
            read: 0,
            charge: Charge::default(),
            memory: Arc::clone(memory),
        };
        (counted, traffic)
    }

    /// Charges what is unfinished. A frame cannot be stopped; a header block without room closes the connection.
    fn rest(&mut self) -> io::Result<()> {
        let (frame, block) = (self.frames.of_frame(), self.frames.block);
        let held = frame + block;
        let wanted = if held > FREE { cost(held) } else { 0 };
        if wanted == self.charge.bytes() {
            return Ok(());
        }
        if block == 0 {
            self.charge.force(&self.memory, wanted);
        } else if !self.charge.resize(&self.memory, wanted, Purpose::Head) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(())
    }

    fn sent(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = written {
            self.traffic
                .sent
                .fetch_add(*bytes as u64, Ordering::Relaxed);
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.read >= AT_ONCE {
            this.read = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let Poll::Ready(read) = Pin::new(&mut this.transport).poll_read(cx, buffer) else {
            this.read = 0;
            // An error ends the connection.
            return match this.rest() {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            };
        };
        let bytes = &buffer.filled()[before..];
        this.read += bytes.len();
        this.frames.pass(bytes);
        this.traffic
            .received
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Poll::Ready(read)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write(cx, bytes);
        self.sent(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write_vectored(cx, slices);
        self.sent(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }
}

/// Length of a frame's head, in bytes (RFC 9113 §4.1), and the preface of a client (§3.4).
const HEAD: usize = 9;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Types of frames that carry a header block, and the flag that ends it (RFC 9113 §6.2, §6.6, §6.10).
const OF_BLOCK: [u8; 3] = [1, 5, 9];
const END_HEADERS: u8 = 4;

/// Follows the frames received, to know how much the connection holds that cannot be used before more arrives.
#[derive(Debug, Default)]
struct Unfinished {
    head: [u8; HEAD],
    /// The received parts of the current frame's head and of its payload, in bytes.
    of_head: usize,
    of_payload: usize,
    /// Bytes of the complete frames of an unfinished header block.
    block: usize,
    /// The preface has been checked for.
    begun: bool,
}

impl Unfinished {
    /// The received part of the current frame, in bytes.
    const fn of_frame(&self) -> usize {
        self.of_head + self.of_payload
    }

    /// Length of the current frame's payload, in bytes.
    fn length(&self) -> usize {
        if !self.begun && self.head == PREFACE[..HEAD] {
            return PREFACE.len() - HEAD;
        }
        u32::from_be_bytes([0, self.head[0], self.head[1], self.head[2]]) as usize
    }

    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let here = bytes.len().min(HEAD - self.of_head);
            let (of_head, rest) = bytes.split_at(here);
            self.head[self.of_head..self.of_head + here].copy_from_slice(of_head);
            self.of_head += here;
            if self.of_head < HEAD {
                return;
            }
            let left = self.length() - self.of_payload;
            let here = rest.len().min(left);
            self.of_payload += here;
            bytes = &rest[here..];
            if here == left {
                self.end_of_frame();
            }
        }
    }

    fn end_of_frame(&mut self) {
        let (kind, flags) = (self.head[3], self.head[4]);
        self.block = match self.begun && OF_BLOCK.contains(&kind) && flags & END_HEADERS == 0 {
            true => self.block + self.of_frame(),
            false => 0,
        };
        self.begun = true;
        self.of_head = 0;
        self.of_payload = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.resize(HEAD + usize::from(length), 0);
        frame
    }

    /// The unfinished bytes after these: of a frame, and of a header block.
    fn after(pieces: &[&[u8]]) -> (usize, usize) {
        let whole = pieces.concat();
        let mut at_once = Unfinished::default();
        at_once.pass(&whole);
        let mut one_by_one = Unfinished::default();
        for byte in &whole {
            one_by_one.pass(std::slice::from_ref(byte));
        }
        let [a, b] = [at_once, one_by_one].map(|one| (one.of_frame(), one.block));
        assert_eq!(a, b);
        a
    }

    #[test]
    fn what_is_unfinished_is_known_however_it_comes() {
        let settings = frame(4, 0, 0);
        assert_eq!(after(&[PREFACE]), (0, 0));
        assert_eq!(after(&[PREFACE, &settings]), (0, 0));
        assert_eq!(after(&[&settings, &frame(0, 0, 100)]), (0, 0));
        assert_eq!(after(&[&settings, &frame(0, 0, 100)[..60]]), (60, 0));
        assert_eq!(after(&[&settings, &frame(1, 0, 50)]), (0, 59));
        let more = frame(9, 0, 50);
        let part = &more[..20];
        assert_eq!(after(&[&settings, &frame(1, 0, 50), part]), (20, 59));
        assert_eq!(after(&[&settings, &frame(1, 0, 50), &more]), (0, 118));
        let last = frame(9, END_HEADERS, 50);
        assert_eq!(after(&[&settings, &frame(1, 0, 50), &last]), (0, 0));
    }
}
