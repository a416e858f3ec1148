//! A fake API server that injects faults at chosen moments. It supports DynamoUpdateConfigs, EndpointSlices and Events of one
//! namespace, with lists and watches, and nothing else.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Write;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::Port;

const UPDATES: &str = "/apis/nvidia.com/v1alpha1/namespaces/default/dynamoupdateconfigs";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

#[derive(Default)]
struct State {
    version: u64,
    /// By path and name.
    objects: BTreeMap<(&'static str, String), Value>,
    /// (version, path, type, object)
    log: Vec<(u64, &'static str, &'static str, Value)>,
    /// Watches from before this version are rejected as expired.
    oldest: u64,
    /// Watches from before this version are refused: they are from a later state than the one that was restored.
    restored: u64,
    /// While set, lists and watches get a response with this status.
    fault: Option<u16>,
    /// Ends each watch at once, without an error.
    cuts_watches: bool,
    events: BTreeMap<String, Value>,
    /// How many times an Event was sent, including those rejected because it already existed.
    tries: usize,
    lists: usize,
    watches: usize,
    /// Behaves like a CRD without `selectableFields`.
    cannot_select: bool,
    /// How many events its watches on updates have sent.
    events_sent: usize,
}

/// The scope of a list or watch.
#[derive(Clone)]
struct Scope {
    path: &'static str,
    /// Only slices of this Service.
    service: Option<String>,
    /// Only updates with this `spec.sourceDeployment`.
    source: Option<String>,
}

impl Scope {
    fn of(path: &'static str, query: &BTreeMap<String, String>) -> Self {
        // Clients use label selectors for one kind only, with a single label, and field selectors likewise.
        let after = |selector: &str, name: &str| {
            let selector = query.get(selector)?;
            selector.split(name).nth(1).map(str::to_owned)
        };
        Self {
            path,
            service: after("labelSelector", "service-name%3D"),
            source: after("fieldSelector", "spec.sourceDeployment%3D"),
        }
    }

    fn holds(&self, object: &Value) -> bool {
        let label = &object["metadata"]["labels"]["kubernetes.io/service-name"];
        let source = &object["spec"]["sourceDeployment"];
        self.service.as_ref().is_none_or(|service| label == service)
            && self.source.as_ref().is_none_or(|wanted| source == wanted)
    }

    /// The first event after `since`. An object that no longer matches is reported as deleted, in its previous state.
    fn next(&self, state: &State, since: u64) -> Option<(u64, &'static str, Value)> {
        let of_kind = || {
            state
                .log
                .iter()
                .filter(|(_, path, _, _)| *path == self.path)
        };
        of_kind()
            .filter(|(version, ..)| *version > since)
            .find_map(|(version, _, kind, object)| {
                let name = &object["metadata"]["name"];
                let mut before = of_kind()
                    .filter(|(at, _, _, other)| at < version && other["metadata"]["name"] == *name);
                let before = before
                    .next_back()
                    .filter(|(_, _, kind, _)| *kind != "DELETED");
                let before = before.filter(|(_, _, _, before)| self.holds(before));
                match (before, self.holds(object)) {
                    (_, true) if *kind == "DELETED" => Some((*version, "DELETED", object.clone())),
                    (None, true) => Some((*version, "ADDED", object.clone())),
                    (Some(_), true) => Some((*version, *kind, object.clone())),
                    (Some((_, _, _, before)), false) => {
                        let mut gone = before.clone();
                        gone["metadata"]["resourceVersion"] = json!(version.to_string());
                        Some((*version, "DELETED", gone))
                    }
                    (None, false) => None,
                }
            })
    }
}

/// A running API server.
pub struct ApiServer {
    /// Its own also while it does not listen.
    port: Port,
    state: Arc<Mutex<State>>,
    /// Counts changes; watches wait on it.
    changed: watch::Sender<u64>,
    /// While true, it does not listen, and closes all connections.
    down: watch::Sender<bool>,
    kubeconfig: NamedTempFile,
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

impl ApiServer {
    pub async fn start() -> Self {
        let port = Port::take();
        let address = port.address;
        let listener = TcpListener::bind(address).await.unwrap();
        let mut kubeconfig = NamedTempFile::new().unwrap();
        write!(
            kubeconfig,
            r#"{{"apiVersion": "v1", "kind": "Config", "current-context": "c",
               "clusters": [{{"name": "c", "cluster": {{"server": "http://{address}"}}}}],
               "users": [{{"name": "c", "user": {{}}}}],
               "contexts": [{{"name": "c", "context": {{"cluster": "c", "user": "c"}}}}]}}"#
        )
        .unwrap();
        let server = Self {
            port,
            state: Arc::default(),
            changed: watch::channel(0).0,
            down: watch::channel(false).0,
            kubeconfig,
        };
        server.serve(listener);
        server
    }

