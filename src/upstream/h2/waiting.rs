//! A request over HTTP/2 that waits for its response head.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use ::h2::client::ResponseFuture;
use ::h2::{Reason, RecvStream};
use http::Response;
use tokio::runtime::Handle;

use super::upload::{TrailersTooLarge, Upload};
use crate::transport::h2::Sent;
use crate::upstream::h2_link::{Answered, Stream};

/// Maximum number of interim responses (1xx) to one request.
const MAX_INTERIM: u32 = 64;

/// A request that was sent. Dropping it before its response head cancels the request.
pub struct PendingResponse(Option<InFlight>);

struct InFlight {
    response: ResponseFuture,
    upload: Option<Upload>,
    stream: Stream,
    /// When the request was sent.
    since: Instant,
}

/// Why there is no response head.
pub enum NoHead {
    Http2(::h2::Error),
    /// The server has announced that it accepts at most this many bytes of fields. h2 does not check that.
    TrailersTooLarge(u32),
}

impl From<Reason> for NoHead {
    fn from(reason: Reason) -> Self {
        Self::Http2(reason.into())
    }
}

/// A response head, the rest of the request if there is one, and the stream.
pub type HeadReceived = (Response<RecvStream>, Option<Upload>, Answered);

impl PendingResponse {
    pub fn new(response: ResponseFuture, upload: Option<Upload>, stream: Stream) -> Self {
        Self(Some(InFlight {
            response,
            upload,
            stream,
            since: Instant::now(),
        }))
    }

    /// Sends the body until the response head arrives. Counts the interim responses before it.
    pub async fn head(mut self, interim: &mut u32) -> Result<HeadReceived, NoHead> {
        const TAKEN: &str = "it is taken only at the end";
        let head = std::future::poll_fn(|cx| {
            let in_flight = self.0.as_mut().expect(TAKEN);
            in_flight.poll(cx, interim)
        });
        match head.await {
            Ok(response) => {
                let InFlight { upload, stream, .. } = self.0.take().expect(TAKEN);
                Ok((response, upload, Answered::new(stream)))
            }
            Err(error) => {
                if matches!(&error, NoHead::Http2(error) if error.is_remote()) {
                    // The stream has ended.
                    self.0 = None;
                }
                Err(error)
            }
        }
    }
}

impl InFlight {
    fn reset(self) {
        let load = Arc::clone(self.stream.load());
        load.resets.add(Box::new(self));
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        interim: &mut u32,
    ) -> Poll<Result<Response<RecvStream>, NoHead>> {
        if let Some(upload) = &mut self.upload
            && let Poll::Ready(sent) = upload.poll(cx)
        {
            self.upload = None;
            if let Sent::Broken(error) = sent {
                return Poll::Ready(Err(match error.downcast_ref() {
                    Some(TrailersTooLarge(limit)) => NoHead::TrailersTooLarge(*limit),
                    None => Reason::CANCEL.into(),
                }));
            }
        }
        while let Poll::Ready(Some(Ok(_))) = self.response.poll_informational(cx) {
            *interim += 1;
            if *interim > MAX_INTERIM {
                return Poll::Ready(Err(Reason::ENHANCE_YOUR_CALM.into()));
            }
        }
        Pin::new(&mut self.response).poll(cx).map_err(NoHead::Http2)
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        let Some(in_flight) = self.0.take() else {
            return;
        };
        let wait = in_flight.stream.cancelled(in_flight.since.elapsed());
        if wait.is_zero() {
            return in_flight.reset();
        }
        // Without a runtime, the process or the thread ends.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(wait).await;
                in_flight.reset();
            });
        }
    }
}
