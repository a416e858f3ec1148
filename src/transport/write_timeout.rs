//! Ends a connection whose peer does not read. It costs nothing while writes succeed; only a write that has to wait starts a
//! timer, which is then kept.

use std::io;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use prometheus::IntCounter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::deadline::Deadline;
use super::{Transport, tcp};
use crate::memory::Budget;

/// How often a peer is checked within the limit. The kernel wakes a writer only once a third of the socket's buffer is free,
/// which can take a slow reader longer than the limit, so the amount left in the buffer is checked.
const CHECKS: u8 = 4;

/// The error message for such a peer.
pub const UNREAD: &str = "the client read nothing for too long, or cannot be reached";

/// How long a peer may read nothing, and the counter of those that exceeded it.
#[derive(Debug)]
pub struct WriteLimit {
    pub limit: Duration,
    pub passed: IntCounter,
}

/// A stream on top of a TCP socket.
pub trait OverTcp: AsyncRead + AsyncWrite + Unpin {
    fn socket(&self) -> &TcpStream;
}

impl OverTcp for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl OverTcp for Transport {
    fn socket(&self) -> &TcpStream {
        Transport::socket(self)
    }
}

/// A connection whose writes must make progress.
pub struct WriteTimeout<T = Transport> {
    inner: T,
    limit: Arc<WriteLimit>,
    /// Kept once a write had to wait.
    wait: Option<Box<PendingWrite>>,
    passed: bool,
}

/// A waiting write.
struct PendingWrite {
    timer: Pin<Box<Sleep>>,
    /// The next check; `None` while no write waits.
    next: Option<Deadline>,
    /// How many checks in a row found no progress.
    unchanged: u8,
    /// Unread bytes at the last check.
    left: Option<u64>,
}

impl<T: OverTcp> WriteTimeout<T> {
    pub const fn new(inner: T, limit: Arc<WriteLimit>) -> Self {
        Self {
            inner,
            limit,
            wait: None,
            passed: false,
        }
    }

    /// Whether the connection was ended because its peer did not read or is gone.
    #[must_use]
    pub const fn is_timed_out(&self) -> bool {
        self.passed
    }

    /// How long the peer may read nothing.
    #[must_use]
    pub const fn limit(&self) -> &Arc<WriteLimit> {
        &self.limit
    }

    /// The outcome of a write. One that waits for too long is an error.
    fn check<R>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        match polled {
            Poll::Ready(result) => {
                if let Some(wait) = &mut self.wait {
                    wait.next = None;
                }
                Poll::Ready(self.note(result))
            }
            Poll::Pending => {
                ready!(self.poll_wait(cx));
                // Data that the peer has not read is discarded.
                tcp::reset_on_close(self.inner.socket(), true);
                Poll::Ready(self.note(Err(io::ErrorKind::TimedOut.into())))
            }
        }
    }

    /// The kernel also ends the connection of a dead peer (keep-alive, `TCP_USER_TIMEOUT`).
    fn note<R>(&mut self, result: io::Result<R>) -> io::Result<R> {
        if let Err(error) = &result
            && error.kind() == io::ErrorKind::TimedOut
            && !self.passed
        {
            self.passed = true;
            self.limit.passed.inc();
        }
        result
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let every = self.limit.limit / u32::from(CHECKS);
        let wait = self.wait.get_or_insert_with(|| {
            Box::new(PendingWrite {
                timer: Box::pin(tokio::time::sleep(every)),
                next: None,
                unchanged: 0,
                left: None,
            })
        });
        let mut next = match wait.next {
            Some(next) => next,
            None => {
                wait.unchanged = 0;
                wait.left = None;
                wait.schedule_check(Instant::now() + every)
            }
        };
        loop {
            ready!(wait.timer.as_mut().poll(cx));
            let now = Instant::now();
            if next.extend(now) {
                // Time in which this process stood still does not count against the peer.
                wait.timer.as_mut().reset(next.until().into());
                wait.next = Some(next);
                continue;
            }
            let left = tcp::unacknowledged(self.inner.socket()).ok();
            if left != wait.left {
                wait.left = left;
                wait.unchanged = 0;
            }
            wait.unchanged += 1;
            if wait.unchanged > CHECKS {
                return Poll::Ready(());
            }
            next = wait.schedule_check(now + every);
        }
    }
}

