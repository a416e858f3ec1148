//! Hands the body of a request from the connection that reads it to the attempt that sends it, one chunk at a time. The
//! connection reads only what the receiver demands, so a slow model server slows down its client.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tower::BoxError;

use crate::memory::{Budget, Charge, FREE, cost};
use crate::transport::READ_BUFFER;

#[derive(Default)]
struct Slot {
    data: Option<Bytes>,
    trailers: Option<HeaderMap>,
    /// For the data, until it is taken.
    charge: Charge,
    ended: bool,
    broken: bool,
    /// The receiver was polled and found nothing.
    wanted: bool,
    /// The receiver is gone.
    abandoned: bool,
    body: Option<Waker>,
    connection: Option<Waker>,
}

/// The receiving end: the request's body.
pub struct BodyReceiver {
    slot: Arc<Mutex<Slot>>,
    length: SizeHint,
}

/// The sending end, held by the connection.
pub struct BodySender(Arc<Mutex<Slot>>);

/// What the receiver wants from the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Read on.
    More,
    /// The receiver is gone: the rest of the body is not wanted.
    Nothing,
}

/// Makes both ends. `length` is what the head says about the body.
pub fn body_channel(length: SizeHint) -> (BodySender, BodyReceiver) {
    let slot = Arc::new(Mutex::new(Slot::default()));
    (BodySender(Arc::clone(&slot)), BodyReceiver { slot, length })
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().expect("no holder of this lock can panic")
}

impl BodySender {
    /// What the receiver wants. Pending while it has a chunk that it has not taken.
    pub fn poll_demand(&self, cx: &mut Context<'_>) -> Poll<Demand> {
        let mut slot = lock(&self.0);
        if slot.abandoned {
            return Poll::Ready(Demand::Nothing);
        }
        if slot.wanted && slot.data.is_none() {
            return Poll::Ready(Demand::More);
        }
        slot.connection = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Is the receiver gone, so that the rest will not be read?
    pub fn is_abandoned(&self) -> bool {
        lock(&self.0).abandoned
    }

    /// Hands on `data`, which was read. While it waits it is charged to `memory`: it keeps the read buffer it lies in, or where it
    /// is small it is copied out of it.
    pub fn data(&self, data: BytesMut, memory: &Arc<Budget>) {
        self.put(|slot| {
            let data = if data.len() <= FREE {
                Bytes::copy_from_slice(&data)
            } else {
                slot.charge.force(memory, cost(READ_BUFFER));
                data.freeze()
            };
            slot.data = Some(data);
        });
    }

    /// The body has ended, perhaps with trailers.
    pub fn end(&self, trailers: Option<HeaderMap>) {
        self.put(|slot| {
            slot.trailers = trailers;
            slot.ended = true;
        });
    }

    fn put(&self, change: impl FnOnce(&mut Slot)) {
        let mut slot = lock(&self.0);
        change(&mut slot);
        slot.wanted = false;
        if let Some(waker) = slot.body.take() {
            waker.wake();
        }
    }
}

impl Drop for BodySender {
    /// A connection that goes before the end has broken the body off.
    fn drop(&mut self) {
        self.put(|slot| slot.broken = !slot.ended);
    }
}

impl Body for BodyReceiver {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut slot = lock(&self.slot);
        if let Some(data) = slot.data.take() {
            slot.charge.shrink(0);
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if let Some(trailers) = slot.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        if slot.ended {
            return Poll::Ready(None);
        }
        if slot.broken {
            return Poll::Ready(Some(Err("the client broke the request body off".into())));
        }
        slot.wanted = true;
        slot.body = Some(cx.waker().clone());
        if let Some(waker) = slot.connection.take() {
            waker.wake();
        }
        Poll::Pending
    }

    fn size_hint(&self) -> SizeHint {
        self.length
    }
}

impl Drop for BodyReceiver {
    fn drop(&mut self) {
        let mut slot = lock(&self.slot);
        slot.abandoned = true;
        slot.data = None;
        slot.charge.shrink(0);
        if let Some(waker) = slot.connection.take() {
            waker.wake();
        }
    }
}