    fn serve(&self, listener: TcpListener) {
        let (state, changed) = (Arc::clone(&self.state), self.changed.clone());
        let mut down = self.down.subscribe();
        tokio::spawn(async move {
            loop {
                let stream = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap().0,
                    _ = down.wait_for(|down| *down) => return,
                };
                let (state, changed, mut down) =
                    (Arc::clone(&state), changed.clone(), down.clone());
                tokio::spawn(async move {
                    let service = service_fn(|request| {
                        let (state, changed) = (Arc::clone(&state), changed.clone());
                        async move { Ok::<_, Infallible>(answer(&state, &changed, request).await) }
                    });
                    let connection = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service);
                    tokio::select! {
                        _ = connection => {}
                        _ = down.wait_for(|down| *down) => {}
                    }
                });
            }
        });
    }

    /// Closes the listener and all connections.
    pub async fn stop(&self) {
        self.down.send_replace(true);
        super::eventually("all is closed", async || self.down.receiver_count() == 0).await;
    }

    /// Listens again on the same port.
    pub async fn restart(&self) {
        self.down.send_replace(false);
        let listener = super::until("the port is free again", async || {
            TcpListener::bind(self.port.address).await.ok()
        });
        self.serve(listener.await);
    }

    /// The environment variables with which a proxy finds it.
    pub fn env(&self) -> [(&'static str, String); 1] {
        [("KUBECONFIG", self.kubeconfig.path().display().to_string())]
    }

    /// Makes lists and watches fail with `status`, or with `None` succeed again. Open watches end.
    pub fn fault(&self, status: Option<u16>) {
        self.state.lock().unwrap().fault = status;
        self.end_watches();
    }

    /// Ends all open watches.
    pub fn end_watches(&self) {
        self.changed.send_replace(u64::MAX);
    }

    /// Ends each watch at once and without an error, or no longer does so.
    pub fn cut_watches(&self, cuts: bool) {
        self.state.lock().unwrap().cuts_watches = cuts;
        self.end_watches();
    }

    /// Rejects each watch as expired.
    pub fn expire_watches(&self) {
        self.state.lock().unwrap().oldest = u64::MAX;
        self.end_watches();
    }

    /// Drops its history: a watch can only start from now.
    pub fn compact(&self) {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        state.oldest = state.version;
    }

    /// Restores its store to an earlier state: no watch can be resumed.
    pub fn restore(&self) {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        state.restored = state.version;
        drop(state);
        self.end_watches();
    }

    /// Like `kubectl apply`.
    pub fn apply(&self, name: &str, spec: Value) {
        self.change(UPDATES, name, |object| {
            let generation = object["metadata"]["generation"].as_i64().unwrap();
            if object["spec"] != spec {
                object["metadata"]["generation"] = json!(generation + 1);
                object["spec"] = spec;
            }
        });
    }

    /// Sets the phase in the status.
    pub fn phase(&self, name: &str, phase: &str) {
        self.change(UPDATES, name, |object| {
            object["status"]["phase"] = json!(phase)
        });
    }

    fn change(&self, path: &'static str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        let version = state.version;
        let is_new = !state.objects.contains_key(&(path, name.to_owned()));
        let object = state.objects.entry((path, name.to_owned())).or_insert_with(|| {
            json!({
                "apiVersion": if path == UPDATES { "nvidia.com/v1alpha1" } else { "discovery.k8s.io/v1" },
                "kind": if path == UPDATES { "DynamoUpdateConfig" } else { "EndpointSlice" },
                "metadata": {
                    "name": name, "namespace": "default", "uid": format!("uid-{name}-{version}"), "generation": 0,
                    "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", version.min(59)),
                },
            })
        });
        change(object);
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let object = object.clone();
        let kind = if is_new { "ADDED" } else { "MODIFIED" };
        state.log.push((version, path, kind, object));
        self.changed.send_replace(version);
    }

    /// Sets the addresses behind a Service.
    pub fn slice(&self, service: &str, port: u16, addresses: &[&str]) {
        self.change(SLICES, &format!("{service}-abc"), |object| {
            object["metadata"]["labels"] = json!({"kubernetes.io/service-name": service});
            object["addressType"] = json!("IPv4");
            object["ports"] = json!([{"name": "http", "port": port, "protocol": "TCP"}]);
            let endpoints = addresses
                .iter()
                .map(|address| json!({"addresses": [address], "conditions": {"ready": true}}));
            object["endpoints"] = endpoints.collect();
        });
    }

    pub fn delete(&self, name: &str) {
        let mut state = self.state.lock().unwrap();
        let mut object = state
            .objects
            .remove(&(UPDATES, name.to_owned()))
            .expect("it exists");
        state.version += 1;
        let version = state.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        state.log.push((version, UPDATES, "DELETED", object));
        self.changed.send_replace(version);
    }

    /// The reason and note of each Event it received.
    pub fn events(&self) -> Vec<(String, String)> {
        let state = self.state.lock().unwrap();
        let text = |event: &Value, field: &str| event[field].as_str().unwrap().to_owned();
        let events = state.events.values();
        events
            .map(|event| (text(event, "reason"), text(event, "note")))
            .collect()
    }

    /// Waits for an Event with this reason and returns its note.
    pub async fn event(&self, reason: &str) -> String {
        super::until(&format!("an Event {reason}"), async || {
            let mut found = self
                .events()
                .into_iter()
                .filter(|(known, _)| known == reason);
            let first = found.next()?;
            assert!(found.next().is_none(), "two Events {reason}");
            Some(first.1)
        })
        .await
    }

    pub fn event_tries(&self) -> usize {
        self.state.lock().unwrap().tries
    }

    /// From now on, field selectors for updates are not supported.
    pub fn cannot_select(&self) {
        self.state.lock().unwrap().cannot_select = true;
        self.end_watches();
    }

    /// How many events its watches on updates have sent.
    pub fn events_sent(&self) -> usize {
        self.state.lock().unwrap().events_sent
    }

    /// The number of lists and watches requested so far.
    pub fn lists_and_watches(&self) -> (usize, usize) {
        let state = self.state.lock().unwrap();
        (state.lists, state.watches)
    }

    /// Waits until `count` watches have been requested in total.
    pub async fn watched(&self, count: usize) {
        super::eventually("a watch", async || self.lists_and_watches().1 >= count).await;
    }
}

