//! Answers `GET /v1/models` with the union of both generations' models by ID, and looks up a single model in both,
//! while both generations serve.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, AGE, CONNECTION, CONTENT_LENGTH, ETAG, HeaderName, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE, TRAILER,
    UPGRADE,
};
use http::{Response, StatusCode};

use super::SplitBody;
use super::attempt::Attempts;
use super::backend::OldBackend;
use super::error::{Error, Failures};
use super::exchange::Exchange;
use super::respond::refuse;
use crate::error_chain::error_chain;
use crate::failover::Target;
use crate::memory::{Buffer, Gathered, Purpose, gather};
use crate::model_list;
use crate::printable::seconds;
use crate::request_body::RequestBody;
use crate::transport::deadline;
use crate::upstream::{AnsweredBy, FailFast, Head, Outgoing, SendOptions, UpstreamBody};

/// Largest list that is read, in bytes.
const MAX_LIST: usize = 1024 * 1024;

/// What would make a response compressed, conditional, partial, or a tunnel (RFC 9110 §12.5.3, §13.1, §14.2, §7.8).
const NOT_FOR_LISTS: [HeaderName; 9] = [
    ACCEPT_ENCODING,
    CONNECTION,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    RANGE,
    UPGRADE,
];

/// What describes the body of one generation, and is wrong for the union (RFC 9110 §8.6, §8.8, §14.3, RFC 9111 §5.1, RFC 9530).
const OF_ONE_LIST: [HeaderName; 10] = [
    AGE,
    CONTENT_LENGTH,
    TRAILER,
    ETAG,
    LAST_MODIFIED,
    ACCEPT_RANGES,
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
];

/// How long a generation may take to respond. A generation that hangs must not hide the models of the other one.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The response of one generation, read in full.
struct List {
    target: Target,
    response: Response<Bytes>,
}

/// A target that returned no readable response.
struct Failed {
    target: Target,
    for_client: &'static str,
    for_log: String,
}

impl Failed {
    fn note(self, failures: &mut Failures) {
        let target = self.target.generation().as_str();
        failures.add(target, self.for_client, &self.for_log);
    }
}

/// Asks both generations. `None` if the process ends before they have responded.
async fn send_to_both<O: OldBackend>(
    attempts: &Attempts<O>,
) -> Option<(Result<List, Failed>, Result<List, Failed>)> {
    let head = readable(&attempts.head);
    let both = std::pin::pin!(async {
        tokio::join!(
            send(attempts, &head, Target::Old),
            send(attempts, &head, Target::New)
        )
    });
    attempts.proxy.context.lifecycle.unless_ending(both).await
}

/// Responds with the models of both generations, or with one generation's response if the other fails.
pub async fn union<O: OldBackend>(
    mut attempts: Attempts<O>,
    exchange: Exchange,
) -> Response<SplitBody> {
    let Some((old, new)) = send_to_both(&attempts).await else {
        return refuse(exchange, &Error::ShuttingDown);
    };
    let mut failures = Failures::default();
    let mut lists: Vec<List> = [old, new]
        .into_iter()
        .filter_map(|list| list.map_err(|failed| failed.note(&mut failures)).ok())
        .collect();
    // Prefer a response with status 200, then old.
    lists.sort_by_key(|list| list.response.status() != StatusCode::OK);
    let mut lists = lists.into_iter();
    let Some(List {
        target,
        mut response,
    }) = lists.next()
    else {
        let error = Error::Upstream {
            failures,
            status: StatusCode::BAD_GATEWAY,
        };
        return refuse(exchange, &error);
    };
    if let Some(other) = lists
        .next()
        .filter(|other| other.response.status() == StatusCode::OK)
        && let Some(merged) = model_list::merge(response.body(), other.response.body())
    {
        *response.body_mut() = merged;
        for name in &OF_ONE_LIST {
            response.headers_mut().remove(name);
        }
    }
    attempts.retryable = false;
    attempts.respond(exchange, target, response.map(UpstreamBody::Whole), false)
}

/// Responds with one model: old's response if it has the model, otherwise new's. If neither has it, relays an error
/// response, preferably old's.
pub async fn one<O: OldBackend>(
    mut attempts: Attempts<O>,
    exchange: Exchange,
) -> Response<SplitBody> {
    let Some((old, new)) = send_to_both(&attempts).await else {
        return refuse(exchange, &Error::ShuttingDown);
    };
    let mut failures = Failures::default();
    let mut refusal = None;
    for answer in [old, new] {
        match answer {
            Ok(list) if list.response.status().is_success() => {
                refusal = Some(list);
                break;
            }
            Ok(list) => {
                refusal.get_or_insert(list);
            }
            Err(failed) => failed.note(&mut failures),
        }
    }
    match refusal {
        Some(List { target, response }) => {
            attempts.retryable = false;
            attempts.respond(exchange, target, response.map(UpstreamBody::Whole), false)
        }
        None => {
            let status = StatusCode::BAD_GATEWAY;
            refuse(exchange, &Error::Upstream { failures, status })
        }
    }
}

/// The request head without fields because of which the response could not be parsed.
fn readable(head: &Head) -> Head {
    let mut headers = head.headers.clone();
    for name in &NOT_FOR_LISTS {
        headers.remove(name);
    }
    Head {
        method: head.method.clone(),
        uri: head.uri.clone(),
        headers,
        added: head.added.clone(),
        expects_continue: false,
    }
}

async fn send<O: OldBackend>(
    attempts: &Attempts<O>,
    head: &Head,
    target: Target,
) -> Result<List, Failed> {
    let query = deadline::timeout(TIMEOUT, query_without_timeout(attempts, head, target));
    let late = || {
        Err(Failed {
            target,
            for_client: "no response in time",
            for_log: format!("no response within {}", seconds(TIMEOUT)),
        })
    };
    query.await.unwrap_or_else(late)
}

async fn query_without_timeout<O: OldBackend>(
    attempts: &Attempts<O>,
    head: &Head,
    target: Target,
) -> Result<List, Failed> {
    let body = RequestBody::empty();
    let extra = attempts.guard.as_ref().filter(|_| target != Target::Old);
    let outgoing = Outgoing {
        head,
        extra,
        memory: &attempts.proxy.context.memory,
    };
    let options = SendOptions {
        fail_fast: FailFast::IfEjected,
        deadline: None,
        was_sent: false,
    };
    let sent = attempts
        .proxy
        .send_to(target, &attempts.snapshot, outgoing, body, options)
        .await;
    let (mut parts, mut body) = sent
        .map_err(|error| Failed {
            target,
            for_client: error.client_message(),
            for_log: error_chain(&error),
        })?
        .into_parts();
    if let Some(endpoint) = body.endpoint().cloned() {
        parts.extensions.insert(AnsweredBy(endpoint));
    }
    let buffer = Buffer::new(&attempts.proxy.context.memory, Purpose::Answer, None);
    let read = match gather(&mut body, buffer, MAX_LIST).await {
        Gathered::Whole(read, _) => read,
        Gathered::Part(..) => {
            let why = "the response is too long";
            return Err(Failed {
                target,
                for_client: why,
                for_log: why.to_owned(),
            });
        }
        Gathered::Broken(_, error) => {
            return Err(Failed {
                target,
                for_client: "the response ended early",
                for_log: error.to_string(),
            });
        }
    };
    Ok(List {
        target,
        response: Response::from_parts(parts, read),
    })
}
