//! Asks an endpoint for its models, and probes whether it can continue a text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};

use super::{MAX_MODEL_NAME, MAX_MODELS, Models};
use crate::continuation::{Capability, Probe};
use crate::error_chain::error_chain;
use crate::memory::Budget;
use crate::model_list;
use crate::request_body::RequestBody;
use crate::transport::deadline;
use crate::upstream::endpoint::InFlight;
use crate::upstream::kept::{Connection, Slot};
use crate::upstream::lifetime::RemainingLifetime;
use crate::upstream::{AddedFields, Endpoint, Error, Head, Outgoing, Pool};

/// The guard header, which prevents other proxies of the update from forwarding a request again.
pub type GuardField = (HeaderName, HeaderValue);

/// How long a response may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The same while a stream waits and the endpoint has no proof, so that it may never respond.
const SHORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a list of models, in bytes.
const MAX_LIST: usize = 1024 * 1024;
/// Maximum size of the response to a probe, in bytes: an error, or a response of one token.
const MAX_ANSWER: usize = 64 * 1024;

/// A connection whose server has just proven, over this connection, that it continues texts of a model.
pub struct ProvenConnection {
    pub(in crate::upstream) endpoint: Arc<Endpoint>,
    pub(in crate::upstream) connection: Connection,
    pub(in crate::upstream) life: RemainingLifetime,
}

impl Pool {
    /// Probes whether `endpoint` can continue a text of `model`, and records the result.
    ///
    /// A server that can continue texts rejects the probe without generating anything.
    pub async fn prove(
        &self,
        endpoint: &Arc<Endpoint>,
        (probe, model): (Probe, &str),
        guard: Option<&GuardField>,
        plan: u64,
    ) {
        let run = endpoint.run();
        let mut head = own_head(endpoint, Method::POST, probe.path());
        let json = HeaderValue::from_static("application/json");
        head.headers.insert(CONTENT_TYPE, json);
        if probe == Probe::Messages {
            head.headers
                .insert(VERSION, HeaderValue::from_static("2023-06-01"));
        }
        let outgoing = Outgoing {
            head: &head,
            extra: guard,
            memory: &Budget::new(2 * MAX_ANSWER),
        };
        let probing = self.probe(endpoint, outgoing, (probe, model), None);
        let answer = deadline::timeout(TIMEOUT, probing).await;
        let answer = classify((probe, model), answer);
        record(endpoint, (probe, model), answer, plan, run);
    }

    /// Probes whether a server at `endpoint` can continue a text of `model`, and returns the connection over which it proved
    /// this. The request contains the credentials of the client whose stream is continued.
    ///
    /// # Errors
    /// The known capability otherwise. This is [`Capability::Unknown`] if the server proved it but closed the connection.
    pub async fn prove_connection(
        &self,
        endpoint: &Arc<Endpoint>,
        (probe, model): (Probe, &str),
        client: Outgoing<'_>,
        plan: u64,
    ) -> Result<ProvenConnection, Capability> {
        let run = endpoint.run();
        let known = endpoint.capability(probe, model, Instant::now());
        let head = client_head(client.head);
        let outgoing = Outgoing {
            head: &head,
            ..client
        };
        let slot = Slot::default();
        let probing = self.probe(endpoint, outgoing, (probe, model), Some(&slot));
        let limit = match known {
            Capability::Unknown => SHORT_TIMEOUT,
            _ => TIMEOUT,
        };
        let answer = deadline::timeout(limit, probing).await;
        if let Some(Err(Some(error))) = &answer
            && let Some(failure) = error.endpoint_failure()
        {
            endpoint.failed(failure, Instant::now(), &error_chain(error));
        }
        let answer = classify((probe, model), answer);
        match (known, answer) {
            // It is unknown which of the servers at this address is right, and a single client must not decide this for all
            // others.
            (Capability::Supported, Capability::Unsupported) => {
                tracing::info!(
                    endpoint = %endpoint.address, api = probe.as_str(), model, "a server at this address cannot continue texts, unlike the previous one"
                );
                endpoint.invalidate(probe, model);
            }
            _ => record(endpoint, (probe, model), answer, plan, run),
        }
        if answer != Capability::Supported {
            return Err(answer);
        }
        let (connection, life) = slot.take().ok_or(Capability::Unknown)?;
        Ok(ProvenConnection {
            endpoint: Arc::clone(endpoint),
            connection,
            life,
        })
    }

