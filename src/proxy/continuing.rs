//! Asks other servers for the rest of a stream that broke after its first content, one after another until one goes on.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;

use super::backend::{OldBackend, Proxy};
use super::body::{is_event_stream, is_readable};
use super::exchange::Exchange;
use super::head::remove_hop_by_hop;
use crate::continuation::{Ask, Capability, Cause, Mode, Opening, Reason, Request, Sent};
use crate::error_chain::error_chain;
use crate::failover::{Candidates, Takeover, Target, candidates};
use crate::guard::{GUARD, GuardCheck};
use crate::http1::NameFilter;
use crate::memory::{Budget, Charge, FREE, Purpose, cost};
use crate::request_body::RequestBody;
use crate::snapshot::{MoveWatch, Snapshot};
use crate::split::Generation;
use crate::sse::{Api, Decoder, Tail, tail_meaning};
use crate::telemetry::trace::TRACEPARENT;
use crate::transport::deadline;
use crate::upstream::{Endpoint, FailFast, Failure, Head, Outgoing, Pool, Terms, UpstreamBody};

/// Longest opening that is read before the first content, in bytes of an incomplete event.
const MAX_EVENT: usize = 256 * 1024;

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
    pub ask: Ask,
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

/// What to ask other servers, and which.
pub struct Asked {
    /// The plan in force when the stream broke, which may be a later one than that of the request.
    snapshot: Arc<Snapshot>,
    body: RequestBody,
    _charge: Charge,
    ask: Ask,
    /// The model that an endpoint must be able to continue; `None` if it needs no proof.
    model: Option<String>,
    guard: (HeaderName, HeaderValue),
    candidates: Vec<Candidates>,
    cause: Cause,
}

/// What is kept of a request after its first content, independent of the type of the old backend.
pub trait Resume: Send {
    /// Prepares to ask for the rest of a stream of which `sent` has been sent, and which was continued `times` before. Spends
    /// from the retry budget, except for the first time.
    ///
    /// # Errors
    /// Why nobody is asked.
    fn prepare(&self, api: Api, sent: &Sent, cause: Cause, times: u32) -> Result<Asked, Reason>;
    /// Asks. `from` is the endpoint that broke off.
    fn ask(
        self: Box<Self>,
        asked: Asked,
        exchange: Exchange,
        sent: Box<Sent>,
        from: Option<Arc<Endpoint>>,
    ) -> Continuing;
    /// Notes that the model of `sent` is in use, so that endpoints are asked ahead of need what they can do.
    fn want(&self, sent: &Sent);
    /// Says when a stream on old is to move.
    fn watch_moves(&self) -> MoveWatch;
    /// Releases the kept request body: the stream will not be continued.
    fn release(&self);
}

/// What is kept of a request, to ask another server for the rest of its stream. It keeps no snapshot: what is asked, and where,
/// follows the plan in force at that time.
pub struct Source<O> {
    pub proxy: Proxy<O>,
    pub head: Arc<Head>,
    pub body: RequestBody,
    /// Where the stream comes from.
    pub target: Target,
}

/// Why a server does not go on.
enum Refused {
    /// Another one may.
    This,
    /// No other one would.
    All(Reason),
}

