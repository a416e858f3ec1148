//! A request body that is being sent over HTTP/2, and whether the server reads it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use ::h2::{Reason, SendStream};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::task::JoinHandle;
use tower::BoxError;

use crate::memory::Budget;
use crate::request_body::RequestBody;
use crate::transport::h2::{Sending, Sent, field_list_size};
use crate::upstream::h2_link::Link;

/// The trailers are larger than this many bytes, which is the most that the server accepts. It would close the connection, with
/// the streams of other clients.
#[derive(Debug, thiserror::Error)]
#[error("the request trailers are larger than the model server accepts ({0} bytes)")]
pub struct TrailersTooLarge(pub u32);

/// A request body whose trailers the server accepts.
struct Accepted {
    body: RequestBody,
    link: Link,
}

impl Body for Accepted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            let limit = self.link.max_header_list();
            if field_list_size(trailers) > u64::from(limit) {
                return Poll::Ready(Some(Err(TrailersTooLarge(limit).into())));
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request body that is being sent.
pub struct Upload {
    sending: Sending<Accepted>,
    link: Link,
    wait: UploadWait,
    /// Its length in bytes; of an unknown length, what was sent so far.
    promised: u64,
}

/// What an upload waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadWait {
    None,
    /// The task of the connection, which opens new streams and writes.
    Connection,
    /// The client, or the server's window. The upload is counted as waiting on its connection.
    Peer,
}

impl Upload {
    pub fn new(
        stream: SendStream<Bytes>,
        body: RequestBody,
        link: Link,
        memory: &Arc<Budget>,
    ) -> Self {
        let promised = body.size_hint().exact().unwrap_or(0);
        link.traffic().promise(0, promised);
        let accepted = Accepted {
            body,
            link: link.clone(),
        };
        Self {
            sending: Sending::new(stream, accepted, Reason::CANCEL).charged_to(memory),
            link,
            wait: UploadWait::None,
            promised,
        }
    }

    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Sent<BoxError>> {
        let polled = self.sending.poll(cx);
        self.promise(self.promised.max(self.sending.sent()));
        self.set_wait(match self.wait {
            _ if polled.is_ready() => UploadWait::None,
            _ if !self.sending.is_blocked() => UploadWait::Peer,
            UploadWait::None => {
                // The task of the connection was woken before, so it runs before the next poll. An upload that waits even then
                // waits for the server's window or the socket.
                cx.waker().wake_by_ref();
                UploadWait::Connection
            }
            UploadWait::Connection | UploadWait::Peer => UploadWait::Peer,
        });
        polled
    }

    fn promise(&mut self, length: u64) {
        if length != self.promised {
            self.link.traffic().promise(self.promised, length);
            self.promised = length;
        }
    }

    fn set_wait(&mut self, wait: UploadWait) {
        let waiting = &self.link.load.waiting_uploads;
        match (std::mem::replace(&mut self.wait, wait), wait) {
            (UploadWait::Peer, UploadWait::Peer) => 0,
            (_, UploadWait::Peer) => waiting.fetch_add(1, Ordering::Relaxed),
            (UploadWait::Peer, _) => waiting.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// Continues in a separate task, so that it does not stop while the response is not read.
    pub fn continue_in_task(mut self) -> Task {
        Task(tokio::spawn(async move {
            std::future::poll_fn(|cx| self.poll(cx).map(drop)).await;
        }))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.set_wait(UploadWait::None);
        self.promise(self.sending.sent());
    }
}

/// A task that is aborted when this is dropped.
pub struct Task(JoinHandle<()>);

impl Task {
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
