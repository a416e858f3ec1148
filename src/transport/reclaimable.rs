//! A transport that outlives its owner: h2 does not return the transport of a connection, it only drops it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A transport that is put back when it is dropped.
pub struct Reclaimable<T> {
    /// Set until it is dropped.
    transport: Option<T>,
    slot: Slot<T>,
}

/// Where a dropped transport is put.
pub struct Slot<T>(Arc<Mutex<Option<T>>>);

impl<T> Slot<T> {
    /// The transport, if it has been dropped.
    #[must_use]
    pub fn take(&self) -> Option<T> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Reclaimable<T> {
    pub fn new(transport: T) -> (Self, Slot<T>) {
        let slot = Arc::new(Mutex::new(None));
        let reclaimable = Self {
            transport: Some(transport),
            slot: Slot(Arc::clone(&slot)),
        };
        (reclaimable, Slot(slot))
    }
}

impl<T: Unpin> Reclaimable<T> {
    fn poll<R>(
        &mut self,
        poll: impl FnOnce(Pin<&mut T>) -> Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        match &mut self.transport {
            Some(transport) => poll(Pin::new(transport)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl<T> Drop for Reclaimable<T> {
    fn drop(&mut self) {
        *self.slot.lock() = self.transport.take();
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Reclaimable<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll(|transport| transport.poll_read(cx, buffer))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Reclaimable<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(|transport| transport.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|transport| transport.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|transport| transport.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_dropped_transport_can_be_reused() {
        let (near, mut far) = tokio::io::duplex(64);
        let (mut reclaimable, slot) = Reclaimable::new(near);
        reclaimable.write_all(b"one").await.expect("written");
        assert!(slot.take().is_none());
        drop(reclaimable);
        let mut near = slot.take().expect("returned");
        near.write_all(b"two").await.expect("written");
        let mut read = [0; 6];
        far.read_exact(&mut read).await.expect("still open");
        assert_eq!(&read, b"onetwo");
    }
}
