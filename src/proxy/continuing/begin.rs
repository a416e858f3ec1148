//! Reads the beginning of another server's response, up to the event that continues the text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, Response, StatusCode};
use http_body_util::BodyExt;

use crate::continuation::{Opening, Reason, Resumption, Sent};
use crate::http1::NameFilter;
use crate::memory::{Budget, Charge, FREE, Purpose, cost};
use crate::proxy::head::remove_hop_by_hop;
use crate::proxy::media::{is_event_stream, is_readable};
use crate::sse::{Api, Decoder, Tail, tail_meaning};
use crate::transport::deadline;
use crate::upstream::UpstreamBody;

/// Longest opening that is read before the first content, in bytes of an incomplete event.
const MAX_EVENT: usize = 256 * 1024;

/// Maximum length of the skipped part of a response before its first content, in bytes, without the model's reasoning: comments
/// and events without content. A server that sends more does not continue the stream.
const MAX_SKIPPED: usize = 1024 * 1024;

/// Why a server does not continue the stream.
pub enum Refused {
    /// Another one may.
    This,
    /// As above. It says nothing, and may only be slow.
    Silent,
    /// No other one would.
    All(Reason),
}

/// A response that continues the stream.
pub struct Begun {
    pub first: Bytes,
    pub body: UpstreamBody,
    pub hidden: Vec<HeaderName>,
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
    let mut left = MAX_SKIPPED;
    loop {
        body.read_little(memory.is_tight());
        let frame = match silence {
            None => body.frame().await,
            Some((until, _)) => deadline::timeout_at(until, body.frame())
                .await
                .ok_or(Refused::Silent)?,
        };
        let frame = frame.ok_or(Refused::This)?;
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
                true => sent.opening(resumption, event.data),
                false => Opening::Skip { token: false },
            };
            match opening {
                Opening::Skip { token: true } => {
                    skipped += 1;
                    if let Some((until, limit)) = &mut silence {
                        *until = Instant::now() + *limit;
                    }
                }
                Opening::Skip { token: false } => {
                    let length = event.end - from;
                    left = left.checked_sub(length).ok_or(Refused::This)?;
                }
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
