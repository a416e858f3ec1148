//! Makes the attempts of one exchange: tries one target after another until one responds or none is left.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue, Response, StatusCode};

use super::backend::{OldBackend, Proxy};
use super::classify::{cause_of, read_not_found};
use super::continuing::{KeptHead, Resume, Source};
use super::error::{Error, Failures};
use super::exchange::Exchange;
use crate::error_chain::error_chain;
use crate::failover::{Attempted, Cause, Target, next_target};
use crate::request_body::{Fault, RequestBody};
use crate::snapshot::Snapshot;
use crate::telemetry::trace::TRACEPARENT;
use crate::transport::deadline;
use crate::upstream::{self, FailFast, Head, Outgoing, SendOptions, UpstreamBody};

/// Everything needed to make another attempt.
pub struct Attempts<O> {
    pub proxy: Proxy<O>,
    pub snapshot: Arc<Snapshot>,
    pub head: Arc<Head>,
    pub body: RequestBody,
    /// The guard header, added to requests to new or to sibling pods.
    pub guard: Option<(HeaderName, HeaderValue)>,
    pub target: Target,
    pub attempted: Attempted,
    /// Whether a failed attempt may be retried on another target. False for requests that are not split.
    pub retryable: bool,
    /// Attempt the target even if all its endpoints are ejected, because the request cannot move, for example because the retry
    /// budget denied it.
    pub must_attempt: bool,
    /// When the current attempt began, minus the time for which its predecessors waited for the request body.
    pub started: Instant,
    pub failures: Failures,
}

/// A response and the target that sent it.
pub type TargetResponse = (Target, Response<UpstreamBody>);

/// How an attempt failed, with the response if there was one.
struct FailedAttempt {
    cause: Cause,
    answer: Option<Response<UpstreamBody>>,
    /// Nothing was sent, because all endpoints of the target are ejected.
    not_attempted: bool,
    /// Nothing was sent, because the request cannot be sent to the server. Another target is not tried.
    refused: Option<Error>,
}

impl FailedAttempt {
    const fn without_answer(cause: Cause) -> Self {
        Self {
            cause,
            answer: None,
            not_attempted: false,
            refused: None,
        }
    }
}

/// The result of a retry, with everything needed to continue.
pub struct Retried {
    pub attempts: Box<dyn Retry>,
    pub exchange: Exchange,
    pub answer: Result<TargetResponse, Error>,
}

/// A retry that runs after the client has received a response head.
pub type Retrying = Pin<Box<dyn Future<Output = Retried> + Send>>;

/// The attempts of an exchange, independent of the type of the old backend.
pub trait Retry: Send {
    /// The target to retry on, if any. Spends from the retry budget.
    fn next_target(&mut self, cause: Cause) -> Option<Target>;
    /// Like [`Retry::next_target`], for a client that already has a response head.
    fn next_target_after_head(&mut self, cause: Cause) -> Option<Target>;
    /// Retries on `target`, as returned by [`Retry::next_target`] or [`Retry::next_target_after_head`].
    fn retry(self: Box<Self>, exchange: Exchange, target: Target, cause: Cause) -> Retrying;
    /// When the current attempt must have produced content. It is later while the client has yet to send the request body.
    fn first_event_deadline(&self) -> Option<Instant>;
    fn snapshot(&self) -> &Snapshot;
    /// Commits the exchange: no further retry is possible. Returns what is needed to continue the stream, if the plan and the
    /// memory budget permit it. Otherwise the kept request body is released.
    fn commit(self: Box<Self>, keep: bool) -> Option<Box<dyn Resume>>;
}

impl<O: OldBackend> Retry for Attempts<O> {
    fn next_target(&mut self, cause: Cause) -> Option<Target> {
        if !self.retryable || self.body.fault().is_some() {
            return None;
        }
        let attempted = self.attempted.and(self.target);
        let target = next_target(
            &self.snapshot.failover_policy(),
            attempted,
            self.target,
            cause,
        )?;
        self.body.for_retry()?;
        if !self.may_resend(cause) {
            return None;
        }
        // Every move spends from the budget, even if nothing was sent: it adds load to the other generation.
        self.proxy
            .context
            .may_retry(&self.snapshot)
            .then_some(target)
    }

