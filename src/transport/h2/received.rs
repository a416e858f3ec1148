//! The body that a stream of HTTP/2 receives.
//!
//! A task of its own takes it out of the connection as it comes, so that nothing waits there in frames, each of which keeps
//! the read buffer it lies in. What nobody has asked for yet is held in one piece that is charged to the memory budget. The
//! stream's window opens only as the body is read.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::{Body, Frame, SizeHint};
use tokio::task::AbortHandle;

use crate::memory::{Budget, Charge, Purpose, cost};

/// Smallest piece that is held, in bytes.
const SMALLEST: usize = 512;

/// Why a body breaks off.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error(transparent)]
    Stream(#[from] h2::Error),
    /// The memory budget has no room for what has come and was not read.
    #[error("too much memory is in use here")]
    NoMemory,
}

impl From<Broken> for h2::Error {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Stream(error) => error,
            Broken::NoMemory => Reason::ENHANCE_YOUR_CALM.into(),
        }
    }
}

/// The body that a stream receives. It ends only by END_STREAM: a reset of any code is an error, as is a length other
/// than the one announced (h2 checks that).
pub struct Received {
    inbox: Arc<Mutex<Inbox>>,
    /// Fills the inbox. Absent where nothing is to come.
    filling: Option<AbortHandle>,
    left: Option<u64>,
}

/// What has come of a body and was not read yet.
struct Inbox {
    /// Absent once it has ended, or nobody wants it.
    stream: Option<RecvStream>,
    data_ended: bool,
    /// Handed, as it came, to a reader who waited for it, and not fetched yet.
    handed: Option<Bytes>,
    held: BytesMut,
    charge: Charge,
    memory: Arc<Budget>,
    purpose: Purpose,
    /// How the body ended behind what is held.
    end: Option<Result<Option<HeaderMap>, Broken>>,
    reader: Option<Waker>,
}

impl Received {
    /// The body of a message with these fields. What is held of it is charged to `memory`.
    #[must_use]
    pub fn new(
        stream: RecvStream,
        headers: &HeaderMap,
        memory: &Arc<Budget>,
        purpose: Purpose,
    ) -> Self {
        let length = headers.get(CONTENT_LENGTH);
        let has_ended = stream.is_end_stream();
        let inbox = Arc::new(Mutex::new(Inbox {
            stream: (!has_ended).then_some(stream),
            data_ended: false,
            handed: None,
            held: BytesMut::new(),
            charge: Charge::default(),
            memory: Arc::clone(memory),
            purpose,
            end: has_ended.then_some(Ok(None)),
            reader: None,
        }));
        let filling = (!has_ended).then(|| {
            let inbox = Arc::clone(&inbox);
            let filling = std::future::poll_fn(move |cx| lock(&inbox).poll_fill(cx));
            tokio::spawn(filling).abort_handle()
        });
        Self {
            inbox,
            filling,
            left: length.and_then(|length| length.to_str().ok()?.parse().ok()),
        }
    }
}

fn lock(inbox: &Mutex<Inbox>) -> MutexGuard<'_, Inbox> {
    inbox.lock().expect("no holder of this lock can panic")
}

impl Inbox {
    /// Takes in what has come. Ready when nothing more will come.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // A reader who was woken by the last piece had its turn.
        if let Some(data) = self.handed.take() {
            self.hold(&data);
        }
        while self.end.is_none() {
            let Some(stream) = &mut self.stream else {
                return Poll::Ready(());
            };
            if self.data_ended {
                match stream.poll_trailers(cx) {
                    Poll::Ready(trailers) => self.end(trailers.map_err(Broken::Stream)),
                    Poll::Pending => break,
                }
                continue;
            }
            match stream.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) => self.take_in(data),
                Poll::Ready(Some(Err(error))) => self.end(Err(error.into())),
                Poll::Ready(None) => self.data_ended = true,
                Poll::Pending => break,
            }
        }
        if self.handed.is_some() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.end {
            Some(_) => Poll::Ready(()),
            None => Poll::Pending,
        }
    }

    fn take_in(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        if let Some(reader) = self.reader.take() {
            // It comes before this task does again, which is woken behind it.
            self.handed = Some(data);
            return reader.wake();
        }
        if let Some(handed) = self.handed.take() {
            self.hold(&handed);
        }
        self.hold(&data);
    }

    /// Keeps a copy, if the budget has room for it.
    fn hold(&mut self, data: &[u8]) {
        if matches!(self.end, Some(Err(Broken::NoMemory))) {
            return;
        }
        let needed = self.held.len() + data.len();
        if needed > self.held.capacity() {
            let capacity = needed.next_power_of_two().max(SMALLEST);
            let wanted = cost(capacity);
            if !self.charge.overdraw(&self.memory, wanted, self.purpose) {
                self.held = BytesMut::new();
                self.charge.shrink(0);
                self.stream = None;
                return self.end(Err(Broken::NoMemory));
            }
            let mut larger = BytesMut::with_capacity(capacity);
            larger.extend_from_slice(&self.held);
            self.held = larger;
        }
        self.held.extend_from_slice(data);
    }

    fn end(&mut self, how: Result<Option<HeaderMap>, Broken>) {
        self.end = Some(how);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// What is there, for whoever reads it, and the window for as much more.
    fn take(&mut self) -> Option<Bytes> {
        let data = match self.handed.take() {
            Some(data) => data,
            None if self.held.is_empty() => return None,
            None => {
                self.charge.shrink(0);
                std::mem::take(&mut self.held).freeze()
            }
        };
        self.release(data.len());
        Some(data)
    }

    fn release(&mut self, bytes: usize) {
        if let Some(stream) = &mut self.stream {
            // It was received, so it can be released.
            let _ = stream.flow_control().release_capacity(bytes);
        }
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        let mut inbox = lock(&this.inbox);
        if let Some(data) = inbox.take() {
            let length = data.len() as u64;
            this.left = this.left.map(|left| left.saturating_sub(length));
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        match &mut inbox.end {
            None => {
                inbox.reader = Some(cx.waker().clone());
                Poll::Pending
            }
            Some(Ok(trailers)) => Poll::Ready(trailers.take().map(|map| Ok(Frame::trailers(map)))),
            Some(end) => {
                let error = std::mem::replace(end, Ok(None)).err();
                inbox.stream = None;
                Poll::Ready(error.map(Err))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let inbox = lock(&self.inbox);
        inbox.handed.is_none() && inbox.held.is_empty() && matches!(inbox.end, Some(Ok(None)))
    }

    fn size_hint(&self) -> SizeHint {
        match self.left {
            _ if self.is_end_stream() => SizeHint::with_exact(0),
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Some(filling) = &self.filling {
            filling.abort();
        }
        let mut inbox = lock(&self.inbox);
        let unread = inbox.held.len() + inbox.handed.as_ref().map_or(0, Bytes::len);
        inbox.release(unread);
        inbox.stream = None;
        inbox.handed = None;
        inbox.held = BytesMut::new();
        inbox.charge.shrink(0);
        inbox.reader = None;
    }
}