    /// Reads the list of models of `endpoint`, and records it.
    pub async fn list(&self, endpoint: &Arc<Endpoint>, guard: Option<&GuardField>, plan: u64) {
        let run = endpoint.run();
        let head = own_head(endpoint, Method::GET, "/v1/models");
        let outgoing = Outgoing {
            head: &head,
            extra: guard,
            memory: &Budget::new(2 * MAX_LIST),
        };
        let in_flight = InFlight::new(Arc::clone(endpoint));
        let listing = self.send_own_request(in_flight, outgoing, Vec::new(), MAX_LIST);
        let answer = deadline::timeout(TIMEOUT, listing).await;
        let models = answer
            .and_then(Result::ok)
            .filter(|(status, _)| *status == StatusCode::OK)
            .and_then(|(_, body)| models(&body));
        endpoint.listed(models, Instant::now(), plan, run);
    }

    /// Probes `endpoint`, and probes again if the connection breaks, because that says nothing about the server, which may have
    /// closed an idle connection, or lost an HTTP/2 connection with all its streams. A probe may be repeated, because it
    /// generates nothing.
    async fn probe(
        &self,
        endpoint: &Arc<Endpoint>,
        outgoing: Outgoing<'_>,
        (probe, model): (Probe, &str),
        slot: Option<&Slot>,
    ) -> Result<ProbeResponse, Option<Error>> {
        let send = || {
            let mut in_flight = InFlight::new(Arc::clone(endpoint));
            in_flight.slot = slot.cloned();
            self.send_own_request(in_flight, outgoing, probe.body(model), MAX_ANSWER)
        };
        match send().await {
            Err(error) if error.as_ref().is_none_or(Error::is_break) => send().await,
            answer => answer,
        }
    }

    /// Sends a request of the proxy itself, and reads the whole response of up to `most` bytes. The error is `None` if the
    /// response ended early or is too long.
    async fn send_own_request(
        &self,
        in_flight: InFlight,
        outgoing: Outgoing<'_>,
        body: Vec<u8>,
        most: usize,
    ) -> Result<ProbeResponse, Option<Error>> {
        let endpoint = Arc::clone(&in_flight);
        let body = RequestBody::whole(body.into());
        let sent = self.attempt(in_flight, outgoing, body, Instant::now(), false);
        let response = sent.await.map_err(|error| {
            if matches!(error, Error::Connect { .. }) {
                endpoint.went_away();
            }
            Some(error)
        })?;
        let status = response.status();
        let body = Limited::new(response.into_body(), most).collect().await;
        Ok((status, body.map_err(|_| None)?.to_bytes()))
    }
}

/// The status and the body of a response.
type ProbeResponse = (StatusCode, Bytes);

/// Interprets a response; `None` if there was none in time.
fn classify(
    (probe, model): (Probe, &str),
    answer: Option<Result<ProbeResponse, Option<Error>>>,
) -> Capability {
    match answer {
        Some(Ok((status, body))) => probe.classify(model, status.as_u16(), &body),
        Some(Err(_)) | None => Capability::Unknown,
    }
}

/// Records a result, and logs it if it is new.
fn record(
    endpoint: &Endpoint,
    (probe, model): (Probe, &str),
    answer: Capability,
    plan: u64,
    run: u32,
) {
    let before = endpoint.capability(probe, model, Instant::now());
    endpoint.proved((probe, model), answer, Instant::now(), plan, run);
    let now = endpoint.capability(probe, model, Instant::now());
    if now != before {
        tracing::info!(
            endpoint = %endpoint.address, api = probe.as_str(), model, answer = now.as_str(), "continuation"
        );
    }
}

/// The head of a probe that the proxy sends by itself.
fn own_head(endpoint: &Endpoint, method: Method, path: &'static str) -> Head {
    let mut headers = HeaderMap::new();
    if let Ok(host) = HeaderValue::try_from(endpoint.address.to_string()) {
        headers.insert(HOST, host);
    }
    headers.insert(PROBE_HEADER, HeaderValue::from_static("1"));
    Head {
        method,
        uri: Uri::from_static(path),
        headers,
        added: AddedFields::default(),
        expects_continue: false,
    }
}

/// The head of a probe that is sent as a client.
fn client_head(client: &Head) -> Head {
    let mut head = client.clone();
    head.headers.remove(ACCEPT_ENCODING);
    head.headers
        .insert(PROBE_HEADER, HeaderValue::from_static("1"));
    head.expects_continue = false;
    head
}

/// Messages servers require the version of the API.
const VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// Marks a probe of a proxy. A proxy that receives it, with its own update's guard, does not count it as a request.
pub const PROBE_HEADER: HeaderName = HeaderName::from_static("x-crossfade-probe");

/// The first models of a list; `None` if this is not a list of models.
fn models(list: &[u8]) -> Option<Models> {
    let ids = model_list::ids(list)?.filter(|id| (1..=MAX_MODEL_NAME).contains(&id.len()));
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
