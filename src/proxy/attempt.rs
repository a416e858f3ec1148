//! The attempts of one exchange: one place after the other, until one answers or none is left.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue, Response, StatusCode};

use super::backend::{OldSide, Proxy};
use super::error::{Error, Failures};
use super::exchange::Exchange;
use crate::memory::{Budget, Buffer, Gathered, Purpose, gather};
use crate::request_body::{Fault, RequestBody};
use crate::rescue::{Cause, Place, Tried, refuge};
use crate::snapshot::Snapshot;
use crate::telemetry::trace::TRACEPARENT;
use crate::transport::deadline;
use crate::upstream::{self, FailFast, Head, Outgoing, Terms, UpstreamBody};

/// Most bytes of a 404 that are read to find out what it is about.
const MAX_NOT_FOUND: usize = 16 * 1024;

/// What it takes to make another attempt.
pub struct Tries<O> {
    pub proxy: Proxy<O>,
    pub world: Arc<Snapshot>,
    pub head: Arc<Head>,
    pub body: RequestBody,
    /// Marks what is forwarded to new or to sibling pods.
    pub guard: Option<(HeaderName, HeaderValue)>,
    pub place: Place,
    pub tried: Tried,
    /// May a failure move it to another place? Not what belongs to old alone.
    pub movable: bool,
    /// It may not move without an attempt: the retry budget did not allow it.
    pub stays: bool,
    /// When the present attempt began.
    pub started: Instant,
    pub failures: Failures,
}

/// An answer, and the place it came from.
pub type Answer = (Place, Response<UpstreamBody>);

/// How an attempt failed, with the answer if there was one.
struct Failure {
    cause: Cause,
    answer: Option<Response<UpstreamBody>>,
    /// The place was left untried, since all of it is ejected.
    untried: bool,
}

impl Failure {
    const fn without_answer(cause: Cause) -> Self {
        Self {
            cause,
            answer: None,
            untried: false,
        }
    }
}

/// What another attempt came to, with everything to go on with.
pub struct Retried {
    pub tries: Box<dyn Again>,
    pub exchange: Exchange,
    pub answer: Result<Answer, Error>,
}

/// The future of another attempt, made while the client already has a head.
pub type Retrying = Pin<Box<dyn Future<Output = Retried> + Send>>;

/// The attempts of an exchange, whatever its old side is.
pub trait Again: Send {
    /// Where to go after a failure, if anywhere; takes it out of the retry budget.
    fn refuge(&mut self, cause: Cause) -> Option<Place>;
    /// The same for a client that has the head of an answer already.
    fn refuge_behind_head(&mut self, cause: Cause) -> Option<Place>;
    /// Tries `place`, after a failure for which [`Again::refuge`] named it.
    fn again(self: Box<Self>, exchange: Exchange, place: Place, cause: Cause) -> Retrying;
    /// When the present attempt must have shown content.
    fn first_event_deadline(&self) -> Option<Instant>;
    fn world(&self) -> &Snapshot;
    /// The exchange is committed: nothing will be sent again.
    fn commit(self: Box<Self>);
}

impl<O: OldSide> Again for Tries<O> {
    fn refuge(&mut self, cause: Cause) -> Option<Place> {
        if !self.movable || self.body.fault().is_some() {
            return None;
        }
        let tried = self.tried.and(self.place);
        let place = refuge(&self.world.rules(), tried, self.place, cause)?;
        self.body.again()?;
        // Every move is charged, also where nothing was sent: it adds load to the other generation.
        self.proxy.shared.may_retry(&self.world).then_some(place)
    }

    fn refuge_behind_head(&mut self, cause: Cause) -> Option<Place> {
        // RFC 9110 §10.1.1: a client that gets a final status code instead of 100 may never send the body that another place
        // would wait for.
        let lacks_body = self.head.expects_continue && self.body.is_untouched();
        if lacks_body {
            return None;
        }
        self.refuge(cause)
    }

    fn again(mut self: Box<Self>, mut exchange: Exchange, place: Place, cause: Cause) -> Retrying {
        Box::pin(async move {
            self.go_to(&mut exchange, place, cause);
            let answer = self.run(&mut exchange).await;
            Retried {
                tries: self,
                exchange,
                answer,
            }
        })
    }

