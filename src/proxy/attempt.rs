//! The attempts of one exchange: one target after the other, until one answers or none is left.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue, Response, StatusCode};

use super::backend::{OldBackend, Proxy};
use super::error::{Error, Failures};
use super::exchange::Exchange;
use crate::error_chain::error_chain;
use crate::failover::{Attempted, Cause, Target, next_target};
use crate::memory::{Budget, Buffer, Gathered, Purpose, gather};
use crate::request_body::{Fault, RequestBody};
use crate::snapshot::Snapshot;
use crate::telemetry::trace::TRACEPARENT;
use crate::transport::deadline;
use crate::upstream::{self, FailFast, Head, Outgoing, Terms, UpstreamBody};

/// Most bytes of a 404 that are read to find out what it is about.
const MAX_NOT_FOUND: usize = 16 * 1024;

/// What it takes to make another attempt.
pub struct Attempts<O> {
    pub proxy: Proxy<O>,
    pub snapshot: Arc<Snapshot>,
    pub head: Arc<Head>,
    pub body: RequestBody,
    /// Marks what is forwarded to new or to sibling pods.
    pub guard: Option<(HeaderName, HeaderValue)>,
    pub target: Target,
    pub attempted: Attempted,
    /// May a failure move it to another target? Not what belongs to old alone.
    pub retryable: bool,
    /// It may not move without an attempt: the retry budget did not allow it.
    pub must_attempt: bool,
    /// When the present attempt began.
    pub started: Instant,
    pub failures: Failures,
}

/// An answer, and the target it came from.
pub type Answer = (Target, Response<UpstreamBody>);

/// How an attempt failed, with the answer if there was one.
struct Failure {
    cause: Cause,
    answer: Option<Response<UpstreamBody>>,
    /// The target was left not_attempted, since all of it is ejected.
    not_attempted: bool,
}

impl Failure {
    const fn without_answer(cause: Cause) -> Self {
        Self {
            cause,
            answer: None,
            not_attempted: false,
        }
    }
}

/// What another attempt came to, with everything to go on with.
pub struct Retried {
    pub attempts: Box<dyn Retry>,
    pub exchange: Exchange,
    pub answer: Result<Answer, Error>,
}

/// The future of another attempt, made while the client already has a head.
pub type Retrying = Pin<Box<dyn Future<Output = Retried> + Send>>;

/// The attempts of an exchange, whatever its old side is.
pub trait Retry: Send {
    /// Where to go after a failure, if anywhere; takes it out of the retry budget.
    fn next_target(&mut self, cause: Cause) -> Option<Target>;
    /// The same for a client that has the head of an answer already.
    fn next_target_after_head(&mut self, cause: Cause) -> Option<Target>;
    /// Attempts `target`, after a failure for which [`Retry::next_target`] named it.
    fn retry(self: Box<Self>, exchange: Exchange, target: Target, cause: Cause) -> Retrying;
    /// When the present attempt must have shown content.
    fn first_event_deadline(&self) -> Option<Instant>;
    fn snapshot(&self) -> &Snapshot;
    /// The exchange is committed: nothing will be sent again.
    fn commit(self: Box<Self>);
}

impl<O: OldBackend> Retry for Attempts<O> {
    fn next_target(&mut self, cause: Cause) -> Option<Target> {
        if !self.retryable || self.body.fault().is_some() {
            return None;
        }
        let attempted = self.attempted.and(self.target);
        let target = next_target(&self.snapshot.rules(), attempted, self.target, cause)?;
        self.body.again()?;
        // Every move is charged, also where nothing was sent: it adds load to the other generation.
        self.proxy
            .context
            .may_retry(&self.snapshot)
            .then_some(target)
    }

    fn next_target_after_head(&mut self, cause: Cause) -> Option<Target> {
        // RFC 9110 §10.1.1: a client that gets a final status code instead of 100 may never send the body that another target
        // would wait for.
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
        self.limit().map(|limit| self.started + limit)
    }

    fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    fn commit(self: Box<Self>) {
        self.body.forget();
    }
}

impl<O: OldBackend> Attempts<O> {
    fn limit(&self) -> Option<Duration> {
        let limit = self.snapshot.plan.failover.first_event_timeout;
        limit.filter(|_| self.retryable)
    }

    fn switch_target(&mut self, exchange: &mut Exchange, target: Target, cause: Cause) {
        self.attempted = self.attempted.and(self.target);
        self.target = target;
        self.must_attempt = false;
        self.started = Instant::now();
        if let Some(traceparent) = exchange.retried(target.generation(), cause) {
            let head = Arc::make_mut(&mut self.head);
            head.headers.insert(TRACEPARENT, traceparent);
        }
        tracing::debug!(?target, cause = cause.as_str(), "another attempt");
    }

