//! A socket for libraries that read until there is no more data. A TLS session reads until it has data to return, which some
//! records never contain, and an HTTP/2 server reads control frames without end.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::allowance::Allowance;
use super::write_timeout::OverTcp;

/// How much is read before the thread polls its sockets again, in bytes.
const AT_ONCE: usize = 64 * 1024;

/// A socket whose reads yield to others.
#[derive(Debug)]
pub struct Yielding<T> {
    inner: T,
    allowance: Allowance,
}

impl<T> Yielding<T> {
    #[must_use]
    pub fn new(inner: T) -> Self {
        Self {
            inner,
            allowance: Allowance::default(),
        }
    }

    pub const fn get_ref(&self) -> &T {
        &self.inner
    }
}

impl OverTcp for Yielding<TcpStream> {
    fn socket(&self) -> &TcpStream {
        &self.inner
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Yielding<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.allowance.poll(cx, AT_ONCE));
        let before = buffer.filled().len();
        let Poll::Ready(read) = Pin::new(&mut this.inner).poll_read(cx, buffer) else {
            this.allowance.renew();
            return Poll::Pending;
        };
        this.allowance.spend(buffer.filled().len() - before);
        Poll::Ready(read)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Yielding<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::allowance::tests::polls_of_the_sockets;

    #[test]
    fn a_library_that_reads_without_pause_lets_the_thread_poll_its_sockets() {
        let mut socket = Yielding::new(tokio::io::repeat(0));
        let mut left = 1 << 20;
        let polls = polls_of_the_sockets(move |cx| {
            while left > 0 {
                let mut buffer = [0; 4096];
                let mut buffer = ReadBuf::new(&mut buffer);
                let _ = ready!(Pin::new(&mut socket).poll_read(cx, &mut buffer));
                left -= buffer.filled().len();
            }
            Poll::Ready(())
        });
        assert!((14..=16).contains(&polls), "{polls}");
    }
}
