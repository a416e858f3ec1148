//! The transport below an HTTP/2 connection: counts its traffic and the unfinished frames and header blocks that it holds, and
//! limits how much is received at once.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::followed::{ControlLimit, Followed};
use crate::memory::{Budget, Charge, Purpose, holding_cost};
use crate::transport::allowance::Allowance;

/// The bytes that have passed over a connection.
#[derive(Debug, Default)]
pub struct Traffic {
    received: AtomicU64,
    sent: AtomicU64,
    is_flood: AtomicBool,
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

    /// Did the peer send too many control frames? Then nothing more is received, and the connection is to be closed.
    #[must_use]
    pub fn is_flood(&self) -> bool {
        self.is_flood.load(Ordering::Relaxed)
    }
}

/// How much is read before the thread polls its sockets again and the readers of streams get their turn, in bytes. Data that they
/// have not taken yet waits in frames.
const AT_ONCE: usize = 64 * 1024;
/// Each frame counts as at least this many bytes.
const LEAST: usize = 256;
/// The unread DATA frames of a connection may be this many bytes short of 256 each, in total, before the connection is
/// closed. One turn of single-byte frames is a fifth of it.
pub const SMALL_FRAMES: usize = 8 * 1024 * 1024;

/// A transport whose traffic is counted.
pub struct Counted<T> {
    transport: T,
    traffic: Arc<Traffic>,
    frames: Followed,
    control: ControlLimit,
    allowance: Allowance,
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
            frames: Followed::default(),
            control: ControlLimit::since(Instant::now()),
            allowance: Allowance::default(),
            charge: Charge::default(),
            memory: Arc::clone(memory),
        };
        (counted, traffic)
    }

    /// Charges what is unfinished. A frame cannot be stopped; a header block without room closes the connection.
    fn rest(&mut self) -> io::Result<()> {
        let (frame, block) = (self.frames.of_frame(), self.frames.of_block());
        let wanted = holding_cost(frame + block);
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

    /// Follows what was received.
    fn received(&mut self, bytes: &[u8]) {
        let before = self.frames.frames();
        self.frames.pass(bytes);
        let frames = usize::try_from(self.frames.frames() - before).unwrap_or(usize::MAX);
        self.allowance.spend(bytes.len().max(frames * LEAST));
        let traffic = &self.traffic;
        traffic
            .received
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if self
            .control
            .is_exceeded(self.frames.control(), traffic.sent(), Instant::now)
        {
            traffic.is_flood.store(true, Ordering::Relaxed);
        }
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
        if this.traffic.is_flood() {
            return Poll::Pending;
        }
        ready!(this.allowance.poll(cx, AT_ONCE));
        let before = buffer.filled().len();
        let Poll::Ready(read) = Pin::new(&mut this.transport).poll_read(cx, buffer) else {
            this.allowance.renew();
            // An error ends the connection.
            return match this.rest() {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            };
        };
        this.received(&buffer.filled()[before..]);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::allowance::tests::polls_of_the_sockets;

    /// A peer that has always sent more of the same.
    struct Endless(Vec<u8>);

    impl AsyncRead for Endless {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let here = buffer.remaining() / self.0.len() * self.0.len();
            buffer.put_slice(&self.0.repeat(here / self.0.len()));
            Poll::Ready(Ok(()))
        }
    }

    /// How often the sockets are polled while this many bytes are received of a peer that sends `frame` without end. `None` if
    /// the connection receives nothing more.
    fn polls(frame: Vec<u8>, bytes: usize) -> Option<u32> {
        let budget = Budget::new(usize::MAX);
        let (mut counted, traffic) = Counted::new(Endless(frame), &budget);
        let mut received = 0;
        let flood = Arc::clone(&traffic);
        let polls = polls_of_the_sockets(move |cx| {
            while received < bytes {
                let mut buffer = [0; 8 * 1024];
                let mut buffer = ReadBuf::new(&mut buffer);
                if Pin::new(&mut counted)
                    .poll_read(cx, &mut buffer)
                    .is_pending()
                {
                    if traffic.is_flood() {
                        break;
                    }
                    return Poll::Pending;
                }
                received += buffer.filled().len();
            }
            Poll::Ready(())
        });
        (!flood.is_flood()).then_some(polls)
    }

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 1];
        frame.resize(9 + usize::from(length), 0);
        frame
    }

    #[test]
    fn a_peer_that_sends_without_pause_lets_the_thread_poll_its_sockets() {
        let large = polls(frame(0, 247), 4 << 20).expect("no flood");
        assert!((32..=64).contains(&large), "{large}");
        let small = polls(frame(0, 1), 1 << 20).expect("no flood");
        assert!((100..=130).contains(&small), "{small}");
    }

    #[test]
    fn of_a_peer_that_sends_only_control_frames_nothing_more_is_received() {
        assert_eq!(polls(frame(6, 8), 1 << 20), None);
    }
}
