//! Asks other servers for the rest of a stream that broke after its first content, one after another until one continues it.

mod begin;
mod kept_head;
mod order;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use self::begin::begin;
pub use self::kept_head::KeptHead;
use self::order::Order;
use super::backend::{OldBackend, Proxy};
use super::exchange::Exchange;
use crate::continuation::{Capability, Cause, Mode, Probe, Reason, Request, Resumption, Sent};
use crate::error_chain::error_chain;
use crate::failover::{Candidates, Takeover, Target, candidates};
use crate::guard::{GUARD, GuardCheck};
use crate::http1::NameFilter;
use crate::memory::{Charge, Purpose, cost};
use crate::request_body::RequestBody;
use crate::snapshot::{MoveWatch, Snapshot};
use crate::split::Generation;
use crate::sse::Api;
use crate::telemetry::trace::TRACEPARENT;
use crate::transport::deadline;
use crate::upstream::{
    Endpoint, FailFast, Failure, Head, Outgoing, Pool, ProvenConnection, Terms, UpstreamBody,
};

/// Most endpoints of one pool that are asked for the rest of a stream.
const MAX_PER_POOL: usize = 3;

/// The rest of a stream, from another server.
pub struct Joined {
    /// What has been read, from the event on with which the answer goes on.
    pub first: Bytes,
    pub body: UpstreamBody,
    pub endpoint: Arc<Endpoint>,
    pub generation: Generation,
    /// Names of trailers that are not forwarded.
    pub hidden: Vec<HeaderName>,
    pub resumption: Resumption,
    /// Whether a comment marks the place.
    pub comment: bool,
    /// Tokens that the server generated and the client does not get.
    pub skipped: u64,
}

/// What came of asking.
pub struct Continued {
    pub source: Box<dyn Resume>,
    pub exchange: Exchange,
    pub sent: Box<Sent>,
    pub result: Result<Joined, Reason>,
}

/// Other servers are being asked.
pub type Continuing = Pin<Box<dyn Future<Output = Continued> + Send>>;

/// How long a move may take until new's first content. Meanwhile the client gets nothing, though its server is well.
const MOVE_PATIENCE: Duration = Duration::from_secs(20);

/// How long an attempt waits for a token where the plan sets no limit to the first content. Longer than a move may take: there
/// is nothing to go back to, and a server that gets all streams of another one that died works on many prompts at once.
const SILENCE: Duration = Duration::from_secs(60);

/// What to ask other servers, and which.
pub struct PreparedContinuation {
    /// The plan in force when the stream broke, which may be a later one than that of the request.
    snapshot: Arc<Snapshot>,
    head: Arc<Head>,
    body: RequestBody,
    _charge: Charge,
    resumption: Resumption,
    /// What an endpoint must have proven, and of which model; `None` if it needs no proof.
    proof: Option<(Probe, String)>,
    guard: (HeaderName, HeaderValue),
    candidates: Vec<Candidates>,
    cause: Cause,
}

/// What is kept of a request after its first content, independent of the type of the old backend.
pub trait Resume: Send {
    /// Prepares to ask for the rest of a stream of which `sent` has been sent, and which was continued `times` before.
    ///
    /// # Errors
    /// Why nobody is asked.
    fn prepare(
        &self,
        api: Api,
        sent: &Sent,
        cause: Cause,
        times: u32,
    ) -> Result<PreparedContinuation, Reason>;
    /// Asks. `from` is the endpoint that broke off.
    fn continue_stream(
        self: Box<Self>,
        prepared: PreparedContinuation,
        exchange: Exchange,
        sent: Box<Sent>,
        from: Option<Arc<Endpoint>>,
    ) -> Continuing;
    /// Notes that the model of `sent` is in use, so that endpoints are asked ahead of need what they can do. Returns false if it
    /// is known that none can continue the stream.
    fn want(&self, api: Api, sent: &Sent) -> bool;
    /// Says when a stream on old is to move.
    fn watch_moves(&self) -> MoveWatch;
    /// Releases the kept request body: the stream will not be continued.
    fn release(&self);
}

/// What is kept of a request, to ask another server for the rest of its stream. It keeps no snapshot: what is asked, and where,
/// follows the plan in force at that time.
pub struct Source<O> {
    pub proxy: Proxy<O>,
    pub head: KeptHead,
    pub body: RequestBody,
    /// Where the stream comes from.
    pub target: Target,
}

/// Why a server does not go on.
enum Refused {
    /// Another one may.
    This,
    /// As above. It says nothing, and may only be slow.
    Silent,
    /// No other one would.
    All(Reason),
}

