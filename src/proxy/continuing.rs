//! Asks other servers for the rest of a stream that broke after its first content, one after another until one continues it.

mod begin;
mod kept_head;
mod order;
mod search;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use tokio::sync::oneshot;

pub use self::kept_head::KeptHead;
use super::backend::{OldBackend, Proxy};
use super::exchange::Exchange;
use crate::continuation::{
    Capability, ContinuationCause, ContinuationReason, Mode, Probe, Request, Resumption, Sent,
};
use crate::failover::{self, Candidates, TakeoverCause, Target, candidates};
use crate::guard::{GUARD, GuardCheck};
use crate::http1::{NameFilter, NamedFields};
use crate::memory::{Charge, Purpose, cost, fields_size, holding_cost};
use crate::request_body::RequestBody;
use crate::snapshot::{MoveWatch, Snapshot};
use crate::split::Generation;
use crate::sse::Api;
use crate::transport::deadline;
use crate::upstream::{Endpoint, Head, UpstreamBody};

/// The rest of a stream, from another server.
pub struct Joined {
    /// The bytes that have been read, from the first event that continues the response.
    pub first: Bytes,
    pub body: UpstreamBody,
    pub endpoint: Arc<Endpoint>,
    pub generation: Generation,
    /// Names of trailers that are not forwarded.
    pub hidden: NamedFields,
    pub resumption: Resumption,
    /// Whether a comment marks the position.
    pub comment: bool,
    /// Tokens that the server generated and that are not sent to the client.
    pub skipped: u64,
}

/// A stream that another server should continue.
pub struct OpenStream {
    pub exchange: Exchange,
    pub sent: Box<Sent>,
    /// The endpoint whose stream broke.
    pub from: Option<Arc<Endpoint>>,
    /// Set for a move: it ends when this is sent, or after [`MOVE_PATIENCE`].
    pub stopped: Option<oneshot::Receiver<()>>,
}

/// The result of asking other servers.
pub struct Continued {
    pub source: Box<dyn Resume>,
    pub exchange: Exchange,
    pub sent: Box<Sent>,
    pub result: Result<Joined, ContinuationReason>,
}

/// Other servers are being asked.
pub type Continuing = Pin<Box<dyn Future<Output = Continued> + Send>>;

/// How long a move may take until new's first content. Meanwhile the client gets nothing, although its server is healthy.
const MOVE_PATIENCE: Duration = Duration::from_secs(20);

/// What the search for another server holds, in addition to the body and a large head: its state (7 KiB), and a connection with
/// its buffers. Thousands of streams search at the same time when their server fails.
const SEARCH_COST: usize = 24 * 1024;

/// The request to other servers, and the servers to ask.
pub struct PreparedContinuation {
    /// The plan in force when the stream broke, which may be later than that of the request.
    snapshot: Arc<Snapshot>,
    head: Arc<Head>,
    body: RequestBody,
    _charge: Charge,
    resumption: Resumption,
    /// The proof that an endpoint needs, and for which model; `None` if it needs none.
    proof: Option<(Probe, String)>,
    guard: (HeaderName, HeaderValue),
    candidates: Vec<Candidates>,
    cause: ContinuationCause,
}

/// The kept parts of a request after its first content, independent of the type of the old backend.
pub trait Resume: Send {
    /// Prepares to ask for the rest of a stream of which `sent` has been sent, and which has already been continued `times`
    /// times.
    ///
    /// # Errors
    /// Why no server is asked.
    fn prepare(
        &self,
        api: Api,
        sent: &Sent,
        cause: ContinuationCause,
        times: u32,
    ) -> Result<PreparedContinuation, ContinuationReason>;
    /// Asks the servers.
    fn continue_stream(
        self: Box<Self>,
        prepared: PreparedContinuation,
        stream: OpenStream,
    ) -> Continuing;
    /// Records that the model of `sent` is in use, so that endpoints are probed in advance. Returns false if it is known that
    /// none can continue the stream.
    fn record_demand(&self, api: Api, sent: &Sent) -> bool;
    /// Tells when a stream on old has to move.
    fn watch_moves(&self) -> MoveWatch;
    /// Releases the kept request body: the stream will not be continued.
    fn release(&mut self);
}

/// The kept parts of a request, for asking another server for the rest of its stream. It keeps no snapshot: the plan in force at
/// that time decides what is asked, and where.
pub struct Source<O> {
    pub proxy: Proxy<O>,
    pub head: KeptHead,
    pub body: RequestBody,
    /// The charge for the body, unless the body itself holds it.
    pub charge: Charge,
    /// Where the stream comes from.
    pub target: Target,
}