impl<O: OldBackend> Resume for Source<O> {
    fn prepare(&self, api: Api, sent: &Sent, cause: Cause, times: u32) -> Result<Asked, Reason> {
        let context = &self.proxy.context;
        let snapshot = context.snapshots.load();
        let rules = snapshot.plan.failover.continuation;
        if !rules.is_on() {
            return Err(Reason::NoTarget);
        }
        let ask = sent.ask()?;
        if times >= rules.max_per_stream {
            return Err(Reason::TooOften);
        }
        let kept = self.body.kept().ok_or(Reason::BodyNotKept)?;
        let request = Request::read(api, &kept)?;
        let body = match ask {
            Ask::Again => kept.clone(),
            Ask::Rest => request.continued(sent.text(), sent.tokens())?,
        };
        let needs_proof = ask == Ask::Rest && api == Api::Chat;
        let model = match needs_proof {
            true => Some(request.model().ok_or(Reason::Request)?),
            false => None,
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
        let names = NameFilter::of(&self.head.headers);
        let GuardCheck::Forward(guard) = snapshot.guard.check(&self.head.headers, names) else {
            return Err(Reason::Forwarded);
        };
        let mut charge = Charge::default();
        if !charge.resize(&context.memory, cost(body.len()), Purpose::RequestBody) {
            return Err(Reason::NoMemory);
        }
        // The first attempt to continue a stream adds no load: it takes the place of the one that broke. When a server with
        // hundreds of streams dies, all of them are to go on. Moves have a rate of their own.
        let is_paid = match cause {
            Cause::PlannedMove => true,
            _ if times == 0 => snapshot.plan.failover.retry_budget_percent > 0,
            _ => context.may_retry(&snapshot),
        };
        if !is_paid {
            return Err(Reason::RetryBudget);
        }
        Ok(Asked {
            body: RequestBody::whole(body),
            _charge: charge,
            guard: (GUARD, guard),
            snapshot,
            ask,
            model,
            candidates,
            cause,
        })
    }

    fn ask(
        mut self: Box<Self>,
        asked: Asked,
        mut exchange: Exchange,
        sent: Box<Sent>,
        from: Option<Arc<Endpoint>>,
    ) -> Continuing {
        Box::pin(async move {
            let result = self.run(&asked, &mut exchange, &sent, from).await;
            Continued {
                source: self,
                exchange,
                sent,
                result,
            }
        })
    }

    fn want(&self, sent: &Sent) {
        if let Some(model) = sent.model() {
            self.proxy.context.demand.want(&model);
        }
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
        asked: &Asked,
        exchange: &mut Exchange,
        sent: &Sent,
        from: Option<Arc<Endpoint>>,
    ) -> Result<Joined, Reason> {
        let mut tried: Vec<u64> = from.iter().map(|endpoint| endpoint.id).collect();
        let mut attempts = 0;
        for candidates in &asked.candidates {
            let (target, most, same) = match candidates {
                Candidates::Others(target) => (*target, MAX_PER_POOL, None),
                Candidates::Same if from.is_none() => continue,
                Candidates::Same => (self.target, 1, from.as_ref()),
            };
            let Some(pool) = asked.snapshot.pool(target) else {
                continue;
            };
            for _ in 0..most {
                let endpoint = self.pick(pool, target, asked, same, &tried).await;
                let Some(endpoint) = endpoint else { break };
                // The first attempt is paid for already.
                if attempts > 0 && !self.proxy.context.may_retry(&asked.snapshot) {
                    return Err(Reason::RetryBudget);
                }
                attempts += 1;
                tried.push(endpoint.id);
                let attempt = self.attempt(asked, pool, target, &endpoint, exchange, sent);
                match attempt.await {
                    Ok(joined) => {
                        self.target = target;
                        return Ok(joined);
                    }
                    Err(Refused::This) => {}
                    Err(Refused::All(reason)) => return Err(reason),
                }
            }
        }
        Err(match (attempts, &asked.model) {
            (0, Some(_)) => Reason::NotSupported,
            (0, None) => Reason::NoTarget,
            _ => Reason::AttemptsFailed,
        })
    }

    /// An endpoint that can go on: the one that broke off if `same`, else another one. Asks one of which nothing is known, if no
    /// other is left.
    async fn pick(
        &self,
        pool: &Arc<Pool>,
        target: Target,
        asked: &Asked,
        same: Option<&Arc<Endpoint>>,
        tried: &[u64],
    ) -> Option<Arc<Endpoint>> {
        let now = Instant::now();
        let model = asked.model.as_deref();
        let may_be = |endpoint: &&Arc<Endpoint>| match same {
            Some(same) => Arc::ptr_eq(endpoint, same),
            None => !tried.contains(&endpoint.id) && endpoint.is_healthy(now),
        };
        let is = |endpoint: &Endpoint, capability| {
            model.is_none_or(|model| endpoint.capability(model, now) == capability)
        };
        let known = match same {
            None => pool.pick_capable(now, fastrand::u32(..), model, tried),
            Some(_) => {
                let mut endpoints = pool.endpoints().iter().filter(may_be);
                endpoints.find(|endpoint| is(endpoint, Capability::Supported))
            }
        };
        if let Some(endpoint) = known {
            return Some(Arc::clone(endpoint));
        }
        let mut endpoints = pool.endpoints().iter().filter(may_be);
        let unknown = endpoints.find(|endpoint| is(endpoint, Capability::Unknown))?;
        let guard = Some(&asked.guard).filter(|_| target != Target::Old);
        let epoch = asked.snapshot.epoch;
        let proven = pool.prove(unknown, model?, guard, epoch).await;
        (proven == Capability::Supported).then(|| Arc::clone(unknown))
    }

    async fn attempt(
        &mut self,
        asked: &Asked,
        pool: &Arc<Pool>,
        target: Target,
        endpoint: &Arc<Endpoint>,
        exchange: &mut Exchange,
        sent: &Sent,
    ) -> Result<Joined, Refused> {
        let tokens = match asked.ask {
            Ask::Again => 0,
            Ask::Rest => sent.tokens(),
        };
        let traceparent = exchange.asks_to_continue(target.generation(), asked.cause, tokens);
        if let Some(traceparent) = traceparent {
            let head = Arc::make_mut(&mut self.head);
            head.headers.insert(TRACEPARENT, traceparent);
        }
        let limit = asked.snapshot.plan.failover.first_event_timeout;
        let until = limit.map(|limit| Instant::now() + limit);
        let outgoing = Outgoing {
            head: &self.head,
            extra: Some(&asked.guard).filter(|_| target != Target::Old),
            memory: &self.proxy.context.memory,
        };
        let terms = Terms {
            fail_fast: FailFast::Never,
            deadline: until,
            was_sent: true,
        };
        let body = asked.body.again().ok_or(Refused::This)?;
        let response = match pool.send_on(endpoint, outgoing, body, terms).await {
            Ok(response) => response,
            Err(error) => {
                tracing::debug!(?target, error = %error_chain(&error), "a stream is not continued there");
                return Err(Refused::This);
            }
        };
        let reading = begin(exchange.api(), response, sent, asked.ask, exchange.memory());
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
                    ask: asked.ask,
                    comment: asked.snapshot.plan.failover.continuation.comment,
                    skipped: begun.skipped,
                })
            }
            Err(Refused::This) => {
                let why = "did not go on with a stream";
                endpoint.failed(Failure::Answer, now, &why);
                Err(Refused::This)
            }
            Err(all) => Err(all),
        }
    }
}

