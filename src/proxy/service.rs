//! Handles one request: one snapshot, one assignment, its attempts, and the relayed response.

use std::sync::Arc;
use std::time::Instant;

use http::header::{HeaderMap, HeaderValue};
use http::{Method, Request, Response, Version};
use http_body::Body;

use super::attempt::Attempts;
use super::backend::{OldBackend, Proxy};
use super::body::SplitBody;
use super::context::Permit;
use super::error::{Error, Failures};
use super::exchange::Exchange;
use super::head::{self, Client};
use super::rejection::{Rejected, Unassigned};
use super::respond::refuse;
use super::route::Route;
use super::{attributes, models};
use crate::continuation::Sent;
use crate::failover::{Attempted, Cause, Target, next_target};
use crate::guard::{GUARD, GuardCheck};
use crate::http1::NameFilter;
use crate::memory::Charge;
use crate::request_body::RequestBody;
use crate::snapshot::Snapshot;
use crate::split::{Assignment, Generation, Key, Reason, RequestAttributes};
use crate::sse::Api;
use crate::telemetry::Reject;
use crate::telemetry::strata::size_class;
use crate::upstream::PROBE_HEADER;

/// Largest body that is read to look for an affinity field, in bytes.
const MAX_PEEK: usize = 1024 * 1024;

