//! Classifies failed attempts: connection errors, and responses with status 404.

use std::sync::Arc;

use http::Response;

use crate::failover::Cause;
use crate::memory::{Budget, Buffer, Gathered, Purpose, gather};
use crate::upstream::{self, AnsweredBy, UpstreamBody};

/// How much of a 404's body is read to classify it, in bytes.
const MAX_NOT_FOUND: usize = 16 * 1024;

/// Why an attempt without a response failed.
pub(super) fn cause_of(error: &upstream::Error) -> Cause {
    match error {
        upstream::Error::Exhausted {
            here_only: true, ..
        } => Cause::LocalPorts,
        upstream::Error::Exhausted { .. }
        | upstream::Error::NoMemory
        | upstream::Error::NoUpgrade
        | upstream::Error::RequestHeadTooLarge(_) => Cause::Local,
        error if error.nothing_sent() => Cause::Connect,
        upstream::Error::Malformed(_) | upstream::Error::SwitchedEarly => Cause::Malformed,
        upstream::Error::HeadTimeout(_) | upstream::Error::Deadline => Cause::Deadline,
        _ => Cause::Broken,
    }
}

/// Reads as much of a 404's body as is needed to classify it.
pub(super) async fn read_not_found(
    response: Response<UpstreamBody>,
    memory: &Arc<Budget>,
) -> Result<(Option<Cause>, Response<UpstreamBody>), Cause> {
    let (mut parts, mut body) = response.into_parts();
    if let Some(endpoint) = body.endpoint().cloned() {
        parts.extensions.insert(AnsweredBy(endpoint));
    }
    let buffer = Buffer::new(memory, Purpose::Answer, None);
    let (cause, body) = match gather(&mut body, buffer, MAX_NOT_FOUND).await {
        Gathered::Whole(read, trailers) => {
            let cause = Cause::of_not_found(&read);
            (cause, UpstreamBody::read(read, trailers))
        }
        // Too long to classify: relay what was read, then the rest.
        Gathered::Part(read, next) => {
            let rest = UpstreamBody::Begun(next, Box::new(body));
            (None, UpstreamBody::Begun(read, Box::new(rest)))
        }
        Gathered::Broken(..) => return Err(Cause::Broken),
    };
    Ok((cause, Response::from_parts(parts, body)))
}