/// A response that goes on with the stream.
struct Begun {
    first: Bytes,
    body: UpstreamBody,
    hidden: Vec<HeaderName>,
    skipped: u64,
}

/// Reads a response up to the event with which the answer goes on.
async fn begin(
    api: Api,
    response: Response<UpstreamBody>,
    sent: &Sent,
    ask: Ask,
    memory: &Arc<Budget>,
) -> Result<Begun, Refused> {
    let (mut parts, mut body) = response.into_parts();
    let is_stream = is_event_stream(&parts.headers) && is_readable(&parts.headers);
    if parts.status != StatusCode::OK || !is_stream {
        return Err(Refused::This);
    }
    let names = NameFilter::of(&parts.headers);
    let hidden = remove_hop_by_hop(&mut parts.headers, names);
    let mut decoder = Decoder::new(MAX_EVENT);
    // The beginning of an incomplete event.
    let mut partial: Vec<u8> = Vec::new();
    let mut charge = Charge::default();
    let mut skipped = 0;
    loop {
        body.read_little(memory.is_tight());
        let frame = body.frame().await.ok_or(Refused::This)?;
        let frame = frame.map_err(|_| Refused::This)?;
        let data = frame.into_data().map_err(|_| Refused::This)?;
        // Everything before this offset is of no use.
        let mut from = 0;
        let mut events = decoder.feed(&data);
        while let Some(event) = events.next() {
            if tail_meaning(api, &event) != Tail::Nothing {
                return Err(Refused::This);
            }
            let opening = match event.has_data {
                true => sent.opening(ask, event.data),
                false => Opening::Skip { token: false },
            };
            match opening {
                Opening::Skip { token } => skipped += u64::from(token),
                Opening::Begin => {
                    partial.extend_from_slice(&data[from..]);
                    return Ok(Begun {
                        first: partial.into(),
                        body,
                        hidden,
                        skipped,
                    });
                }
                Opening::Refuse(Reason::AttemptsFailed) => return Err(Refused::This),
                Opening::Refuse(reason) => return Err(Refused::All(reason)),
            }
            from = event.end;
            partial.clear();
        }
        drop(events);
        if decoder.quiet() {
            return Err(Refused::This);
        }
        partial.extend_from_slice(&data[decoder.boundary().max(from)..]);
        let held = cost(partial.capacity() + decoder.held());
        if held > FREE && !charge.resize(memory, held, Purpose::Event) {
            return Err(Refused::All(Reason::NoMemory));
        }
    }
}
