//! The attempts of one exchange: one place after the other, until one answers or none is left.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;

use super::error::Error;
use super::exchange::Exchange;
use super::service::{OldSide, Proxy};
use crate::request_body::{Fault, RequestBody};
use crate::rescue::{Cause, Place, Tried, refuge};
use crate::snapshot::Snapshot;
use crate::telemetry::trace::TRACEPARENT;
use crate::transport::deadline;
use crate::upstream::{self, Head, Outgoing, UpstreamBody};

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
    /// When the present attempt began.
    pub started: Instant,
    pub story: String,
}

/// An answer, and the place it came from.
pub type Answer = (Place, Response<UpstreamBody>);

/// How an attempt failed, with the answer if there was one.
struct Failure {
    cause: Cause,
    answer: Option<Response<UpstreamBody>>,
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
        if !cause.nothing_sent() && !self.proxy.shared.may_retry(&self.world) {
            return None;
        }
        Some(place)
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
                Some(Fault::Broken) => return Err(Error::RequestBody),
                None => {}
            }
            let cause = failure.cause;
            let answer = failure.answer.map(|answer| (self.place, answer));
            if let Some(place) = Again::refuge(self, cause) {
                refusal = answer.or(refusal);
                self.go_to(exchange, place, cause);
                continue;
            }
            exchange.not_saved();
            return answer.or(refusal).ok_or_else(|| Error::Upstream {
                story: std::mem::take(&mut self.story),
                status: match cause {
                    Cause::Deadline => StatusCode::GATEWAY_TIMEOUT,
                    _ => StatusCode::BAD_GATEWAY,
                },
            });
        }
    }

    async fn attempt(&mut self) -> Result<Response<UpstreamBody>, Failure> {
        let sent = match self.limit() {
            None => Some(self.send().await),
            Some(limit) => Box::pin(deadline::timeout(limit, self.send())).await,
        };
        match sent {
            Some(Ok(response)) => Ok(response),
            Some(Err(error)) => {
                let cause = match &error {
                    upstream::Error::RequestBody(_) => Cause::Broken,
                    error if error.nothing_sent() => Cause::Connect,
                    upstream::Error::HeadTimeout(_) => Cause::Deadline,
                    _ => Cause::Broken,
                };
                self.tell(&upstream::story(&error));
                Err(Failure {
                    cause,
                    answer: None,
                })
            }
            None => {
                self.tell("no first event in time");
                Err(Failure {
                    cause: Cause::Deadline,
                    answer: None,
                })
            }
        }
    }

    async fn send(&self) -> Result<Response<UpstreamBody>, upstream::Error> {
        let body = self.body.again().unwrap_or(RequestBody::empty());
        let extra = self.guard.as_ref().filter(|_| self.place != Place::Old);
        let outgoing = Outgoing {
            head: &self.head,
            extra,
        };
        if self.place == Place::Old {
            let fail_fast = self.may_fail_fast();
            return self
                .proxy
                .old
                .send(&self.world, outgoing, body, fail_fast)
                .await;
        }
        match self.world.pool(self.place) {
            Some(pool) => pool.send(outgoing, body, self.may_fail_fast()).await,
            None => Err(upstream::Error::NoEndpoint),
        }
    }

    /// Is it of use to fail at once when the pool has no healthy endpoint? Only if there is somewhere else to go.
    fn may_fail_fast(&self) -> bool {
        let tried = self.tried.and(self.place);
        self.movable && refuge(&self.world.rules(), tried, self.place, Cause::Connect).is_some()
    }

    /// Is the answer one to pass on, or a reason to try elsewhere?
    async fn judge(
        &mut self,
        response: Response<UpstreamBody>,
    ) -> Result<Response<UpstreamBody>, Failure> {
        let status = response.status();
        let (cause, response) = match status {
            StatusCode::NOT_FOUND => {
                let reading = Box::pin(read_not_found(response));
                let read = match self.first_event_deadline() {
                    None => reading.await,
                    Some(deadline) => deadline::timeout_at(deadline, reading)
                        .await
                        .unwrap_or(Err(Cause::Deadline)),
                };
                read.map_err(|cause| {
                    self.tell("broke off a 404");
                    Failure {
                        cause,
                        answer: None,
                    }
                })?
            }
            _ => (Cause::of_status(status.as_u16()), response),
        };
        match cause {
            None => Ok(response),
            Some(cause) => {
                self.tell(&format!("answered {status}"));
                Err(Failure {
                    cause,
                    answer: Some(response),
                })
            }
        }
    }

    fn tell(&mut self, what: &str) {
        if !self.story.is_empty() {
            self.story.push_str("; ");
        }
        let place = match self.place {
            Place::Old => "old",
            Place::New => "new",
            Place::Peers => "old (sibling pods)",
        };
        self.story.push_str(place);
        self.story.push_str(": ");
        self.story.push_str(what);
    }
}

/// Reads a 404's body as far as it takes to know what it is about.
async fn read_not_found(
    response: Response<UpstreamBody>,
) -> Result<(Option<Cause>, Response<UpstreamBody>), Cause> {
    let (parts, mut body) = response.into_parts();
    let mut read = BytesMut::new();
    let whole = loop {
        if read.len() > MAX_NOT_FOUND {
            break false;
        }
        match body.frame().await {
            None => break true,
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    read.extend_from_slice(&data);
                }
            }
            Some(Err(_)) => return Err(Cause::Broken),
        }
    };
    let cause = whole.then(|| Cause::of_not_found(&read)).flatten();
    let body = match whole {
        true => UpstreamBody::Whole(read.freeze()),
        false => UpstreamBody::Begun(read.freeze(), Box::new(body)),
    };
    Ok((cause, Response::from_parts(parts, body)))
}