impl<O: OldBackend> Resume for Source<O> {
    fn prepare(
        &self,
        api: Api,
        sent: &Sent,
        cause: Cause,
        times: u32,
    ) -> Result<PreparedContinuation, Reason> {
        let context = &self.proxy.context;
        let snapshot = context.snapshots.load();
        let rules = snapshot.plan.failover.continuation;
        if !rules.is_on() {
            return Err(Reason::NoTarget);
        }
        let resumption = sent.resumption()?;
        if times >= rules.max_per_stream {
            return Err(Reason::TooOften);
        }
        let kept = self.body.kept().ok_or(Reason::BodyNotKept)?;
        let request = Request::read(api, &kept)?;
        let body = match resumption {
            Resumption::Resend => kept.clone(),
            Resumption::Continue => request.continued(&sent.text(), sent.tokens())?,
        };
        let proof = match Probe::of(api).filter(|_| resumption == Resumption::Continue) {
            Some(probe) => Some((probe, request.model().ok_or(Reason::Request)?)),
            None => None,
        };
        let takeover = match cause {
            Cause::ErrorEvent => Takeover::Behind,
            Cause::PlannedMove => Takeover::Move,
            Cause::Connection | Cause::Truncated | Cause::GapTimeout => Takeover::Gone,
        };
        let any = rules.mode == Mode::AnyGeneration;
        let candidates = candidates(&snapshot.rules(), self.target, any, takeover);
        if candidates.is_empty() {
            return Err(Reason::NoTarget);
        }
        let head = self.head.head();
        let names = NameFilter::of(&head.headers);
        let GuardCheck::Forward(guard) = snapshot.guard.check(&head.headers, names) else {
            return Err(Reason::Forwarded);
        };
        let mut charge = Charge::default();
        if !charge.resize(&context.memory, cost(body.len()), Purpose::RequestBody) {
            return Err(Reason::NoMemory);
        }
        // Moves have a rate of their own.
        if cause != Cause::PlannedMove && snapshot.plan.failover.retry_budget_percent == 0 {
            return Err(Reason::RetryBudget);
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
        mut exchange: Exchange,
        sent: Box<Sent>,
        from: Option<Arc<Endpoint>>,
    ) -> Continuing {
        Box::pin(async move {
            let asking = self.run(&prepared, &mut exchange, &sent, from);
            let result = match prepared.cause {
                // Not a limit of the attempt: a server that is only slow is not to be ejected.
                Cause::PlannedMove => deadline::timeout(MOVE_PATIENCE, Box::pin(asking))
                    .await
                    .unwrap_or(Err(Reason::AttemptsFailed)),
                _ => asking.await,
            };
            Continued {
                source: self,
                exchange,
                sent,
                result,
            }
        })
    }

    fn want(&self, api: Api, sent: &Sent) -> bool {
        let (Some(probe), Some(model)) = (Probe::of(api), sent.model()) else {
            return true;
        };
        self.proxy.context.demand.want(probe, &model);
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

    fn release(&self) {
        self.body.forget();
    }
}

impl<O: OldBackend> Source<O> {
    async fn run(
        &mut self,
        prepared: &PreparedContinuation,
        exchange: &mut Exchange,
        sent: &Sent,
        from: Option<Arc<Endpoint>>,
    ) -> Result<Joined, Reason> {
        let mut tried: Vec<u64> = from.iter().map(|endpoint| endpoint.id).collect();
        let mut same = from.as_ref();
        let mut attempts = [0; Generation::ALL.len()];
        let mut is_denied = false;
        // How many endpoints each of the candidates may still name.
        let mut left = vec![MAX_PER_POOL; prepared.candidates.len()];
        for order in Order::ALL {
            for (candidates, left) in prepared.candidates.iter().zip(&mut left) {
                let target = match candidates {
                    Candidates::Others(target) => *target,
                    Candidates::Same => self.target,
                };
                let Some(pool) = prepared.snapshot.pool(target) else {
                    continue;
                };
                while *left > 0 {
                    let picked = prepared.pick(pool, candidates, order, &tried, &mut same);
                    let Some((endpoint, order)) = picked else {
                        break;
                    };
                    *left -= 1;
                    tried.push(endpoint.id);
                    let is_proven = order == Order::Proven;
                    let attempts = &mut attempts[target.generation().index()];
                    let connection = match self.prove(prepared, pool, target, &endpoint).await {
                        Ok(connection) => connection,
                        Err(answer) => {
                            // It failed, and may be gone. One of which nothing was known has not been tried.
                            *attempts += u32::from(is_proven && answer == Capability::Unknown);
                            continue;
                        }
                    };
                    // The first attempt of a generation takes the place of the one that broke: when a server with hundreds of
                    // streams dies, all of them are to go on, also if the rest of its generation dies with it.
                    if *attempts > 0 && !self.proxy.context.may_retry(&prepared.snapshot) {
                        is_denied = true;
                        *left = 0;
                        break;
                    }
                    *attempts += 1;
                    let at = (target, &endpoint, connection);
                    match self.attempt(prepared, pool, at, exchange, sent).await {
                        Ok(joined) => {
                            self.target = target;
                            return Ok(joined);
                        }
                        Err(Refused::This | Refused::Silent) => {}
                        Err(Refused::All(reason)) => return Err(reason),
                    }
                }
            }
        }
        Err(match (attempts, &prepared.proof) {
            _ if is_denied => Reason::RetryBudget,
            ([0, 0], Some(_)) => Reason::NotSupported,
            ([0, 0], None) => Reason::NoTarget,
            _ => Reason::AttemptsFailed,
        })
    }

    /// A connection to `endpoint` over which its server has proven that it continues the text, since another one may have taken
    /// the address of the one that proved it before. `None` if no proof is needed.
    async fn prove(
        &self,
        prepared: &PreparedContinuation,
        pool: &Pool,
        target: Target,
        endpoint: &Arc<Endpoint>,
    ) -> Result<Option<ProvenConnection>, Capability> {
        let Some((probe, model)) = &prepared.proof else {
            return Ok(None);
        };
        let about = (*probe, model.as_str());
        let outgoing = self.outgoing(prepared, &prepared.head, target);
        let proof = pool.prove_connection(endpoint, about, outgoing, prepared.snapshot.epoch);
        Box::pin(proof).await.map(Some)
    }

    fn outgoing<'a>(
        &'a self,
        prepared: &'a PreparedContinuation,
        head: &'a Head,
        target: Target,
    ) -> Outgoing<'a> {
        Outgoing {
            head,
            extra: Some(&prepared.guard).filter(|_| target != Target::Old),
            memory: &self.proxy.context.memory,
        }
    }

