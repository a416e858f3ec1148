//! Reads the beginning of another server's response, up to the event that continues the text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;

use crate::continuation::{ContinuationReason, JoinAction, Resumption, Sent};
use crate::failover::Cause;
use crate::http1::{NameFilter, NamedFields};
use crate::memory::{Budget, Charge, FREE, Purpose, cost};
use crate::proxy::classify::read_not_found;
use crate::proxy::head::remove_hop_by_hop;
use crate::proxy::media::{is_event_stream, is_readable};
use crate::sse::{Api, Decoder, Event, Tail, tail_meaning};
use crate::transport::deadline;
use crate::upstream::{EndpointFailure, UpstreamBody};

/// Maximum length of an incomplete event before the first content, in bytes.
const MAX_EVENT: usize = 256 * 1024;

/// Maximum length of the skipped part of a response before its first content, in bytes, without the model's reasoning: comments
/// and events without content. A server that sends more does not continue the stream.
const MAX_SKIPPED: usize = 1024 * 1024;

/// Why a server does not continue the stream.
pub enum NotContinued {
    /// Another server may.
    TryNext(Cause),
    /// As above. It sends nothing, and may just be slow.
    NoResponse,
    /// No other server would.
    GiveUp(ContinuationReason),
}

impl NotContinued {
    /// Why the attempt failed.
    pub const fn cause(&self) -> Cause {
        match self {
            Self::TryNext(cause) => *cause,
            Self::NoResponse => Cause::Deadline,
            Self::GiveUp(ContinuationReason::NoMemory) => Cause::Local,
            Self::GiveUp(_) => Cause::NoContinuation,
        }
    }

    /// The failure of the endpoint after it responded. The status of a response has already been counted, and a response that is
    /// not a continuation says nothing about other requests.
    pub const fn endpoint_failure(&self) -> Option<EndpointFailure> {
        match self {
            Self::TryNext(Cause::Broken | Cause::ErrorEvent) => Some(EndpointFailure::Answer),
            Self::TryNext(Cause::Deadline) => Some(EndpointFailure::Timeout),
            _ => None,
        }
    }
}

/// It responds with something else.
const NOT_A_CONTINUATION: NotContinued = NotContinued::TryNext(Cause::NoContinuation);

/// A response that continues the stream.
pub struct Continuation {
    pub first: Bytes,
    pub body: UpstreamBody,
    pub hidden: NamedFields,
    pub skipped: u64,
}

/// Reads a response up to the event that continues the stream. `silence` is the deadline of the next token, and how long each
/// further one may take.
pub async fn begin(
    api: Api,
    response: Response<UpstreamBody>,
    sent: &Sent,
    resumption: Resumption,
    memory: &Arc<Budget>,
    mut silence: Option<(Instant, Duration)>,
) -> Result<Continuation, NotContinued> {
    if response.status() != StatusCode::OK {
        let cause = within(silence, cause_of_status(response, memory)).await?;
        return Err(NotContinued::TryNext(cause));
    }
    let (mut parts, mut body) = response.into_parts();
    if !(is_event_stream(&parts.headers) && is_readable(&parts.headers)) {
        return Err(NOT_A_CONTINUATION);
    }
    let names = NameFilter::of(&parts.headers);
    let hidden = remove_hop_by_hop(&mut parts.headers, names);
    let mut decoder = Decoder::new(MAX_EVENT);
    // The beginning of an incomplete event.
    let mut partial: Vec<u8> = Vec::new();
    let mut charge = Charge::default();
    let mut skipped = 0;
    let mut left = MAX_SKIPPED;
    loop {
        body.read_little(memory.is_tight());
        let frame = within(silence, body.frame()).await?;
        let Some(Ok(Ok(data))) = frame.map(|frame| frame.map(Frame::into_data)) else {
            return Err(NotContinued::TryNext(Cause::Broken));
        };
        // Everything before this offset is no longer needed.
        let mut from = 0;
        let mut events = decoder.feed(&data);
        while let Some(event) = events.next() {
            match opening(api, &event, sent, resumption)? {
                Opening::SkipToken => {
                    skipped += 1;
                    if let Some((until, limit)) = &mut silence {
                        *until = Instant::now() + *limit;
                    }
                }
                Opening::Skip => {
                    let length = event.end - from;
                    left = left.checked_sub(length).ok_or(NOT_A_CONTINUATION)?;
                }
                Opening::Begin => {
                    partial.extend_from_slice(&data[from..]);
                    return Ok(Continuation {
                        first: partial.into(),
                        body,
                        hidden,
                        skipped,
                    });
                }
            }
            from = event.end;
            partial.clear();
        }
        drop(events);
        if decoder.quiet() {
            return Err(NOT_A_CONTINUATION);
        }
        partial.extend_from_slice(&data[decoder.boundary().max(from)..]);
        let held = cost(partial.capacity() + decoder.held());
        if held > FREE && !charge.resize(memory, held, Purpose::Event) {
            return Err(NotContinued::GiveUp(ContinuationReason::NoMemory));
        }
    }
}

/// What an event before the continuation is.
enum Opening {
    /// Nothing that the client lacks.
    Skip,
    /// A token that the client has, or the model's reasoning: the server is working.
    SkipToken,
    /// The first event that the client lacks.
    Begin,
}

/// What `event` is, as long as the response may still continue the stream.
fn opening(
    api: Api,
    event: &Event<'_>,
    sent: &Sent,
    resumption: Resumption,
) -> Result<Opening, NotContinued> {
    match tail_meaning(api, event) {
        Tail::Nothing => {}
        Tail::Error { code } => {
            let cause = Cause::of_error_event(code);
            return Err(NotContinued::TryNext(
                cause.unwrap_or(Cause::NoContinuation),
            ));
        }
        Tail::Terminal => return Err(NOT_A_CONTINUATION),
    }
    if !event.has_data {
        return Ok(Opening::Skip);
    }
    match sent.opening(resumption, event.data) {
        JoinAction::Skip { token: true } => Ok(Opening::SkipToken),
        JoinAction::Skip { token: false } => Ok(Opening::Skip),
        JoinAction::Begin => Ok(Opening::Begin),
        JoinAction::Refuse(ContinuationReason::AttemptsFailed) => Err(NOT_A_CONTINUATION),
        JoinAction::Refuse(reason) => Err(NotContinued::GiveUp(reason)),
    }
}

async fn within<T>(
    silence: Option<(Instant, Duration)>,
    reading: impl Future<Output = T>,
) -> Result<T, NotContinued> {
    match silence {
        None => Ok(reading.await),
        Some((until, _)) => deadline::timeout_at(until, Box::pin(reading))
            .await
            .ok_or(NotContinued::NoResponse),
    }
}

/// Why an attempt failed whose response is not a stream.
async fn cause_of_status(response: Response<UpstreamBody>, memory: &Arc<Budget>) -> Cause {
    let cause = match response.status() {
        StatusCode::NOT_FOUND => match Box::pin(read_not_found(response, memory)).await {
            Ok((cause, _)) => cause,
            Err(cause) => Some(cause),
        },
        status => Cause::of_status(status.as_u16()),
    };
    cause.unwrap_or(Cause::NoContinuation)
}
