//! The HTTP client of the exporter: one pooled HTTP/1.1 client on the runtime that serves the collector.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError, ResponseBodyTooLarge};
use rustls::ClientConfig;
use tokio::runtime::Handle;

use super::LastFailure;
use crate::error_chain::error_chain;

/// Maximum size of a collector's response, in bytes: the limit that [`ResponseBodyTooLarge`] names.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// Sends requests from the exporter's thread, which has no runtime.
#[derive(Debug)]
pub struct Sender<C> {
    client: Client<C, Full<Bytes>>,
    runtime: Handle,
    timeout: Duration,
    failure: LastFailure,
}

impl Sender<HttpConnector> {
    /// Must be called on a runtime.
    pub fn over_tcp(timeout: Duration, failure: LastFailure) -> Self {
        Self::new(HttpConnector::new(), timeout, failure)
    }
}

impl Sender<HttpsConnector<HttpConnector>> {
    /// Must be called on a runtime.
    pub fn over_tls(mut config: ClientConfig, timeout: Duration, failure: LastFailure) -> Self {
        // The connector sets the protocol.
        config.alpn_protocols.clear();
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_only()
            .enable_http1()
            .build();
        Self::new(connector, timeout, failure)
    }
}

impl<C: Connect + Clone> Sender<C> {
    fn new(connector: C, timeout: Duration, failure: LastFailure) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            runtime: Handle::current(),
            timeout,
            failure,
        }
    }
}

#[async_trait]
impl<C> HttpClient for Sender<C>
where
    C: Connect + Clone + std::fmt::Debug + Send + Sync + 'static,
{
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (client, timeout) = (self.client.clone(), self.timeout);
        let exchange = self.runtime.spawn(async move {
            let exchange = tokio::time::timeout(timeout, exchange(&client, request));
            exchange.await.map_err(|_| {
                HttpError::from(format!("no response within {} ms", timeout.as_millis()))
            })?
        });
        let answer = exchange.await.map_err(HttpError::from).flatten();
        if let Err(error) = &answer {
            self.failure.set(error_chain(error.as_ref()));
        }
        answer
    }
}

async fn exchange<C>(
    client: &Client<C, Full<Bytes>>,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let (head, body) = client.request(request.map(Full::new)).await?.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        // This tells the exporter that retrying is pointless.
        true => ResponseBodyTooLarge::new().into(),
        false => error,
    })?;
    Ok(Response::from_parts(head, body.to_bytes()))
}
