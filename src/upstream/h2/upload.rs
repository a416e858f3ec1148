//! A request body that is being sent over HTTP/2, and whether the server reads it.

use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use ::h2::{Reason, SendStream};
use bytes::Bytes;
use tokio::task::JoinHandle;

use crate::request_body::RequestBody;
use crate::transport::h2::{Sending, Sent};
use crate::upstream::h2_link::Link;

/// A request body that is being sent.
pub struct Upload {
    sending: Sending<RequestBody>,
    link: Link,
    wait: Wait,
}

/// What an upload waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Nothing, or the client.
    None,
    /// The task of the connection, which opens new streams and writes.
    Connection,
    /// The server. The upload is counted as blocked on its connection.
    Server,
}

impl Upload {
    pub fn new(stream: SendStream<Bytes>, body: RequestBody, link: Link) -> Self {
        Self {
            sending: Sending::new(stream, body, Reason::CANCEL),
            link,
            wait: Wait::None,
        }
    }

    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Sent<tower::BoxError>> {
        let polled = self.sending.poll(cx);
        let waits = polled.is_pending() && self.sending.is_blocked();
        self.set_wait(match self.wait {
            _ if !waits => Wait::None,
            Wait::None => {
                // The task of the connection was woken before, so it runs before the next poll. An upload that waits even then
                // waits for the server's window or the socket.
                cx.waker().wake_by_ref();
                Wait::Connection
            }
            Wait::Connection | Wait::Server => Wait::Server,
        });
        polled
    }

    fn set_wait(&mut self, wait: Wait) {
        let blocked = &self.link.load.blocked;
        match (std::mem::replace(&mut self.wait, wait), wait) {
            (Wait::Server, Wait::Server) => 0,
            (_, Wait::Server) => blocked.fetch_add(1, Ordering::Relaxed),
            (Wait::Server, _) => blocked.fetch_sub(1, Ordering::Relaxed),
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
        self.set_wait(Wait::None);
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