    async fn attempt(
        &self,
        prepared: &PreparedContinuation,
        pool: &Pool,
        (target, endpoint, connection): (Target, &Arc<Endpoint>, Option<ProvenConnection>),
        exchange: &mut Exchange,
        sent: &Sent,
    ) -> Result<Joined, Refused> {
        let tokens = match prepared.resumption {
            Resumption::Resend => 0,
            Resumption::Continue => sent.tokens(),
        };
        let mut head = Arc::clone(&prepared.head);
        let traceparent = exchange.asks_to_continue(target.generation(), prepared.cause, tokens);
        if let Some(traceparent) = traceparent {
            Arc::make_mut(&mut head)
                .headers
                .insert(TRACEPARENT, traceparent);
        }
        let now = Instant::now();
        let limit = prepared.snapshot.plan.failover.first_event_timeout;
        let until = limit.map(|limit| now + limit);
        let silent = now + SILENCE;
        let outgoing = self.outgoing(prepared, &head, target);
        let terms = Terms {
            fail_fast: FailFast::Never,
            deadline: until,
            was_sent: true,
        };
        let body = prepared.body.again().ok_or(Refused::This)?;
        let sending = async {
            match connection {
                Some(proven) => pool.send_over(proven, outgoing, body, terms).await,
                None => pool.send_on(endpoint, outgoing, body, terms).await,
            }
        };
        let response = match until {
            Some(_) => sending.await,
            None => match deadline::timeout_at(silent, Box::pin(sending)).await {
                Some(response) => response,
                None => return Err(Refused::Silent),
            },
        };
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                tracing::debug!(?target, error = %error_chain(&error), "a stream is not continued there");
                return Err(Refused::This);
            }
        };
        let silence = until.is_none().then_some((silent, SILENCE));
        let reading = begin(
            exchange.api(),
            response,
            sent,
            prepared.resumption,
            exchange.memory(),
            silence,
        );
        let begun = match until {
            None => reading.await,
            Some(until) => deadline::timeout_at(until, Box::pin(reading))
                .await
                .unwrap_or(Err(Refused::This)),
        };
        let now = Instant::now();
        match begun {
            Ok(begun) => {
                if until.is_some() {
                    endpoint.succeeded(now);
                }
                Ok(Joined {
                    first: begun.first,
                    body: begun.body,
                    endpoint: Arc::clone(endpoint),
                    generation: target.generation(),
                    hidden: begun.hidden,
                    resumption: prepared.resumption,
                    comment: prepared.snapshot.plan.failover.continuation.comment,
                    skipped: begun.skipped,
                })
            }
            Err(Refused::This) => {
                let why = "did not go on with a stream";
                endpoint.failed(Failure::Answer, now, &why);
                Err(Refused::This)
            }
            Err(other) => Err(other),
        }
    }
}