    fn next_target_after_head(&mut self, cause: Cause) -> Option<Target> {
        // RFC 9110 §10.1.1: a client that receives a final status instead of 100 may never send the body that another
        // target would wait for.
        let lacks_body = self.head.expects_continue && self.body.is_untouched();
        if lacks_body {
            return None;
        }
        self.next_target(cause)
    }

    fn retry(
        mut self: Box<Self>,
        mut exchange: Exchange,
        target: Target,
        cause: Cause,
    ) -> Retrying {
        Box::pin(async move {
            self.switch_target(&mut exchange, target, cause);
            let answer = self.run(&mut exchange).await;
            Retried {
                attempts: self,
                exchange,
                answer,
            }
        })
    }

    fn first_event_deadline(&self) -> Option<Instant> {
        let at = self.deadline()?;
        Some(self.body.awaited().extend(at, Instant::now()))
    }

    fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    fn commit(mut self: Box<Self>, keep: bool) -> Option<Box<dyn Resume>> {
        if !keep || !self.retryable {
            self.body.forget();
            return None;
        }
        Some(Box::new(Source {
            head: KeptHead::of(&self.head),
            proxy: self.proxy,
            charge: self.body.settle(),
            body: self.body,
            target: self.target,
        }))
    }
}

impl<O: OldBackend> Attempts<O> {
    fn limit(&self) -> Option<Duration> {
        let limit = self.snapshot.plan.failover.first_event_timeout;
        limit.filter(|_| self.retryable)
    }

    /// The deadline for the first event, without the time in which the request body is awaited.
    fn deadline(&self) -> Option<Instant> {
        self.limit().map(|limit| self.started + limit)
    }

    fn switch_target(&mut self, exchange: &mut Exchange, target: Target, cause: Cause) {
        self.attempted = self.attempted.and(self.target);
        self.target = target;
        self.must_attempt = false;
        self.started = Instant::now() - self.body.awaited().total;
        if let Some(traceparent) = exchange.retried(target.generation(), cause) {
            let head = Arc::make_mut(&mut self.head);
            head.headers.insert(TRACEPARENT, traceparent);
        }
        tracing::debug!(?target, cause = cause.as_str(), "starting another attempt");
    }