impl PendingWrite {
    fn schedule_check(&mut self, at: Instant) -> Deadline {
        let next = Deadline::new(at);
        self.timer.as_mut().reset(at.into());
        self.next = Some(next);
        next
    }
}

impl WriteTimeout<Transport> {
    /// Like [`Transport::poll_read_within`].
    pub fn poll_read_within(
        &mut self,
        cx: &mut Context<'_>,
        memory: &Budget,
    ) -> Poll<io::Result<BytesMut>> {
        let read = ready!(self.inner.poll_read_within(cx, memory));
        Poll::Ready(self.note(read))
    }

    /// Like [`Transport::poll_read_apart`].
    pub fn poll_read_apart(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
    ) -> Poll<io::Result<BytesMut>> {
        let read = ready!(self.inner.poll_read_apart(cx, most));
        Poll::Ready(self.note(read))
    }

    /// Like [`Transport::poll_read_shared`].
    pub fn poll_read_shared(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<BytesMut>> {
        let read = ready!(self.inner.poll_read_shared(cx));
        Poll::Ready(self.note(read))
    }
}

impl<T> Deref for WriteTimeout<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for WriteTimeout<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: OverTcp> AsyncRead for WriteTimeout<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = ready!(Pin::new(&mut this.inner).poll_read(cx, buffer));
        Poll::Ready(this.note(read))
    }
}

impl<T: OverTcp> AsyncWrite for WriteTimeout<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_write(cx, bytes);
        this.check(cx, polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_write_vectored(cx, slices);
        this.check(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_flush(cx);
        this.check(cx, polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_shutdown(cx);
        this.check(cx, polled)
    }
}

#[cfg(test)]
mod tests {
    use socket2::SockRef;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(400);

    /// A connection with small buffers, and the peer's end of it.
    async fn narrow() -> (WriteTimeout<TcpStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = tokio::net::TcpSocket::new_v4().unwrap();
        peer.set_recv_buffer_size(4096).unwrap();
        let peer = peer.connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        SockRef::from(&stream).set_send_buffer_size(8192).unwrap();
        let limit = WriteLimit {
            limit: LIMIT,
            passed: IntCounter::new("passed", "for a test").unwrap(),
        };
        (WriteTimeout::new(stream, Arc::new(limit)), peer)
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_reset_after_the_limit() {
        let (mut stream, mut peer) = narrow().await;
        let begun = Instant::now();
        let error = stream.write_all(&[0; 1 << 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= LIMIT, "{:?}", begun.elapsed());
        assert!(stream.is_timed_out());
        assert_eq!(stream.limit.passed.get(), 1);
        drop(stream);
        let reset = peer.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(reset.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn a_peer_that_takes_a_little_now_and_then_is_served_to_the_end() {
        let (mut stream, mut peer) = narrow().await;
        let begun = Instant::now();
        let reading = tokio::spawn(async move {
            let mut piece = vec![0; 8192];
            let mut read = 0;
            while read < 200_000 {
                tokio::time::sleep(LIMIT / 4).await;
                read += peer.read(&mut piece).await.unwrap();
            }
        });
        stream.write_all(&[0; 200_000]).await.unwrap();
        assert!(begun.elapsed() > LIMIT, "{:?}", begun.elapsed());
        assert!(!stream.is_timed_out());
        drop(stream);
        reading.await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_without_pending_writes_does_not_time_out() {
        let (mut stream, mut peer) = narrow().await;
        stream.write_all(b"hello").await.unwrap();
        let waits = tokio::time::timeout(2 * LIMIT, stream.read_u8()).await;
        assert!(waits.is_err(), "{waits:?}");
        peer.write_all(b"x").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'x');
    }
}