impl<O: OldBackend> Proxy<O> {
    /// Handles one request. Every failure becomes a response. `permit` is set if the request has already been admitted.
    // A future is moved as a whole and is as large as its largest branch, so decisions are not async, and rare branches are
    // boxed.
    #[expect(
        clippy::manual_async_fn,
        reason = "the future of an `async fn` stores its arguments twice"
    )]
    pub fn handle(
        self,
        request: Request<RequestBody>,
        client: Option<Arc<Client>>,
        permit: Option<Permit>,
    ) -> impl Future<Output = Response<SplitBody>> + Send {
        async move {
            let mut request = request;
            let snapshot = self.context.snapshots.load();
            let routes = &self.context.settings.routes;
            let (method, path) = (request.method(), request.uri().path());
            let route = routes.of(method, path, request.headers());
            let names = NameFilter::of(request.headers());
            let entered = self.enter(&snapshot, &request, names, permit);
            let (guard, permit, charge) = match entered {
                Ok(entered) => entered,
                Err(error) => return self.reject(&request, client.as_deref(), route.api(), &error),
            };
            let now = Instant::now();
            let is_probe = is_probe(request.headers_mut(), names, guard.is_some());
            if route.is_client_use() && !is_probe {
                self.context.metrics.used(now);
            }
            let mut started = now;
            let mut key = None;
            if let Route::Inference(_) | Route::Upgrade = route {
                let affinity = &snapshot.plan.affinity;
                key = attributes::header_key(request.headers(), names, affinity);
                if key.is_none() && !affinity.body_fields.is_empty() {
                    let client = (!is_probe).then_some(client.as_deref());
                    let read = self.body_key(&snapshot, &mut request, route.api(), client);
                    key = match Box::pin(read).await {
                        Ok(key) => key,
                        Err(rejected) => return rejected,
                    };
                    // Time spent waiting for the client's body does not count against the first attempt.
                    started = Instant::now();
                }
            }
            let assignment = match route {
                Route::Inference(_) | Route::Upgrade => self.assignment(
                    &snapshot,
                    request.headers(),
                    names,
                    guard.is_none(),
                    key,
                    now,
                ),
                Route::Models | Route::Model => unsplit(&snapshot, guard.is_some(), Reason::Models),
                Route::Unsplit => unsplit(&snapshot, guard.is_some(), Reason::Local),
                Route::Local => unsplit(&snapshot, false, Reason::Local),
            };
            let is_head = request.method() == Method::HEAD;
            let upgrade = request.version() == Version::HTTP_11
                && head::asks_to_upgrade(request.headers(), names);
            let splits = matches!(route, Route::Inference(_) | Route::Upgrade);
            // Do not retry requests that are not split, or that another proxy of this update has forwarded here.
            let retryable = splits && guard.is_some();
            let target = Target::of(assignment.generation);
            if retryable {
                self.keep(&snapshot, request.body(), target, route.api());
            }
            let size = size_class(request.body().size_hint().exact());
            let (parts, body) = request.into_parts();
            let (mut head, named) = head::outgoing(parts, names, client.as_deref(), upgrade);
            body.hide(named);
            if let Route::Inference(_) = route {
                head::request_identity(&mut head.headers, names);
            }
            let mut exchange = Exchange::open(
                permit,
                assignment,
                route.api(),
                &mut head,
                names,
                client,
                now,
            );
            exchange.head_charge = charge;
            exchange.is_probe = is_probe;
            let lifecycle = self.context.lifecycle.clone();
            let failover = &snapshot.plan.failover;
            let fails_over = retryable && failover.enabled && failover.retry_budget_percent > 0;
            exchange.compare(size, key, fails_over, now);
            let mut attempts = Attempts {
                retryable,
                guard: guard.map(|value| (GUARD, value)),
                head: Arc::new(head),
                body,
                target,
                attempted: Attempted::default(),
                must_attempt: false,
                started,
                failures: Failures::default(),
                proxy: self,
                snapshot,
            };
            match route {
                Route::Models if attempts.sees_both() => {
                    Box::pin(models::union(attempts, exchange)).await
                }
                Route::Model if attempts.sees_both() => {
                    Box::pin(models::one(attempts, exchange)).await
                }
                _ => {
                    let ran = {
                        let run = std::pin::pin!(attempts.run(&mut exchange));
                        lifecycle.unless_ending(run).await
                    };
                    match ran {
                        Some(Ok((target, response))) => {
                            attempts.respond(exchange, target, response, is_head)
                        }
                        Some(Err(error)) => refuse(exchange, &error),
                        None => refuse(exchange, &Error::ShuttingDown),
                    }
                }
            }
        }
    }

    /// Responds to a request that is not admitted.
    fn reject(
        &self,
        request: &Request<RequestBody>,
        client: Option<&Client>,
        api: Api,
        error: &Error,
    ) -> Response<SplitBody> {
        if let Some(cause) = error.reject() {
            self.context.metrics.rejected(cause);
        }
        let rejected = Rejected {
            client,
            head: Some((request.method(), request.uri(), request.headers())),
            api,
            since: Instant::now(),
        };
        let mut response = error.answer(api);
        rejected.answered_with(&mut response, &error.to_string());
        response.map(SplitBody::own)
    }

    /// Admits a request, bounds its body, and returns the guard value to add if the request is forwarded. `None` means
    /// that it has already been forwarded and must be served here.
    fn enter(
        &self,
        snapshot: &Snapshot,
        request: &Request<RequestBody>,
        names: NameFilter,
        permit: Option<Permit>,
    ) -> Result<(Option<HeaderValue>, Permit, Charge), Error> {
        let settings = &self.context.settings;
        if request.body().size_hint().lower() > settings.max_body {
            return Err(Error::BodyTooLarge(settings.max_body));
        }
        request
            .body()
            .bound(settings.max_body, &self.context.memory);
        let guard = match snapshot.guard.check(request.headers(), names) {
            GuardCheck::Forward(value) => Some(value),
            GuardCheck::AlreadyForwarded => None,
            GuardCheck::Loop => return Err(Error::Loop),
        };
        let permit = match permit {
            Some(permit) => permit,
            None => self.context.admit()?,
        };
        let charge = head::charge(request, &self.context.memory).ok_or(Error::NoMemory)?;
        Ok((guard, permit, charge))
    }

    /// Keeps the body if the request could move to another target should `target` fail, or if its stream could be continued.
    fn keep(&self, snapshot: &Snapshot, body: &RequestBody, target: Target, api: Api) {
        let attempted = Attempted::default().and(target);
        let continues = snapshot.plan.failover.continuation.is_on() && Sent::is_for(api);
        if continues
            || next_target(
                &snapshot.failover_policy(),
                attempted,
                target,
                Cause::Connect,
            )
            .is_some()
        {
            let most = snapshot.plan.failover.max_replay_bytes;
            body.keep(most);
        }
    }

    /// The affinity key from a field of the body. Reads up to `MAX_PEEK` bytes of the body to find it. `client` is `None` for a
    /// request that is not a client's.
    ///
    /// # Errors
    /// The response, if the process ends before the bytes have arrived.
    async fn body_key(
        &self,
        snapshot: &Snapshot,
        request: &mut Request<RequestBody>,
        api: Api,
        client: Option<Option<&Client>>,
    ) -> Result<Option<Key>, Response<SplitBody>> {
        let context = &self.context;
        let _arriving = client.map(|_| context.arrives(true));
        let body = std::mem::replace(request.body_mut(), RequestBody::empty());
        let unassigned = client.map(|client| {
            let rejected = Rejected {
                client,
                head: Some((request.method(), request.uri(), request.headers())),
                api,
                since: Instant::now(),
            };
            Unassigned::new(rejected, &context.metrics)
        });
        let peek = std::pin::pin!(body.peek(MAX_PEEK, &context.memory));
        let peeked = context.lifecycle.unless_ending(peek).await;
        unassigned.into_iter().for_each(Unassigned::stays);
        let Some((body, whole)) = peeked else {
            context.metrics.rejected(Reject::ShuttingDown);
            return Err(self.reject(request, client.flatten(), api, &Error::ShuttingDown));
        };
        // The rest of the body is limited, and may be kept, like any other body.
        body.bound(context.settings.max_body, &context.memory);
        *request.body_mut() = body;
        Ok(whole.and_then(|whole| attributes::body_key(&whole, &snapshot.plan.affinity)))
    }

    fn assignment(
        &self,
        snapshot: &Snapshot,
        headers: &HeaderMap,
        names: NameFilter,
        guarded: bool,
        key: Option<Key>,
        now: Instant,
    ) -> Assignment {
        let plan = &snapshot.plan;
        let attributes = RequestAttributes {
            forced: attributes::forced(
                headers,
                names,
                self.context.settings.override_header.as_ref(),
            )
            // A draining old gets no requests, not even with an override: its workers may be gone.
            .filter(|wanted| *wanted == Generation::New || snapshot.may_reach_old())
            .filter(|_| snapshot.new.is_some()),
            guarded,
            pinned: attributes::is_pinned(headers),
            key,
        };
        let assignment = snapshot.split.assign(&attributes);
        self.context
            .retries
            .earn(plan.failover.retry_budget_percent);
        if assignment.open_to_split() {
            let metrics = &self.context.metrics;
            let to_new = assignment.generation == Generation::New;
            metrics.window.count(metrics.second(now), to_new);
        }
        assignment
    }
}

