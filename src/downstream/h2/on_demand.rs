//! The body of a request whose client waits for `100 Continue` (RFC 9110 §10.1.1).

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::EXPECT;
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;

/// Resolves once the body is read and nothing of it has arrived. Fails if `100 Continue` is not needed.
pub type ContinueExpected = oneshot::Receiver<()>;

/// Notes when the body is first read.
pub struct OnDemand<B> {
    body: B,
    /// `None` once something was read.
    reads: Option<oneshot::Sender<()>>,
}

/// Both ends, if the head says that the client waits.
pub fn expectation(headers: &HeaderMap) -> Option<(oneshot::Sender<()>, ContinueExpected)> {
    headers.contains_key(EXPECT).then(oneshot::channel)
}

/// The interim response that asks for the body.
pub fn continue_response() -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::CONTINUE;
    response
}

impl<B> OnDemand<B> {
    pub fn new(body: B, reads: oneshot::Sender<()>) -> Self {
        let reads = Some(reads);
        Self { body, reads }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for OnDemand<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Some(reads) = self.reads.take()
            && frame.is_pending()
        {
            // An error means that the response has begun.
            let _ = reads.send(());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
