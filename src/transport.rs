//! A connection, plain or TLS, and the read buffer that all connections of a thread share.
//!
//! A waiting stream owns no read buffer: bytes are read into the thread's buffer when the socket has some, and the filled
//! slice is passed on without a copy.

pub mod accept;
pub mod allowance;
pub mod batching;
pub mod deadline;
pub mod descriptors;
pub mod h2;
pub mod log_throttle;
pub mod reclaimable;
mod resolve;
pub mod tcp;
pub mod write_timeout;
mod yielding;

pub use self::resolve::resolve;
pub use self::yielding::Yielding;

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;
use tokio_util::io::poll_read_buf;

use crate::memory::{Budget, Charge, FREE, Purpose, cost};

/// Size of the shared read buffer, in bytes. It is replaced while a reader still holds the last one.
pub const READ_BUFFER: usize = 64 * 1024;
/// The buffer is replaced once less than this is left, so that reads are never smaller, in bytes.
pub const MIN_READ: usize = 16 * 1024;
/// Capacity that the thread's write buffer keeps, in bytes.
const WRITE_BUFFER: usize = 64 * 1024;

/// What poll(2) reports when the peer has closed its side.
#[cfg(target_os = "linux")]
const PEER_CLOSED: PollFlags = PollFlags::RDHUP;
#[cfg(not(target_os = "linux"))]
const PEER_CLOSED: PollFlags = PollFlags::HUP;

thread_local! {
    static READ: RefCell<BytesMut> = RefCell::new(BytesMut::new());
    static WRITE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A byte stream to a client or to a model server.
pub enum Transport {
    Tcp(TcpStream),
    // Boxed: a TLS session is some KiB, and most streams are plain.
    Tls(Box<TlsStream<Yielding<TcpStream>>>),
}

impl Transport {
    /// Reads what has arrived into the thread's shared buffer. An empty result is the end of the stream.
    ///
    /// Even a short slice keeps its whole buffer alive: see [`Transport::poll_read_apart`].
    pub fn poll_read_shared(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<BytesMut>> {
        self.poll_read_most(cx, READ_BUFFER)
    }

    /// Reads what has arrived; only a little, and into its own buffer, while `memory` is tight.
    pub fn poll_read_within(
        &mut self,
        cx: &mut Context<'_>,
        memory: &Budget,
    ) -> Poll<io::Result<BytesMut>> {
        if memory.is_tight() {
            self.poll_read_apart(cx, FREE)
        } else {
            self.poll_read_shared(cx)
        }
    }

    /// Reads at most `most` bytes into a separate buffer, for data that may be kept for a while.
    pub fn poll_read_apart(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
    ) -> Poll<io::Result<BytesMut>> {
        let read = std::task::ready!(self.poll_read_most(cx, most))?;
        Poll::Ready(Ok(BytesMut::from(&read[..])))
    }

    fn poll_read_most(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<BytesMut>> {
        READ.with_borrow_mut(|shared| {
            if shared.capacity() < MIN_READ {
                shared.reserve(READ_BUFFER);
            }
            let mut room = (&mut *shared).limit(most);
            let filled = std::task::ready!(poll_read_buf(Pin::new(self), cx, &mut room))?;
            Poll::Ready(Ok(shared.split_to(filled)))
        })
    }

    /// Writes what the socket accepts without waiting. TLS accepts nothing here.
    ///
    /// # Errors
    /// When writing fails, including `WouldBlock`.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Tls(_) => Ok(0),
        }
    }

    #[must_use]
    pub const fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// The underlying TCP stream.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0.get_ref(),
        }
    }

    /// Whether the peer has closed the connection, even if there is unread data.
    #[must_use]
    pub fn is_peer_closed(&self) -> bool {
        let closed = PEER_CLOSED | PollFlags::HUP | PollFlags::ERR;
        let mut polled = [PollFd::new(self.socket(), PEER_CLOSED)];
        let answered = poll(&mut polled, Some(&Timespec::default()));
        answered.is_ok() && polled[0].revents().intersects(closed)
    }

    /// Whether an idle connection can be reused. Not if it has anything to read, whether an end or unsolicited bytes.
    pub fn is_quiet(&mut self) -> bool {
        if let Self::Tls(stream) = self {
            // The kernel does not know about data that has already been decrypted.
            let mut byte = [0u8; 1];
            let mut cx = Context::from_waker(std::task::Waker::noop());
            let mut buffer = ReadBuf::new(&mut byte);
            if Pin::new(stream).poll_read(&mut cx, &mut buffer).is_ready() {
                return false;
            }
        }
        tcp::is_quiet(self.socket())
    }
}

/// Makes the kernel probe a silent peer: otherwise, the proxy would wait forever for a peer whose machine is gone.
///
/// # Errors
/// When socket options cannot be set.
pub fn keep_alive(socket: &socket2::SockRef<'_>) -> io::Result<()> {
    let probes = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    socket.set_tcp_keepalive(&probes)
}

/// A slice of a read buffer for a holder that may keep it for long. It keeps its whole buffer alive, so the buffer is charged to
/// `memory` while any handle of it lives. A slice that is small compared with its buffer is copied instead.
#[must_use]
pub fn lend(data: Bytes, memory: &Arc<Budget>) -> Bytes {
    let mut charge = Charge::default();
    charge.force(memory, lending_cost(data.len()));
    lend_charged(data, charge)
}

/// Like [`lend`]. `None` if `memory` has no room for the buffer, not even with its reserve.
#[must_use]
pub fn try_lend(data: Bytes, memory: &Arc<Budget>, purpose: Purpose) -> Option<Bytes> {
    let mut charge = Charge::default();
    let cost = lending_cost(data.len());
    let has_room = charge.overdraw(memory, cost, purpose);
    has_room.then(|| lend_charged(data, charge))
}

/// The longest slice that is copied, in bytes: the payload of the usual HTTP/2 frame.
const MAX_COPY: usize = READ_BUFFER / 4;

const fn lending_cost(length: usize) -> usize {
    if length <= FREE {
        0
    } else if length <= MAX_COPY || length > READ_BUFFER {
        cost(length)
    } else {
        cost(READ_BUFFER)
    }
}

fn lend_charged(data: Bytes, charge: Charge) -> Bytes {
    match data.len() {
        ..=MAX_COPY => charge.tie(Bytes::copy_from_slice(&data)),
        _ => charge.tie(data),
    }
}

/// Lends the thread's empty write buffer to compose one write. A nested borrower gets a separate buffer.
pub fn with_write_buffer<T>(compose: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let mut buffer = WRITE.take();
    buffer.clear();
    let result = compose(&mut buffer);
    if buffer.capacity() <= WRITE_BUFFER {
        WRITE.set(buffer);
    }
    result
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// A transport of which some bytes have already been read: they are returned first.
pub struct Prefixed<T = Transport> {
    first: Bytes,
    transport: T,
}

impl<T> Prefixed<T> {
    #[must_use]
    pub fn new(mut first: Bytes, transport: T) -> Self {
        if first.is_empty() {
            // Even an empty slice keeps its buffer alive.
            first = Bytes::new();
        }
        Self { first, transport }
    }

    /// The transport itself.
    pub const fn get_ref(&self) -> &T {
        &self.transport
    }

    /// The transport without the bytes that were read before.
    pub fn into_inner(self) -> T {
        self.transport
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Prefixed<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.transport).poll_read(cx, buffer);
        }
        let length = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first[..length]);
        self.first.advance(length);
        if self.first.is_empty() {
            // Even an empty slice keeps its buffer alive.
            self.first = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Prefixed<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.transport).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }
}
