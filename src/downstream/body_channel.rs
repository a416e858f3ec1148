//! Passes a request body, one chunk at a time, from the connection that reads it to the attempt that sends it. The
//! connection reads only on demand, so a slow model server slows down its client.

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
    /// Charge for `data` until the receiver takes it.
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

/// The receiving end: the request body.
pub struct BodyReceiver {
    slot: Arc<Mutex<Slot>>,
    length: SizeHint,
}

/// The sending end, held by the connection.
pub struct BodySender(Arc<Mutex<Slot>>);

/// The receiver's demand on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Read more of the body.
    More,
    /// The receiver is gone: the rest of the body is not wanted.
    Nothing,
}

/// Creates both ends. `length` is the body length that the head declares.
pub fn body_channel(length: SizeHint) -> (BodySender, BodyReceiver) {
    let slot = Arc::new(Mutex::new(Slot::default()));
    (BodySender(Arc::clone(&slot)), BodyReceiver { slot, length })
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().expect("no holder of this lock can panic")
}

/// Wakes the task of `waker` unless it is the current one. If one task polls both ends, it polls each again after the other made
/// progress. A wake-up would only make it run again before the thread polls its sockets.
fn wake_other(waker: Option<Waker>, current: &Waker) {
    if let Some(waker) = waker
        && !waker.will_wake(current)
    {
        waker.wake();
    }
}

impl BodySender {
    /// The receiver's demand. Pending while it has not taken the last chunk or does not wait for more.
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

    /// Whether the receiver is gone, so that the rest will not be read.
    pub fn is_abandoned(&self) -> bool {
        lock(&self.0).abandoned
    }

    /// Passes on `data`. A small chunk is copied out of its read buffer; a larger one keeps the buffer, which is
    /// charged to `memory` until the receiver takes the chunk. `current` is the waker of the current task.
    pub fn data(&self, current: &Waker, data: BytesMut, memory: &Arc<Budget>) {
        self.put(current, |slot| {
            let data = if data.len() <= FREE {
                Bytes::copy_from_slice(&data)
            } else {
                slot.charge.force(memory, cost(READ_BUFFER));
                data.freeze()
            };
            slot.data = Some(data);
        });
    }

    /// Ends the body, perhaps with trailers. `current` is the waker of the current task.
    pub fn end(&self, current: &Waker, trailers: Option<HeaderMap>) {
        self.put(current, |slot| {
            slot.trailers = trailers;
            slot.ended = true;
        });
    }

    fn put(&self, current: &Waker, change: impl FnOnce(&mut Slot)) {
        let mut slot = lock(&self.0);
        change(&mut slot);
        slot.wanted = false;
        wake_other(slot.body.take(), current);
    }
}

impl Drop for BodySender {
    /// A connection that disappears before the end truncates the body.
    fn drop(&mut self) {
        self.put(Waker::noop(), |slot| slot.broken = !slot.ended);
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
            return Poll::Ready(Some(Err("the client aborted the request body".into())));
        }
        slot.wanted = true;
        slot.body = Some(cx.waker().clone());
        wake_other(slot.connection.take(), cx.waker());
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
