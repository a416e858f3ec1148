//! The life of a request: one snapshot, one assignment, its attempts, and the answer that is passed on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::Body;

use super::attempt::{Again, Tries};
use super::body::{Relay, SplitBody, is_event_stream, is_readable};
use super::body_timeout::BodyLimit;
use super::connections::Connections;
use super::error::{Error, Failures};
use super::exchange::Exchange;
use super::head::{self, Client};
use super::route::{Route, Routes};
use super::{models, traits, tunnel};
use crate::guard::{GUARD, Seen};
use crate::http1::NameFilter;
use crate::memory::{Budget, Charge, FREE, Purpose, cost};
use crate::request_body::RequestBody;
use crate::rescue::{Cause, Place, RetryBudget, Tried, refuge};
use crate::snapshot::{Snapshot, World};
use crate::split::{Assignment, Diffusion, Generation, Key, Reason, Traits, assign};
use crate::sse::End;
use crate::telemetry::{Metrics, Timeout, trace};
use crate::upstream::{Error as UpstreamError, Outgoing, Terms, UpstreamBody};

/// Says in each answer whose head it is.
pub const GENERATION: HeaderName = HeaderName::from_static("x-crossfade-generation");

/// Largest body that is read for an affinity field, in bytes.
const MAX_PEEK: usize = 1024 * 1024;

/// What a process sets once for all plans.
#[derive(Clone, Debug)]
pub struct ProxySettings {
    pub routes: Routes,
    /// A header that chooses a generation for one request; off when absent.
    pub override_header: Option<HeaderName>,
    /// Most exchanges that are open at once.
    pub max_requests: usize,
    /// Largest request body, in bytes.
    pub max_body: u64,
    /// Bytes that everything may take that is held of requests and answers. See [`Budget`].
    pub replay_budget: usize,
    /// How long a client may be waited for: at each pause of a request body, or for all of a small one.
    pub body_timeout: Duration,
    /// How long a client hears nothing before it is sent a comment; never when absent.
    pub comments: Option<Duration>,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            routes: Routes::default(),
            override_header: None,
            max_requests: 100_000,
            max_body: 256 * 1024 * 1024,
            replay_budget: 256 * 1024 * 1024,
            body_timeout: Duration::from_secs(60),
            comments: None,
        }
    }
}

/// What all requests of a process share.
pub struct Shared {
    pub world: Arc<World>,
    pub metrics: Arc<Metrics>,
    /// Present where exchanges are traced.
    pub tracer: Option<Arc<trace::Tracer>>,
    pub settings: ProxySettings,
    /// Outside the plan, so that a plan change does not begin the count anew.
    diffusion: Diffusion,
    retries: RetryBudget,
    /// The clock of the retry budget.
    started: Instant,
    /// What clients and model servers can make the process hold.
    pub(super) memory: Arc<Budget>,
    open: AtomicUsize,
    pub(super) connections: Connections,
    body_limit: Arc<BodyLimit>,
}

impl Shared {
    /// `phase` is a random draw: proxies that start together must not all begin with old.
    #[must_use]
    pub fn new(
        world: Arc<World>,
        metrics: Arc<Metrics>,
        tracer: Option<Arc<trace::Tracer>>,
        settings: ProxySettings,
        phase: u64,
    ) -> Arc<Self> {
        let body_limit = BodyLimit {
            limit: settings.body_timeout,
            passed: metrics.timed_out(Timeout::Body),
        };
        let memory = Budget::new(settings.replay_budget);
        metrics.watch(&memory);
        Arc::new(Self {
            world,
            body_limit: Arc::new(body_limit),
            metrics,
            tracer,
            diffusion: Diffusion::new(phase),
            retries: RetryBudget::default(),
            started: Instant::now(),
            memory,
            settings,
            open: AtomicUsize::new(0),
            connections: Connections::default(),
        })
    }

    /// What a client may take for a request's body.
    pub(super) fn body_limit(&self) -> Arc<BodyLimit> {
        Arc::clone(&self.body_limit)
    }

    /// Exchanges that are open now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Lets one more request in, before anything is held for it.
    pub(super) fn admit(self: &Arc<Self>) -> Result<Permit, Error> {
        let permit = Permit(Arc::clone(self));
        if self.open.fetch_add(1, Ordering::Relaxed) < self.settings.max_requests {
            return Ok(permit);
        }
        Err(Error::TooManyRequests)
    }

    pub(super) fn may_retry(&self, world: &Snapshot) -> bool {
        let percent = world.plan.failover.retry_budget_percent;
        let allowed = self
            .retries
            .spend(percent, self.started.elapsed().as_secs());
        if !allowed {
            self.metrics.retries_refused.inc();
        }
        allowed
    }
}

/// One of the requests that may be open at once, while it lives.
pub struct Permit(Arc<Shared>);

impl std::ops::Deref for Permit {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How the old generation is reached.
pub trait OldSide: Clone + Send + Sync + 'static {
    /// Sends one request to it.
    fn send(
        &self,
        world: &Snapshot,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        terms: Terms,
    ) -> impl Future<Output = Result<Response<UpstreamBody>, UpstreamError>> + Send;
}