async fn answer(
    state: &Arc<Mutex<State>>,
    changed: &watch::Sender<u64>,
    request: Request<Incoming>,
) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let query: BTreeMap<String, String> = request
        .uri()
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    if path == EVENTS && request.method() == Method::POST {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        return note(state, serde_json::from_slice(&body).unwrap());
    }
    let Some(path) = [UPDATES, SLICES].into_iter().find(|known| *known == path) else {
        return refuse(403, "Forbidden");
    };
    let mut locked = state.lock().unwrap();
    let watching = query.contains_key("watch");
    let scope = Scope::of(path, &query);
    match watching {
        _ if path == SLICES => {}
        true => locked.watches += 1,
        false => locked.lists += 1,
    }
    if let Some(status) = locked.fault {
        return refuse(status, "InternalError");
    }
    if scope.source.is_some() && locked.cannot_select {
        return refuse(400, "BadRequest");
    }
    if !watching {
        let items = locked.objects.iter();
        let items = items.filter(|((of, _), object)| *of == path && scope.holds(object));
        let items: Vec<_> = items.map(|(_, object)| object.clone()).collect();
        let version = locked.version.to_string();
        return whole(
            200,
            &json!({
                "apiVersion": "v1", "kind": "List",
                "metadata": {"resourceVersion": version}, "items": items,
            }),
        );
    }
    let since: u64 = query["resourceVersion"].parse().unwrap();
    if since < locked.restored {
        return refuse(504, "Timeout");
    }
    if since < locked.oldest {
        let gone = json!({"type": "ERROR", "object": {
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410,
            "message": "too old resource version",
        }});
        return whole(200, &gone);
    }
    if locked.cuts_watches {
        return Response::new(Body::default());
    }
    drop(locked);
    let (state, changed) = (Arc::clone(state), changed.subscribe());
    let frames = futures_util::stream::unfold(
        (state, changed, scope, since),
        async |(state, mut changed, scope, since)| {
            changed.mark_unchanged();
            loop {
                let next = {
                    let mut state = state.lock().unwrap();
                    if since < state.restored {
                        return None;
                    }
                    let next = scope.next(&state, since);
                    state.events_sent += usize::from(next.is_some() && scope.path == UPDATES);
                    next
                };
                if let Some((version, kind, object)) = next {
                    let line = format!("{}\n", json!({"type": kind, "object": object}));
                    return Some((
                        Ok(Frame::data(Bytes::from(line))),
                        (state, changed, scope, version),
                    ));
                }
                changed.changed().await.ok()?;
                if *changed.borrow_and_update() == u64::MAX {
                    return None;
                }
            }
        },
    );
    Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)))
}

fn note(state: &Arc<Mutex<State>>, event: Value) -> Response<Body> {
    let mut state = state.lock().unwrap();
    state.tries += 1;
    let name = event["metadata"]["name"].as_str().unwrap().to_owned();
    if state.events.contains_key(&name) {
        return refuse(409, "AlreadyExists");
    }
    state.events.insert(name, event.clone());
    whole(201, &event)
}

fn refuse(status: u16, reason: &str) -> Response<Body> {
    whole(
        status,
        &json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": status,
            "message": format!("injected fault {status}"),
        }),
    )
}

fn whole(status: u16, body: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(format!("{body}\n"))).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}
