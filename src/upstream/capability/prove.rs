//! Asks an endpoint for its models, and probes whether it can continue a text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};

use super::{MAX_MODEL_NAME, MAX_MODELS, Models};
use crate::continuation::{Capability, Probe};
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
    /// Asks `endpoint` whether it can continue a text of `model`, and records the answer. With `client`, the head of a client's
    /// request, it is asked as that client, whose credentials a server may demand.
    ///
    /// A server that would continue a text refuses the question without generating anything.
    pub async fn prove(
        &self,
        endpoint: &Arc<Endpoint>,
        (probe, model): (Probe, &str),
        client: Option<&Head>,
        guard: Option<&GuardField>,
        plan: u64,
    ) -> Capability {
        let run = endpoint.run();
        let head = match client {
            Some(client) => as_client(client),
            None => {
                let mut head = own(endpoint, Method::POST, probe.path());
                let json = HeaderValue::from_static("application/json");
                head.headers.insert(CONTENT_TYPE, json);
                if probe == Probe::Messages {
                    head.headers
                        .insert(VERSION, HeaderValue::from_static("2023-06-01"));
                }
                head
            }
        };
        let body = probe.body(model).into();
        let answer = match self
            .question(endpoint, &head, body, guard, MAX_ANSWER)
            .await
        {
            Some((status, body)) => probe.judge(status.as_u16(), &body),
            None => Capability::Unknown,
        };
        let before = endpoint.capability(probe, model, Instant::now());
        endpoint.proved((probe, model), answer, Instant::now(), plan, run);
        let now = endpoint.capability(probe, model, Instant::now());
        if now != before {
            tracing::info!(
                endpoint = %endpoint.address, api = probe.as_str(), model, answer = now.as_str(), "continuation"
            );
        }
        now
    }

    /// Reads the list of models of `endpoint`, and records it.
    pub async fn list(&self, endpoint: &Arc<Endpoint>, guard: Option<&GuardField>, plan: u64) {
        let run = endpoint.run();
        let head = own(endpoint, Method::GET, "/v1/models");
        let answer = self.question(endpoint, &head, Bytes::new(), guard, MAX_LIST);
        let answer = answer.await;
        let models = answer
            .filter(|(status, _)| *status == StatusCode::OK)
            .and_then(|(_, body)| models(&body));
        endpoint.listed(models, Instant::now(), plan, run);
    }

    /// Sends a question of the proxy itself, and reads the whole answer, of up to `most` bytes. `None` if there is none in time.
    async fn question(
        &self,
        endpoint: &Arc<Endpoint>,
        head: &Head,
        body: Bytes,
        guard: Option<&GuardField>,
        most: usize,
    ) -> Option<(StatusCode, Bytes)> {
        let outgoing = Outgoing {
            head,
            extra: guard,
            memory: &Budget::new(2 * most),
        };
        let asking = async {
            let sent = self.send_to(endpoint, outgoing, RequestBody::whole(body));
            let sent = sent.await;
            if matches!(sent, Err(Error::Connect { .. })) {
                endpoint.went_away();
            }
            let response = sent.ok()?;
            let status = response.status();
            let body = Limited::new(response.into_body(), most);
            Some((status, body.collect().await.ok()?.to_bytes()))
        };
        deadline::timeout(PATIENCE, asking).await.flatten()
    }
}

/// The head of a question that the proxy asks by itself.
fn own(endpoint: &Endpoint, method: Method, path: &'static str) -> Head {
    let mut headers = HeaderMap::new();
    if let Ok(host) = HeaderValue::try_from(endpoint.address.to_string()) {
        headers.insert(HOST, host);
    }
    headers.insert(QUESTION, HeaderValue::from_static("1"));
    Head {
        method,
        uri: Uri::from_static(path),
        headers,
        added: Added::default(),
        expects_continue: false,
    }
}

/// The head of a question that is asked as a client.
fn as_client(client: &Head) -> Head {
    let mut head = client.clone();
    head.headers.remove(ACCEPT_ENCODING);
    head.headers.insert(QUESTION, HeaderValue::from_static("1"));
    head.expects_continue = false;
    head
}

/// Servers of Messages demand the version of the API.
const VERSION: HeaderName = HeaderName::from_static("anthropic-version");

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
