//! The proxy as a tower layer. The old generation is a service in this process, so a Rust frontend that embeds crossfade needs no
//! extra hop.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use tower::{BoxError, Layer, Service, ServiceExt};

use super::backend::{OldBackend, Proxy};
use super::body::SplitBody;
use super::body_timeout::TimedBody;
use super::context::ProxyContext;
use crate::request_body::RequestBody;
use crate::snapshot::Snapshot;
use crate::transport::deadline;
use crate::upstream::{Error, Outgoing, SendOptions, UpstreamBody};

/// Wraps the service that is the old generation.
#[derive(Clone)]
pub struct SplitLayer {
    context: Arc<ProxyContext>,
}

impl SplitLayer {
    /// A layer that splits requests by the plan in force in `context`.
    #[must_use]
    pub fn new(context: Arc<ProxyContext>) -> Self {
        Self { context }
    }
}

impl<S> Layer<S> for SplitLayer
where
    InProcess<S>: OldBackend,
{
    type Service = SplitService<S>;

    fn layer(&self, inner: S) -> SplitService<S> {
        SplitService {
            proxy: Proxy::new(Arc::clone(&self.context), InProcess(inner)),
        }
    }
}

/// The old generation as a service in this process.
#[derive(Clone)]
pub struct InProcess<S>(S);

impl<S, B> OldBackend for InProcess<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    async fn send(
        &self,
        _: &Snapshot,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        options: SendOptions,
    ) -> Result<Response<UpstreamBody>, Error> {
        let view = body.view();
        let mut request = Request::new(body);
        *request.method_mut() = outgoing.head.method.clone();
        *request.uri_mut() = outgoing.head.uri.clone();
        *request.headers_mut() = outgoing.head.fields();
        let answer = self.0.clone().oneshot(request);
        let answered = match options.deadline {
            None => answer.await,
            Some(at) => deadline::timeout_excluding(at, || view.awaited(), answer)
                .await
                .ok_or(Error::Deadline)?,
        };
        let response = answered.map_err(|error| Error::Local(error.into()))?;
        Ok(response.map(|body| UpstreamBody::Local(body.map_err(Into::into).boxed_unsync())))
    }
}

/// A service that splits requests between the inner service and the new generation.
#[derive(Clone)]
pub struct SplitService<S> {
    proxy: Proxy<InProcess<S>>,
}

impl<S, B> Service<Request<B>> for SplitService<S>
where
    InProcess<S>: OldBackend,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<SplitBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // The attempt on old awaits its readiness.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let proxy = self.proxy.clone();
        let limit = proxy.context().body_limit();
        let request =
            request.map(|body| RequestBody::stream(TimedBody::new(Box::pin(body), limit)));
        Box::pin(async move { Ok(proxy.handle(request, None, None).await) })
    }
}