/// Whether a request is a probe of another proxy. Clients do not know the guard, so they can hide requests neither from this
/// proxy nor from the next one: `enters_here`, the header is removed.
#[inline]
fn is_probe(headers: &mut HeaderMap, names: NameFilter, enters_here: bool) -> bool {
    let is_marked = names.contains(headers, &PROBE_HEADER);
    if is_marked && enters_here {
        headers.remove(&PROBE_HEADER);
    }
    is_marked && !enters_here
}

/// Assigns a request that is not split: to old, or to new if it may be forwarded and old drains, because old's workers may be
/// gone then.
fn unsplit(snapshot: &Snapshot, may_forward: bool, reason: Reason) -> Assignment {
    let has_left_old = may_forward && snapshot.new.is_some() && !snapshot.may_reach_old();
    Assignment {
        generation: match has_left_old {
            true => Generation::New,
            false => Generation::Old,
        },
        reason,
    }
}

impl<O: OldBackend> Attempts<O> {
    /// Whether to list the models of both generations. False if old drains, or if another proxy of this update forwarded the
    /// request.
    fn sees_both(&self) -> bool {
        let snapshot = &self.snapshot;
        let both_serve = !snapshot.plan.weights.is_all_old() && snapshot.may_reach_old();
        both_serve && self.guard.is_some()
    }
}