/// The old generation behind an HTTP pool: the sidecar.
#[derive(Clone, Copy, Debug, Default)]
pub struct OldPool;

impl OldSide for OldPool {
    async fn send(
        &self,
        world: &Snapshot,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        terms: Terms,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        match &world.old {
            Some(pool) => pool.send(outgoing, body, terms).await,
            None => Err(UpstreamError::NoEndpoint),
        }
    }
}

/// Splits requests between an old side and the pools of the plan in force.
#[derive(Clone)]
pub struct Proxy<O> {
    pub(super) shared: Arc<Shared>,
    pub(super) old: O,
}

impl<O: OldSide> Proxy<O> {
    #[must_use]
    pub fn new(shared: Arc<Shared>, old: O) -> Self {
        Self { shared, old }
    }

    /// What all requests share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Answers one request. Whatever goes wrong becomes an answer. There is a `permit` where it was let in already.
    // A future is moved whole and is as large as its largest branch. So what decides is no future, what is rare is boxed,
    // and this is a block: the arguments of an `async fn` would be in it twice.
    #[expect(clippy::manual_async_fn, reason = "as said above")]
    pub fn handle(
        self,
        request: Request<RequestBody>,
        client: Option<Arc<Client>>,
        permit: Option<Permit>,
    ) -> impl Future<Output = Response<SplitBody>> + Send {
        async move {
            let mut request = request;
            let world = self.shared.world.load();
            let routes = &self.shared.settings.routes;
            let (method, path) = (request.method(), request.uri().path());
            let route = routes.of(method, path, request.headers());
            let names = NameFilter::of(request.headers());
            let entered = self.enter(&world, &request, names, permit);
            let (guard, permit, charge) = match entered {
                Ok(entered) => entered,
                Err(error) => {
                    if let Some(cause) = error.reject() {
                        self.shared.metrics.rejected(cause);
                    }
                    return error.answer(route.api()).map(SplitBody::own);
                }
            };
            let now = Instant::now();
            let mut started = now;
            let mut key = None;
            if let Route::Inference(_) | Route::Upgrade = route {
                let affinity = &world.plan.affinity;
                key = traits::header_key(request.headers(), names, affinity);
                if key.is_none() && !affinity.body_fields.is_empty() {
                    key = Box::pin(self.body_key(&world, &mut request)).await;
                    // The time a client takes for its body is no attempt's.
                    started = Instant::now();
                }
            }
            let assignment = match route {
                Route::Inference(_) | Route::Upgrade => {
                    self.assignment(&world, request.headers(), names, guard.is_none(), key, now)
                }
                Route::Models | Route::Model => old_because(Reason::Models),
                Route::Local => old_because(Reason::Local),
            };
            let is_head = request.method() == Method::HEAD;
            let upgrade = request.version() == Version::HTTP_11
                && head::asks_to_upgrade(request.headers(), names);
            let splits = matches!(route, Route::Inference(_) | Route::Upgrade);
            // What belongs to old alone is not moved, nor is what another proxy of this update has sent here.
            let movable = splits && guard.is_some();
            let place = Place::of(assignment.generation);
            if movable {
                self.keep(&world, request.body(), place);
            }
            let (mut head, body) = head::split(request, names, client.as_deref(), upgrade);
            if let Route::Inference(_) = route {
                head::ask_for_identity(&mut head.headers, names);
            }
            let mut exchange =
                Exchange::open(permit, assignment, route.api(), &mut head, names, now);
            exchange.head_charge = charge;
            let mut tries = Tries {
                movable,
                guard: guard.map(|value| (GUARD, value)),
                head: Arc::new(head),
                body,
                place,
                tried: Tried::default(),
                stays: false,
                started,
                failures: Failures::default(),
                proxy: self,
                world,
            };
            match route {
                Route::Models if tries.sees_both() => {
                    Box::pin(models::union(tries, exchange)).await
                }
                Route::Model if tries.sees_both() => Box::pin(models::one(tries, exchange)).await,
                _ => match tries.run(&mut exchange).await {
                    Ok((place, response)) => tries.respond(exchange, place, response, is_head),
                    Err(error) => refuse(exchange, &error),
                },
            }
        }
    }

    /// Lets a request in, bounds its body and says how to mark it if it is forwarded; no mark: it must be served here.
    fn enter(
        &self,
        world: &Snapshot,
        request: &Request<RequestBody>,
        names: NameFilter,
        permit: Option<Permit>,
    ) -> Result<(Option<HeaderValue>, Permit, Charge), Error> {
        let settings = &self.shared.settings;
        if request.body().size_hint().lower() > settings.max_body {
            return Err(Error::BodyTooLarge(settings.max_body));
        }
        request.body().bound(settings.max_body, &self.shared.memory);
        let guard = match world.guard.look(request.headers(), names) {
            Seen::Fresh(value) => Some(value),
            Seen::Forwarded => None,
            Seen::Circling => return Err(Error::Loop),
        };
        let permit = match permit {
            Some(permit) => permit,
            None => self.shared.admit()?,
        };
        let mut charge = Charge::default();
        let size = head::size(request);
        if size > FREE && !charge.resize(&self.shared.memory, cost(size), Purpose::Head) {
            return Err(Error::NoMemory);
        }
        Ok((guard, permit, charge))
    }

