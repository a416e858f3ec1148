//! Asks an endpoint for its models and whether it can continue a text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};

use super::{MAX_MODEL_NAME, MAX_MODELS, Models};
use crate::continuation::{self, Capability};
use crate::memory::Budget;
use crate::request_body::RequestBody;
use crate::transport::deadline;
use crate::upstream::{Added, Endpoint, Error, Head, Outgoing, Pool};

/// The guard header, by which other proxies of the update do not forward a request again.
pub type GuardField = (HeaderName, HeaderValue);

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest list of models that is read, in bytes.
const MAX_LIST: usize = 1024 * 1024;
/// The longest answer to a proof that is read, in bytes: an error, or a response of one token.
const MAX_ANSWER: usize = 64 * 1024;

impl Pool {
    /// Asks `endpoint` whether it can continue a text of `model`, and records the answer.
    ///
    /// The question contradicts itself, so a server that understands it refuses it without generating anything.
    pub async fn prove(
        &self,
        endpoint: &Arc<Endpoint>,
        model: &str,
        guard: Option<&GuardField>,
        plan: u64,
    ) -> Capability {
        let run = endpoint.run();
        let body = continuation::probe_body(model);
        let question = Question {
            method: Method::POST,
            path: "/v1/chat/completions",
            guard,
            most: MAX_ANSWER,
        };
        let answer = match self.question(endpoint, question, body.into()).await {
            Some((status, body)) => continuation::judge(status.as_u16(), &body),
            None => Capability::Unknown,
        };
        let before = endpoint.capability(model, Instant::now());
        endpoint.proved(model, answer, Instant::now(), plan, run);
        if answer != before {
            tracing::info!(endpoint = %endpoint.address, model, ?answer, "continuation");
        }
        endpoint.capability(model, Instant::now())
    }

    /// Reads the list of models of `endpoint`, and records it.
    pub async fn list(&self, endpoint: &Arc<Endpoint>, guard: Option<&GuardField>, plan: u64) {
        let run = endpoint.run();
        let question = Question {
            method: Method::GET,
            path: "/v1/models",
            guard,
            most: MAX_LIST,
        };
        let answer = self.question(endpoint, question, Bytes::new()).await;
        let models = answer
            .filter(|(status, _)| *status == StatusCode::OK)
            .and_then(|(_, body)| models(&body));
        endpoint.listed(models, Instant::now(), plan, run);
    }

    /// Sends a question of the proxy itself, and reads the whole answer. `None` if there is none in time.
    async fn question(
        &self,
        endpoint: &Arc<Endpoint>,
        question: Question<'_>,
        body: Bytes,
    ) -> Option<(StatusCode, Bytes)> {
        let mut headers = HeaderMap::new();
        if let Ok(host) = HeaderValue::try_from(endpoint.address.to_string()) {
            headers.insert(HOST, host);
        }
        if !body.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        headers.insert(QUESTION, HeaderValue::from_static("1"));
        let head = Head {
            method: question.method,
            uri: Uri::from_static(question.path),
            headers,
            added: Added::default(),
            expects_continue: false,
        };
        let outgoing = Outgoing {
            head: &head,
            extra: question.guard,
            memory: &Budget::new(2 * question.most),
        };
        let asking = async {
            let sent = self.send_to(endpoint, outgoing, RequestBody::whole(body));
            let sent = sent.await;
            if matches!(sent, Err(Error::Connect { .. })) {
                endpoint.went_away();
            }
            let response = sent.ok()?;
            let status = response.status();
            let body = Limited::new(response.into_body(), question.most);
            Some((status, body.collect().await.ok()?.to_bytes()))
        };
        deadline::timeout(PATIENCE, asking).await.flatten()
    }
}

struct Question<'a> {
    method: Method,
    path: &'static str,
    guard: Option<&'a GuardField>,
    /// The longest answer that is read, in bytes.
    most: usize,
}

/// Marks a question of a proxy. A proxy that receives it, with its own update's guard, does not count it as a request.
pub const QUESTION: HeaderName = HeaderName::from_static("x-crossfade-question");

/// The first models of a list; `None` if this is no list of models.
fn models(list: &[u8]) -> Option<Models> {
    let list: serde_json::Value = serde_json::from_slice(list).ok()?;
    let models = list.get("data")?.as_array()?;
    let ids = models.iter().filter_map(|model| model.get("id")?.as_str());
    let ids = ids.filter(|id| (1..=MAX_MODEL_NAME).contains(&id.len()));
    Some(ids.take(MAX_MODELS).map(Arc::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_models_is_read_up_to_a_bound() {
        let list = br#"{"data":[{"id":"a"},{"id":7},{},{"id":""},{"id":"b"}]}"#;
        let read = models(list).expect("a list");
        assert_eq!(
            read.iter().map(|model| &**model).collect::<Vec<_>>(),
            ["a", "b"]
        );
        let many: Vec<_> = (0..500)
            .map(|id| serde_json::json!({"id": id.to_string()}))
            .collect();
        let many = serde_json::json!({"data": many}).to_string();
        assert_eq!(models(many.as_bytes()).expect("a list").len(), MAX_MODELS);
        for other in [&b"{}"[..], b"[]", b"x", br#"{"data":{}}"#] {
            assert!(models(other).is_none());
        }
    }
}