impl<O: OldBackend> Resume for Source<O> {
    fn prepare(
        &self,
        api: Api,
        sent: &Sent,
        cause: ContinuationCause,
        times: u32,
    ) -> Result<PreparedContinuation, ContinuationReason> {
        let context = &self.proxy.context;
        let snapshot = context.snapshots.load();
        let policy = snapshot.plan.failover.continuation;
        if !policy.is_on() {
            return Err(ContinuationReason::NoTarget);
        }
        let resumption = sent.resumption()?;
        if times >= policy.max_per_stream {
            return Err(ContinuationReason::TooOften);
        }
        let length = self
            .body
            .kept_length()
            .filter(|length| *length <= snapshot.plan.failover.max_replay_bytes)
            .ok_or(ContinuationReason::BodyNotKept)?;
        let mut charge = Charge::default();
        // Before the copies are made: the body in one piece, the new body, and the text in several forms.
        let copies = 2 * cost(length) + 4 * cost(sent.held()) + SEARCH_COST;
        if !charge.resize(&context.memory, copies, Purpose::RequestBody) {
            return Err(ContinuationReason::NoMemory);
        }
        let kept = self.body.kept().ok_or(ContinuationReason::BodyNotKept)?;
        let request = Request::read(api, &kept)?;
        let body = match resumption {
            Resumption::Resend => kept.clone(),
            Resumption::Continue => request.continued(&sent.text(), sent.tokens())?,
        };
        let proof = match Probe::of(api).filter(|_| resumption == Resumption::Continue) {
            Some(probe) => Some((probe, request.model().ok_or(ContinuationReason::Request)?)),
            None => None,
        };
        let takeover = match cause {
            ContinuationCause::ErrorEvent => TakeoverCause::BackendLost,
            ContinuationCause::PlannedMove => TakeoverCause::Move,
            ContinuationCause::Connection
            | ContinuationCause::Truncated
            | ContinuationCause::GapTimeout => TakeoverCause::ServerLost,
        };
        let any = policy.mode == Mode::AnyGeneration;
        let candidates = candidates(&snapshot.failover_policy(), self.target, any, takeover);
        if candidates.is_empty() {
            return Err(ContinuationReason::NoTarget);
        }
        let head = self.head.head();
        let names = NameFilter::of(&head.headers);
        let GuardCheck::Forward(guard) = snapshot.guard.check(&head.headers, names) else {
            return Err(ContinuationReason::Forwarded);
        };
        let target = head
            .uri
            .path_and_query()
            .map_or(0, |target| target.as_str().len());
        let bytes =
            cost(body.len()) + holding_cost(target + fields_size(&head.headers)) + SEARCH_COST;
        if !charge.resize(&context.memory, bytes, Purpose::RequestBody) {
            return Err(ContinuationReason::NoMemory);
        }
        // Moves have their own rate limit.
        if cause != ContinuationCause::PlannedMove
            && snapshot.plan.failover.retry_budget_percent == 0
        {
            return Err(ContinuationReason::RetryBudget);
        }
        Ok(PreparedContinuation {
            head: Arc::new(head),
            body: RequestBody::whole(body),
            _charge: charge,
            guard: (GUARD, guard),
            snapshot,
            resumption,
            proof,
            candidates,
            cause,
        })
    }

    fn continue_stream(
        mut self: Box<Self>,
        prepared: PreparedContinuation,
        stream: OpenStream,
    ) -> Continuing {
        let OpenStream {
            mut exchange,
            sent,
            from,
            stopped,
        } = stream;
        Box::pin(async move {
            let search = self.run(&prepared, &mut exchange, &sent, from);
            let result = match stopped {
                None => search.await,
                Some(stopped) => match stoppable(search, stopped).await {
                    Ok(result) => result,
                    Err(gave_up) => {
                        if gave_up == GaveUp::TimedOut {
                            exchange.continuation_failed(failover::Cause::Deadline);
                        }
                        Err(ContinuationReason::AttemptsFailed)
                    }
                },
            };
            Continued {
                source: self,
                exchange,
                sent,
                result,
            }
        })
    }

    fn record_demand(&self, api: Api, sent: &Sent) -> bool {
        let (Some(probe), Some(model)) = (Probe::of(api), sent.model()) else {
            return true;
        };
        self.proxy.context.demand.record(probe, &model);
        if probe == Probe::Chat {
            // Most servers support it, and a pool of a later plan may.
            return true;
        }
        let snapshot = self.proxy.context.snapshots.load();
        let now = Instant::now();
        let mut endpoints = snapshot.pools().flat_map(|(_, pool)| pool.endpoints());
        endpoints.any(|endpoint| endpoint.capability(probe, &model, now) != Capability::Unsupported)
    }

    fn watch_moves(&self) -> MoveWatch {
        self.proxy.context.snapshots.watch_moves()
    }

    fn release(&mut self) {
        self.body.forget();
        self.body = RequestBody::empty();
        self.charge = Charge::default();
    }
}

/// Why a move was given up.
#[derive(PartialEq, Eq)]
enum GaveUp {
    Stopped,
    TimedOut,
}

/// Runs the search for a move until it is stopped or takes too long.
async fn stoppable<T>(
    search: impl Future<Output = T>,
    stopped: oneshot::Receiver<()>,
) -> Result<T, GaveUp> {
    // This does not limit the attempt, because a server that is only slow must not be ejected.
    let search = deadline::timeout(MOVE_PATIENCE, Box::pin(search));
    tokio::select! {
        biased;
        found = search => found.ok_or(GaveUp::TimedOut),
        _ = stopped => Err(GaveUp::Stopped),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::backend::OldPool;

    #[test]
    fn the_kept_part_of_a_request_fits_into_112_bytes() {
        let size = size_of::<Source<OldPool>>();
        assert!(size <= 112, "{size}");
    }
}