    /// Makes attempts until there is a response to relay.
    ///
    /// # Errors
    /// No target responded, or the request body failed.
    pub async fn run(&mut self, exchange: &mut Exchange) -> Result<TargetResponse, Error> {
        let mut refusal: Option<TargetResponse> = None;
        loop {
            let failure = match self.attempt().await {
                // The common case skips the async call, which would move the response through its future.
                Ok(response) if !self.retryable || response.status().is_success() => {
                    return Ok((self.target, response));
                }
                Ok(response) => match self.classify_response(response).await {
                    Ok(response) => return Ok((self.target, response)),
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            match self.body.fault() {
                Some(Fault::TooLarge) => {
                    return Err(Error::BodyTooLarge(self.proxy.context.settings.max_body));
                }
                Some(Fault::TooSlow) => return Err(Error::BodyTimeout),
                Some(Fault::NoMemory) => return Err(Error::NoMemory),
                Some(Fault::Broken) => return Err(Error::RequestBody),
                Some(Fault::Gone) => return Err(Error::ClientGone),
                None => {}
            }
            if let Some(error) = failure.refused {
                return Err(error);
            }
            let cause = failure.cause;
            let was_tried = !failure.not_attempted;
            let answer = failure.answer.map(|answer| (self.target, answer));
            if let Some(target) = Retry::next_target(self, cause) {
                refusal = answer.or(refusal);
                self.switch_target(exchange, target, cause);
                continue;
            }
            if !was_tried && !self.must_attempt {
                self.must_attempt = true;
                continue;
            }
            exchange.not_recovered();
            exchange.attempt_failed(cause);
            return answer.or(refusal).ok_or_else(|| Error::Upstream {
                failures: std::mem::take(&mut self.failures),
                status: match cause {
                    Cause::Deadline => StatusCode::GATEWAY_TIMEOUT,
                    Cause::Local | Cause::LocalPorts => StatusCode::SERVICE_UNAVAILABLE,
                    _ => StatusCode::BAD_GATEWAY,
                },
            });
        }
    }

    async fn attempt(&mut self) -> Result<Response<UpstreamBody>, FailedAttempt> {
        let error = match self.send().await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        let cause = cause_of(&error);
        self.record_failure_as(error.client_message(), &error_chain(&error));
        Err(FailedAttempt {
            not_attempted: matches!(error, upstream::Error::Ejected),
            refused: match error {
                upstream::Error::RequestHeadTooLarge(limit) => Some(Error::HeadTooLarge(limit)),
                upstream::Error::NoUpgrade => Some(Error::NoUpgrade),
                _ => None,
            },
            ..FailedAttempt::without_answer(cause)
        })
    }

    /// Whether the body may be sent again. One that is complete in memory may be longer than the plan allows.
    fn may_resend(&self, cause: Cause) -> bool {
        let most = self.snapshot.plan.failover.max_replay_bytes;
        let is_unsent = matches!(cause, Cause::Connect | Cause::Local | Cause::LocalPorts);
        is_unsent || self.body.as_whole().is_none_or(|body| body.len() <= most)
    }

    async fn send(&self) -> Result<Response<UpstreamBody>, upstream::Error> {
        let body = self.body.for_retry().unwrap_or(RequestBody::empty());
        let extra = self.guard.as_ref().filter(|_| self.target != Target::Old);
        let outgoing = Outgoing {
            head: &self.head,
            extra,
            memory: &self.proxy.context.memory,
        };
        let options = SendOptions {
            fail_fast: self.fail_fast(),
            deadline: self.deadline(),
            was_sent: self.attempted != Attempted::default(),
        };
        let sent = self
            .proxy
            .send_to(self.target, &self.snapshot, outgoing, body, options);
        sent.await
    }

    /// Whether to skip a pool whose endpoints are all ejected. Only if there is another target. If that target is new,
    /// only if the endpoints are unreachable or do not answer: otherwise a client that provokes errors from old could
    /// raise new's share for other clients.
    fn fail_fast(&self) -> FailFast {
        if !self.retryable || self.must_attempt {
            return FailFast::Never;
        }
        let attempted = self.attempted.and(self.target);
        match next_target(
            &self.snapshot.failover_policy(),
            attempted,
            self.target,
            Cause::Connect,
        ) {
            None => FailFast::Never,
            Some(Target::New) => FailFast::IfGone,
            Some(Target::Old | Target::Peers) => FailFast::IfEjected,
        }
    }

    /// Decides whether to relay a response or to treat it as a failed attempt.
    async fn classify_response(
        &mut self,
        response: Response<UpstreamBody>,
    ) -> Result<Response<UpstreamBody>, FailedAttempt> {
        let status = response.status();
        let (cause, response) = match status {
            StatusCode::NOT_FOUND => {
                let memory = &self.proxy.context.memory;
                let reading = Box::pin(read_not_found(response, memory));
                let awaited = || self.body.awaited();
                let read = match self.deadline() {
                    None => reading.await,
                    Some(at) => deadline::timeout_excluding(at, awaited, reading)
                        .await
                        .unwrap_or(Err(Cause::Deadline)),
                };
                read.map_err(|cause| {
                    self.record_failure("ended a 404 early");
                    FailedAttempt::without_answer(cause)
                })?
            }
            _ => (Cause::of_status(status.as_u16()), response),
        };
        match cause {
            None => Ok(response),
            Some(cause) => {
                self.record_failure(&format!("answered {status}"));
                Err(FailedAttempt {
                    answer: Some(response),
                    ..FailedAttempt::without_answer(cause)
                })
            }
        }
    }

    /// Records why the current target failed, as text that is safe for both the client and the log.
    fn record_failure(&mut self, what: &str) {
        self.record_failure_as(what, what);
    }

    fn record_failure_as(&mut self, for_client: &str, for_log: &str) {
        self.failures.add(name(self.target), for_client, for_log);
    }
}

/// The name of a target in texts about failures.
pub const fn name(target: Target) -> &'static str {
    match target {
        Target::Old => "old",
        Target::New => "new",
        Target::Peers => "old (sibling pods)",
    }
}