    fn first_event_deadline(&self) -> Option<Instant> {
        self.limit().map(|limit| self.started + limit)
    }

    fn world(&self) -> &Snapshot {
        &self.world
    }

    fn commit(self: Box<Self>) {
        self.body.forget();
    }
}

impl<O: OldSide> Tries<O> {
    fn limit(&self) -> Option<Duration> {
        let limit = self.world.plan.failover.first_event_timeout;
        limit.filter(|_| self.movable)
    }

    fn go_to(&mut self, exchange: &mut Exchange, place: Place, cause: Cause) {
        self.tried = self.tried.and(self.place);
        self.place = place;
        self.stays = false;
        self.started = Instant::now();
        if let Some(traceparent) = exchange.moved(place.generation(), cause) {
            let head = Arc::make_mut(&mut self.head);
            head.headers.insert(TRACEPARENT, traceparent);
        }
        tracing::debug!(?place, cause = cause.as_str(), "another attempt");
    }

    /// Makes attempts until there is an answer to pass on.
    ///
    /// # Errors
    /// When no place gave any.
    pub async fn run(&mut self, exchange: &mut Exchange) -> Result<Answer, Error> {
        let mut refusal: Option<Answer> = None;
        loop {
            let failure = match self.attempt().await {
                // No future for what nearly always is: the answer would be moved through it.
                Ok(response) if !self.movable || response.status().is_success() => {
                    return Ok((self.place, response));
                }
                Ok(response) => match self.judge(response).await {
                    Ok(response) => return Ok((self.place, response)),
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            match self.body.fault() {
                Some(Fault::TooLarge) => {
                    return Err(Error::BodyTooLarge(self.proxy.shared.settings.max_body));
                }
                Some(Fault::TooSlow) => return Err(Error::BodyTimeout),
                Some(Fault::NoMemory) => return Err(Error::NoMemory),
                Some(Fault::Broken) => return Err(Error::RequestBody),
                None => {}
            }
            let cause = failure.cause;
            let was_tried = !failure.untried;
            let answer = failure.answer.map(|answer| (self.place, answer));
            if let Some(place) = Again::refuge(self, cause) {
                refusal = answer.or(refusal);
                self.go_to(exchange, place, cause);
                continue;
            }
            if !was_tried && !self.stays {
                self.stays = true;
                continue;
            }
            exchange.not_saved();
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
        self.tell(error.in_general(), &upstream::story(&error));
        Err(Failure {
            untried: matches!(error, upstream::Error::Ejected),
            ..Failure::without_answer(cause)
        })
    }

    async fn send(&self) -> Result<Response<UpstreamBody>, upstream::Error> {
        let body = self.body.again().unwrap_or(RequestBody::empty());
        let extra = self.guard.as_ref().filter(|_| self.place != Place::Old);
        let outgoing = Outgoing {
            head: &self.head,
            extra,
            memory: &self.proxy.shared.memory,
        };
        let terms = Terms {
            fail_fast: self.fail_fast(),
            deadline: self.first_event_deadline(),
            was_sent: self.tried != Tried::default(),
        };
        let sent = self
            .proxy
            .send_to(self.place, &self.world, outgoing, body, terms);
        sent.await
    }

    /// Is it of use to leave a pool untried whose endpoints are all ejected? Only if there is somewhere else to go; and new
    /// gets what is old's only where old does not answer at all, lest a client who makes old answer with errors raises the
    /// split for others.
    fn fail_fast(&self) -> FailFast {
        if !self.movable || self.stays {
            return FailFast::Never;
        }
        let tried = self.tried.and(self.place);
        match refuge(&self.world.rules(), tried, self.place, Cause::Connect) {
            None => FailFast::Never,
            Some(Place::New) => FailFast::IfGone,
            Some(Place::Old | Place::Peers) => FailFast::IfEjected,
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
                let memory = &self.proxy.shared.memory;
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

    /// Notes why the present place failed, in words that may go to the client as well.
    fn tell_all(&mut self, what: &str) {
        self.tell(what, what);
    }

    fn tell(&mut self, for_client: &str, for_log: &str) {
        let place = match self.place {
            Place::Old => "old",
            Place::New => "new",
            Place::Peers => "old (sibling pods)",
        };
        self.failures.add(place, for_client, for_log);
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