    /// Has the body kept, if there is another place to send it to should `place` fail.
    fn keep(&self, world: &Snapshot, body: &RequestBody, place: Place) {
        let tried = Tried::default().and(place);
        if refuge(&world.rules(), tried, place, Cause::Connect).is_some() {
            let most = world.plan.failover.max_replay_bytes;
            body.keep(most);
        }
    }

    /// The session that a field of the body names. Reads the body as far as it must be read for that.
    async fn body_key(&self, world: &Snapshot, request: &mut Request<RequestBody>) -> Option<Key> {
        let body = std::mem::replace(request.body_mut(), RequestBody::empty());
        let (body, whole) = body.peek(MAX_PEEK, &self.shared.memory).await;
        *request.body_mut() = body;
        traits::body_key(&whole?, &world.plan.affinity)
    }

    fn assignment(
        &self,
        world: &Snapshot,
        headers: &HeaderMap,
        names: NameFilter,
        guarded: bool,
        key: Option<Key>,
        now: Instant,
    ) -> Assignment {
        let plan = &world.plan;
        let traits = Traits {
            forced: traits::forced(
                headers,
                names,
                self.shared.settings.override_header.as_ref(),
            )
            // Old that drains takes nothing, whoever asks for it: its workers may be gone.
            .filter(|wanted| *wanted == Generation::New || world.may_reach_old())
            .filter(|_| world.new.is_some()),
            guarded,
            pinned: traits::is_pinned(headers),
            key,
        };
        let assignment = assign(&plan.weights, &self.shared.diffusion, &traits);
        self.shared.retries.earn(plan.failover.retry_budget_percent);
        if assignment.open_to_split() {
            let metrics = &self.shared.metrics;
            let to_new = assignment.generation == Generation::New;
            metrics.window.count(metrics.second(now), to_new);
        }
        assignment
    }
}

fn old_because(reason: Reason) -> Assignment {
    Assignment {
        generation: Generation::Old,
        reason,
    }
}

impl<O: OldSide> Tries<O> {
    /// Are the models of both generations to be seen? Not by another proxy of this update.
    fn sees_both(&self) -> bool {
        !self.world.plan.weights.is_all_old() && self.guard.is_some()
    }

    /// The answer to the client: its head now, its body as it comes.
    pub fn respond(
        self,
        mut exchange: Exchange,
        place: Place,
        response: Response<UpstreamBody>,
        is_head: bool,
    ) -> Response<SplitBody> {
        let (mut parts, source) = response.into_parts();
        exchange.answered(place.generation(), parts.status);
        let switched = parts.status == StatusCode::SWITCHING_PROTOCOLS;
        if !switched {
            let names = NameFilter::of(&parts.headers);
            head::remove_hop_by_hop(&mut parts.headers, names);
        }
        // RFC 9110 §8.6: a client could wait for so many bytes.
        if switched || parts.status == StatusCode::NO_CONTENT {
            parts.headers.remove(header::CONTENT_LENGTH);
        }
        mark(&mut parts.headers, place.generation());
        if switched {
            return tunnel::respond(parts, exchange);
        }
        exchange.is_sse = !is_head && is_event_stream(&parts.headers);
        let relay = if exchange.is_sse && is_readable(&parts.headers) {
            if self.movable && parts.status == StatusCode::OK {
                // Another place may go on with it, or an event of ours end it.
                parts.headers.remove(header::CONTENT_LENGTH);
            }
            let comments = self.proxy.shared.settings.comments;
            Relay::of_events(source, exchange, Box::new(self), comments)
        } else {
            self.body.forget();
            if exchange.is_sse {
                exchange.passes_encoded();
            }
            if let (Some(endpoint), Some(_)) = (source.endpoint(), self.first_event_deadline()) {
                endpoint.succeeded(Instant::now());
            }
            Relay::of_bytes(source, exchange, is_head)
        };
        Response::from_parts(parts, SplitBody::relay(relay))
    }
}

fn mark(headers: &mut HeaderMap, generation: Generation) {
    headers.insert(GENERATION, HeaderValue::from_static(generation.as_str()));
}

/// Ends an exchange with an answer of the proxy itself.
pub fn refuse(mut exchange: Exchange, error: &Error) -> Response<SplitBody> {
    if let Some(cause) = error.reject() {
        exchange.rejected(cause);
    }
    exchange.refused(error.status());
    exchange.because(error.for_log());
    exchange.ended(End::Eof);
    let mut response = error.answer(exchange.api()).map(SplitBody::own);
    mark(response.headers_mut(), exchange.answering());
    response
}
