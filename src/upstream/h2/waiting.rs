//! A request over HTTP/2 that waits for its response head.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use ::h2::client::ResponseFuture;
use ::h2::{Reason, RecvStream};
use http::Response;
use tokio::runtime::Handle;

use super::upload::Upload;
use crate::transport::h2::Sent;
use crate::upstream::h2_link::Stream;

/// Maximum number of interim responses (1xx) to one request.
const MAX_INTERIM: u32 = 64;

/// A request that was sent. Dropping it before its response head cancels the request.
pub struct Waiting(Option<InFlight>);

struct InFlight {
    response: ResponseFuture,
    upload: Option<Upload>,
    stream: Stream,
}

/// A response head, the rest of the request if there is one, and the stream.
pub type Answered = (Response<RecvStream>, Option<Upload>, Stream);

impl Waiting {
    pub fn new(response: ResponseFuture, upload: Option<Upload>, mut stream: Stream) -> Self {
        stream.sent(Instant::now());
        Self(Some(InFlight {
            response,
            upload,
            stream,
        }))
    }

    /// Sends the body until the response head arrives. Counts the interim responses before it.
    pub async fn head(mut self, interim: &mut u32) -> Result<Answered, ::h2::Error> {
        let head = std::future::poll_fn(|cx| {
            let in_flight = self.0.as_mut().expect("it is taken only below");
            in_flight.poll(cx, interim)
        });
        let head = head.await;
        let mut in_flight = self.0.take().expect("it is taken only here");
        match head {
            Ok(response) => {
                in_flight.stream.answered();
                Ok((response, in_flight.upload, in_flight.stream))
            }
            Err(error) => {
                if error.is_remote() {
                    in_flight.stream.ended();
                }
                Err(error)
            }
        }
    }
}

impl InFlight {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        interim: &mut u32,
    ) -> Poll<Result<Response<RecvStream>, ::h2::Error>> {
        if let Some(upload) = &mut self.upload
            && let Poll::Ready(sent) = upload.poll(cx)
        {
            self.upload = None;
            if let Sent::Broken(_) = sent {
                return Poll::Ready(Err(Reason::CANCEL.into()));
            }
        }
        while let Poll::Ready(Some(Ok(_))) = self.response.poll_informational(cx) {
            *interim += 1;
            if *interim > MAX_INTERIM {
                return Poll::Ready(Err(Reason::ENHANCE_YOUR_CALM.into()));
            }
        }
        Pin::new(&mut self.response).poll(cx)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(mut in_flight) = self.0.take() else {
            return;
        };
        let wait = in_flight.stream.cancelled(Instant::now());
        // Without a runtime, the process or the thread ends.
        if !wait.is_zero()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                tokio::time::sleep(wait).await;
                drop(in_flight);
            });
        }
    }
}