    /// Makes attempts until there is an answer to pass on.
    ///
    /// # Errors
    /// When no target gave any.
    pub async fn run(&mut self, exchange: &mut Exchange) -> Result<Answer, Error> {
        let mut refusal: Option<Answer> = None;
        loop {
            let failure = match self.attempt().await {
                // No future for what nearly always is: the answer would be moved through it.
                Ok(response) if !self.retryable || response.status().is_success() => {
                    return Ok((self.target, response));
                }
                Ok(response) => match self.judge(response).await {
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
                None => {}
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

    async fn attempt(&mut self) -> Result<Response<UpstreamBody>, Failure> {
        let error = match self.send().await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        let cause = match &error {
            upstream::Error::Exhausted {
                here_only: true, ..
            } => Cause::LocalPorts,
            upstream::Error::Exhausted { .. } | upstream::Error::NoMemory => Cause::Local,
            error if error.nothing_sent() => Cause::Connect,
            upstream::Error::HeadTimeout(_) | upstream::Error::Deadline => Cause::Deadline,
            _ => Cause::Broken,
        };
        self.tell(error.in_general(), &error_chain(&error));
        Err(Failure {
            not_attempted: matches!(error, upstream::Error::Ejected),
            ..Failure::without_answer(cause)
        })
    }

    async fn send(&self) -> Result<Response<UpstreamBody>, upstream::Error> {
        let body = self.body.again().unwrap_or(RequestBody::empty());
        let extra = self.guard.as_ref().filter(|_| self.target != Target::Old);
        let outgoing = Outgoing {
            head: &self.head,
            extra,
            memory: &self.proxy.context.memory,
        };
        let terms = Terms {
            fail_fast: self.fail_fast(),
            deadline: self.first_event_deadline(),
            was_sent: self.attempted != Attempted::default(),
        };
        let sent = self
            .proxy
            .send_to(self.target, &self.snapshot, outgoing, body, terms);
        sent.await
    }

    /// Is it of use to leave a pool not_attempted whose endpoints are all ejected? Only if there is somewhere else to go; and new
    /// gets what is old's only where old does not answer at all, lest a client who makes old answer with errors raises the
    /// split for others.
    fn fail_fast(&self) -> FailFast {
        if !self.retryable || self.must_attempt {
            return FailFast::Never;
        }
        let attempted = self.attempted.and(self.target);
        match next_target(
            &self.snapshot.rules(),
            attempted,
            self.target,
            Cause::Connect,
        ) {
            None => FailFast::Never,
            Some(Target::New) => FailFast::IfGone,
            Some(Target::Old | Target::Peers) => FailFast::IfEjected,
        }
    }

    /// Is the answer one to pass on, or a reason to try elsewhere?
    async fn judge(
        &mut self,
        response: Response<UpstreamBody>,
    ) -> Result<Response<UpstreamBody>, Failure> {
        let status = response.status();
        let (cause, response) = match status {
            StatusCode::NOT_FOUND => {
                let memory = &self.proxy.context.memory;
                let reading = Box::pin(read_not_found(response, memory));
                let read = match self.first_event_deadline() {
                    None => reading.await,
                    Some(deadline) => deadline::timeout_at(deadline, reading)
                        .await
                        .unwrap_or(Err(Cause::Deadline)),
                };
                read.map_err(|cause| {
                    self.tell_all("broke off a 404");
                    Failure::without_answer(cause)
                })?
            }
            _ => (Cause::of_status(status.as_u16()), response),
        };
        match cause {
            None => Ok(response),
            Some(cause) => {
                self.tell_all(&format!("answered {status}"));
                Err(Failure {
                    answer: Some(response),
                    ..Failure::without_answer(cause)
                })
            }
        }
    }

    /// Notes why the present target failed, in words that may go to the client as well.
    fn tell_all(&mut self, what: &str) {
        self.tell(what, what);
    }

    fn tell(&mut self, for_client: &str, for_log: &str) {
        let target = match self.target {
            Target::Old => "old",
            Target::New => "new",
            Target::Peers => "old (sibling pods)",
        };
        self.failures.add(target, for_client, for_log);
    }
}

/// Reads a 404's body as far as it takes to know what it is about.
async fn read_not_found(
    response: Response<UpstreamBody>,
    memory: &Arc<Budget>,
) -> Result<(Option<Cause>, Response<UpstreamBody>), Cause> {
    let (parts, mut body) = response.into_parts();
    let buffer = Buffer::new(memory, Purpose::Answer, None);
    let (cause, body) = match gather(&mut body, buffer, MAX_NOT_FOUND).await {
        Gathered::Whole(read, trailers) => {
            let cause = Cause::of_not_found(&read);
            (cause, UpstreamBody::read(read, trailers))
        }
        // It is passed on with the rest.
        Gathered::Part(read, next) => {
            let rest = UpstreamBody::Begun(next, Box::new(body));
            (None, UpstreamBody::Begun(read, Box::new(rest)))
        }
        Gathered::Broken(..) => return Err(Cause::Broken),
    };
    Ok((cause, Response::from_parts(parts, body)))
}
