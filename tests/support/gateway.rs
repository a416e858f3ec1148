//! A gateway in front of a real API server. It forwards everything that the test does not withhold.

use std::convert::Infallible;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body as KubeBody;
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::net::TcpListener;
use tokio::sync::watch;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What it withholds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Withheld {
    /// Watches are accepted but deliver no events, including open ones.
    pub watches: bool,
    /// Lists get no response.
    pub lists: bool,
    /// Status writes of updates are rejected.
    pub statuses: bool,
}

/// A running gateway.
pub struct Gateway {
    withheld: watch::Sender<Withheld>,
    /// How many lists of objects got no response at first.
    withheld_lists: Arc<AtomicUsize>,
    kubeconfig: NamedTempFile,
}

impl Gateway {
    /// A gateway to the API server of `client`, with its permissions.
    pub async fn before(client: &Client) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        });
        let mut file = NamedTempFile::new().unwrap();
        write!(file, "{kubeconfig}").unwrap();
        let (withheld, seen) = watch::channel(Withheld::default());
        let client = client.clone();
        let withheld_lists = Arc::<AtomicUsize>::default();
        let lists = Arc::clone(&withheld_lists);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (client, seen, lists) = (client.clone(), seen.clone(), Arc::clone(&lists));
                tokio::spawn(async move {
                    let service = service_fn(|request: Request<Incoming>| {
                        let (client, seen) = (client.clone(), seen.clone());
                        // A request for what the API server serves has no such parameter.
                        let query = request.uri().query().unwrap_or_default();
                        if seen.borrow().lists && query.contains("limit=") {
                            lists.fetch_add(1, Ordering::Relaxed);
                        }
                        async move { Ok::<_, Infallible>(pass(client, seen, request).await) }
                    });
                    let connection = hyper::server::conn::http1::Builder::new();
                    let _ = connection
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self {
            withheld,
            withheld_lists,
            kubeconfig: file,
        }
    }

    /// The path of a kubeconfig for the gateway.
    pub fn kubeconfig(&self) -> String {
        self.kubeconfig.path().to_string_lossy().into_owned()
    }

    /// How many lists of objects it has withheld.
    pub fn withheld_lists(&self) -> usize {
        self.withheld_lists.load(Ordering::Relaxed)
    }

    /// Changes what is withheld.
    pub fn withhold(&self, withheld: Withheld) {
        self.withheld.send_replace(withheld);
    }
}

async fn pass(
    client: Client,
    mut seen: watch::Receiver<Withheld>,
    request: Request<Incoming>,
) -> Response<Body> {
    let query = request.uri().query().unwrap_or_default();
    let is_watch = query.contains("watch=");
    // The controller reads single objects only for the Lease.
    let is_list =
        request.method() == Method::GET && !is_watch && !request.uri().path().contains("/leases/");
    let path = request.uri().path();
    let is_status = path.contains("/dynamoupdateconfigs/") && path.ends_with("/status");
    let withheld = *seen.borrow();
    if withheld.watches && is_watch {
        let silence = stream::once(async move { silence(&mut seen).await });
        let nothing = silence.filter_map(|()| std::future::ready(None));
        return Response::new(BodyExt::boxed_unsync(StreamBody::new(nothing)));
    }
    if withheld.lists && is_list {
        let _ = seen.wait_for(|withheld| !withheld.lists).await;
    }
    if withheld.statuses && is_status {
        return failed("the test withholds it");
    }
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let mut request = Request::from_parts(parts, KubeBody::from(body.to_vec()));
    request.headers_mut().remove(http::header::HOST);
    let response = match client.send(request).await {
        Ok(response) => response,
        Err(error) => return failed(&error.to_string()),
    };
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(http::header::TRANSFER_ENCODING);
    parts.headers.remove(http::header::CONTENT_LENGTH);
    let mut until_end = seen.clone();
    let end = stream::once(async move {
        if is_watch {
            silence(&mut until_end).await;
        }
    });
    let end = end.filter_map(|()| std::future::ready(None));
    let frames = body.into_data_stream().filter_map(move |data| {
        let is_withheld = is_watch && seen.borrow().watches;
        let frame = data.ok().filter(|_| !is_withheld);
        std::future::ready(frame.map(|data| Ok(Frame::data(data))))
    });
    Response::from_parts(
        parts,
        BodyExt::boxed_unsync(StreamBody::new(frames.chain(end))),
    )
}

/// Waits until watches are no longer withheld.
async fn silence(seen: &mut watch::Receiver<Withheld>) {
    let _ = seen.wait_for(|withheld| !withheld.watches).await;
}

fn failed(message: &str) -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "InternalError", "code": 500,
        "message": message,
    });
    let body = Full::new(Bytes::from(status.to_string())).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
    response
}
