//! The unfinished requests of an admin port, limited in total and per peer: clients that do not read their responses must not
//! make the process accumulate them.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http::Request;
use http_body::{Frame, SizeHint};
use tonic::body::Body;

use super::{PageResponse, Quota, QuotaGuard, Stall};

/// Maximum number of shares, in total and per peer. A request takes one.
const MAX_REQUESTS: usize = 512;
const MAX_REQUESTS_PER_PEER: usize = 64;
/// The cost of a request for a comparison, whose response is hundreds of times as large as others.
const COMPARISON_COST: usize = 16;
const COMPARISON: &str = "/crossfade.v1.Proxy/Compare";
/// Responses are passed on in pieces of at most this many bytes. The library takes one piece more than the client has room for,
/// and then the request no longer counts.
const PIECE: usize = 4 * 1024;

/// The unfinished requests.
#[derive(Clone, Debug)]
pub struct Requests(Quota);

/// A limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many requests are open")]
pub struct TooMany;

impl Default for Requests {
    fn default() -> Self {
        Self(Quota::new(MAX_REQUESTS, MAX_REQUESTS_PER_PEER))
    }
}

impl Requests {
    /// The shares of `request`. Hold them until its response is passed on: [`QuotaGuard::until_sent`].
    ///
    /// # Errors
    /// When there are too many.
    pub fn take<B>(&self, request: &Request<B>) -> Result<QuotaGuard, TooMany> {
        let shares = match request.uri().path() {
            COMPARISON => COMPARISON_COST,
            _ => 1,
        };
        self.0
            .take_many(request.extensions(), shares)
            .ok_or(TooMany)
    }
}

impl QuotaGuard {
    /// The response, which holds the shares until it is passed on, and records when it waits for the client.
    #[must_use]
    pub fn until_sent(self, answer: PageResponse, stall: Option<Stall>) -> PageResponse {
        answer.map(|body| {
            Body::new(Pieces {
                body,
                rest: Bytes::new(),
                stall,
                _shares: self,
            })
        })
    }
}

/// A body in small pieces.
struct Pieces {
    body: Body,
    /// The rest of the last frame.
    rest: Bytes,
    stall: Option<Stall>,
    _shares: QuotaGuard,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        if let Some(stall) = &self.stall {
            stall.taken();
        }
        if self.rest.is_empty() {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let length = self.rest.len().min(PIECE);
        // Copy it: a slice of a large response would keep all of it in memory.
        let piece = Bytes::copy_from_slice(&self.rest.split_to(length));
        if let Some(stall) = &self.stall {
            stall.waits(Instant::now());
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, mut hint) = (self.rest.len() as u64, self.body.size_hint());
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use http::StatusCode;
    use http_body::Body as _;
    use http_body_util::BodyExt;

    use super::*;
    use crate::pages::{Peer, Stalls, text};

    const MINUTE: Duration = Duration::from_secs(60);

    fn request(path: &str) -> Request<()> {
        let mut request = Request::new(());
        *request.uri_mut() = path.parse().unwrap();
        let peer = Peer::from(IpAddr::from([10, 0, 0, 1]));
        request.extensions_mut().insert(peer);
        request
    }

    #[tokio::test]
    async fn an_answer_counts_until_its_last_piece_is_taken() {
        let requests = Requests::default();
        let long = "x".repeat(3 * PIECE + 1);
        let mut open: Vec<_> = (0..MAX_REQUESTS_PER_PEER)
            .map(|_| requests.take(&request("/metrics")).unwrap())
            .collect();
        assert!(requests.take(&request("/metrics")).is_err());
        let answer = open.pop().unwrap();
        let stalls = Stalls::default();
        let stall = Some(stalls.begin(Instant::now()));
        let answer = answer.until_sent(text(StatusCode::OK, &long), stall);
        let mut body = answer.into_body();
        assert_eq!(body.size_hint().exact(), Some(long.len() as u64));
        let mut whole = Vec::new();
        while let Some(frame) = body.frame().await {
            assert!(requests.take(&request("/metrics")).is_err());
            assert!(stalls.is_overdue(Instant::now() + MINUTE));
            let piece = frame.unwrap().into_data().unwrap();
            assert!(piece.len() <= PIECE);
            whole.extend_from_slice(&piece);
            let left = (long.len() - whole.len()) as u64;
            assert_eq!(body.size_hint().exact(), Some(left));
            assert_eq!(body.is_end_stream(), left == 0);
        }
        assert_eq!(whole, long.as_bytes());
        drop(body);
        assert!(!stalls.is_overdue(Instant::now() + MINUTE));
        assert!(requests.take(&request("/metrics")).is_ok());
    }

    #[test]
    fn comparisons_take_more_than_other_requests() {
        let requests = Requests::default();
        let open: Vec<_> = (0..MAX_REQUESTS_PER_PEER / COMPARISON_COST)
            .map(|_| requests.take(&request(COMPARISON)).unwrap())
            .collect();
        assert!(requests.take(&request("/livez")).is_err());
        drop(open);
        assert!(requests.take(&request("/livez")).is_ok());
    }
}
