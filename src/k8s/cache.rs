//! Caches objects from the API server. A kind is listed when it is first requested, and watched from then on.

mod clocks;
mod confirm;
mod confirmed;
mod groups;
mod objects;
mod slice;
mod store;
mod trim;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use kube::Client;
use kube::api::{Api, ApiResource};
use tokio::sync::{Semaphore, mpsc};

use super::Connection;
use super::throttle::throttled;
use groups::Groups;
use store::{Store, noting};

pub use clocks::BothClocks;
pub use confirmed::{resource_version, version_number};
pub use groups::GroupKind;
pub use objects::Object;
#[cfg(test)]
pub use objects::object;
pub use slice::endpoints as slice_endpoints;
pub use store::{Changed, NotSynced};
pub use trim::{ROLLOUT_LABEL, ROLLOUT_MANAGER, trimmed_update};

/// The namespaces to list and watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    All,
    Namespace(String),
}

/// A cache of every kind that has been requested.
pub struct Cache {
    client: Client,
    scope: Scope,
    changed: mpsc::UnboundedSender<Changed>,
    cache: Mutex<HashMap<String, (Arc<Store>, ApiResource)>>,
    groups: Arc<Groups>,
    /// The client for the lists that confirm what is cached.
    turns: Semaphore,
}

impl Cache {
    /// Creates an empty cache; nothing is watched until it is requested. The receiver is notified of every change.
    #[must_use]
    pub fn new(connection: &Connection, scope: Scope) -> (Self, mpsc::UnboundedReceiver<Changed>) {
        Self::with_client(connection.client.clone(), scope)
    }

    pub(super) fn with_client(
        client: Client,
        scope: Scope,
    ) -> (Self, mpsc::UnboundedReceiver<Changed>) {
        let (changed, changes) = mpsc::unbounded_channel();
        let cache = Self {
            client,
            scope,
            changed,
            cache: Mutex::default(),
            groups: Arc::default(),
            turns: Semaphore::new(confirm::AT_ONCE),
        };
        (cache, changes)
    }

    /// Returns the objects of a kind in a namespace; empty if the cluster does not have the kind.
    ///
    /// # Errors
    /// If the kind is not listed yet, or listing it is rejected.
    pub fn of(&self, kind: &ApiResource, namespace: &str) -> Result<Vec<Object>, NotSynced> {
        let store = self.store(kind);
        let state = store.state();
        store.check(&state)?;
        let objects = state.objects.get(namespace).into_iter();
        Ok(objects.flat_map(BTreeMap::values).cloned().collect())
    }

    /// Returns one object of a kind.
    ///
    /// # Errors
    /// Same as [`Self::of`].
    pub fn one(
        &self,
        kind: &ApiResource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Object>, NotSynced> {
        let store = self.store(kind);
        let state = store.state();
        store.check(&state)?;
        let objects = state.objects.get(namespace);
        Ok(objects.and_then(|objects| objects.get(name)).cloned())
    }

    /// Returns the objects of a kind in all namespaces of the scope.
    ///
    /// # Errors
    /// Same as [`Self::of`].
    pub fn all(&self, kind: &ApiResource) -> Result<Vec<Object>, NotSynced> {
        let store = self.store(kind);
        store.widen();
        let state = store.state();
        store.check(&state)?;
        let objects = state.objects.values();
        Ok(objects.flat_map(BTreeMap::values).cloned().collect())
    }

    /// The objects of a kind in the first of these versions that the cluster serves; empty if it serves none of them.
    ///
    /// # Errors
    /// Same as [`Self::of`].
    pub fn all_of_any(&self, versions: &[ApiResource]) -> Result<Vec<Object>, NotSynced> {
        self.first_served(versions, |version| self.all(version))
    }

    /// The objects of a kind in the first version that the cluster serves; empty if it does not serve the kind.
    ///
    /// # Errors
    /// Same as [`Self::of`], and if the groups of the API cannot be looked up.
    pub fn all_served(&self, kind: &GroupKind) -> Result<Vec<Object>, NotSynced> {
        self.groups.follow(&self.client, &self.changed);
        self.all_of_any(&self.groups.versions(kind)?)
    }

    /// The objects of a kind in a namespace, in the first version that the cluster serves; empty if it does not serve the kind.
    ///
    /// # Errors
    /// Same as [`Self::all_served`].
    pub fn of_group(&self, kind: &GroupKind, namespace: &str) -> Result<Vec<Object>, NotSynced> {
        self.groups.follow(&self.client, &self.changed);
        let versions = self.groups.versions(kind)?;
        self.first_served(&versions, |version| self.of(version, namespace))
    }

    /// What `list` returns for the first of these versions that the cluster serves.
    fn first_served(
        &self,
        versions: &[ApiResource],
        list: impl Fn(&ApiResource) -> Result<Vec<Object>, NotSynced>,
    ) -> Result<Vec<Object>, NotSynced> {
        for version in versions {
            let found = list(version)?;
            if !self.store(version).state().is_absent() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    /// Begins to list and watch a kind that will be needed.
    pub fn begin(&self, kind: &ApiResource) {
        self.store(kind);
    }

    /// The same, if the cluster serves the kind.
    pub fn begin_served(&self, kind: &ApiResource) {
        if self.serves(kind) == Ok(true) {
            self.begin(kind);
        }
    }

    /// The objects of a kind in a namespace. If the cluster does not serve the kind, it is not listed.
    ///
    /// # Errors
    /// Same as [`Self::of`] and [`Self::serves`].
    pub fn of_served(&self, kind: &ApiResource, namespace: &str) -> Result<Vec<Object>, NotSynced> {
        match self.serves(kind)? {
            true => self.of(kind, namespace),
            false => Ok(Vec::new()),
        }
    }

    /// Whether the cluster serves a kind, without listing it. If this process may not look up the API groups, the kind counts as
    /// served: its list determines whether it exists.
    ///
    /// # Errors
    /// If the groups are not looked up yet.
    pub fn serves(&self, kind: &ApiResource) -> Result<bool, NotSynced> {
        self.groups.follow(&self.client, &self.changed);
        match self.groups.serves(kind) {
            Err(NotSynced::Refused { .. }) => Ok(true),
            serves => serves,
        }
    }

    /// The number of kinds of which only the last list is known, because listing or watching them is now rejected.
    #[must_use]
    pub fn stale(&self) -> usize {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let stale = cache.values().filter(|(store, _)| store.state().is_stale());
        stale.count()
    }

    /// Whether the API server confirmed everything in the cache recently and has rejected nothing since.
    #[must_use]
    pub fn are_current(&self) -> bool {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let now = BothClocks::now();
        cache
            .values()
            .all(|(store, _)| store.state().is_current(now))
    }

    fn store(&self, kind: &ApiResource) -> Arc<Store> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let key = format!("{}.{}", kind.plural, kind.api_version);
        let (store, _) = cache.entry(key).or_insert_with(|| {
            let store = Store::new(&kind.plural);
            let client = noting(throttled(self.client.clone()), Arc::clone(&store));
            let api = match &self.scope {
                Scope::All => Api::all_with(client, kind),
                Scope::Namespace(name) => Api::namespaced_with(client, name, kind),
            };
            let filling = Arc::clone(&store).fill(api, self.client.clone(), self.changed.clone());
            tokio::spawn(filling);
            (store, kind.clone())
        });
        Arc::clone(store)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use bytes::Bytes;
    use futures_util::{StreamExt, stream};
    use http::{Request, Response};
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use kube::client::Body;
    use kube::core::GroupVersionKind;
    use serde_json::{Value as Json, json};

    use super::*;

    /// An API server with an empty list that refuses the first watch, then accepts the next one and sends nothing on it.
    fn quiet_api_server(watches: Arc<AtomicUsize>) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let is_watch = request.uri().query().unwrap_or_default().contains("watch=");
            let (status, text) = match is_watch.then(|| watches.fetch_add(1, Ordering::SeqCst)) {
                None => (
                    200,
                    json!({"metadata": {"resourceVersion": "1"}, "items": []}),
                ),
                Some(0) => (
                    503,
                    json!({"status": "Failure", "message": "no", "reason": "No", "code": 503}),
                ),
                Some(_) => (200, Json::Null),
            };
            let first = (!text.is_null()).then(|| Ok(Frame::data(text.to_string().into())));
            let rest = stream::pending::<Result<Frame<Bytes>, Infallible>>();
            let is_open = text.is_null();
            let rest = stream::iter(first).chain(rest.take(usize::from(is_open)));
            let answer = Response::builder().status(status);
            let answer = answer.body(StreamBody::new(rest)).unwrap();
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn a_quiet_kind_whose_watch_continues_after_an_error_is_no_longer_stale() {
        let watches = Arc::new(AtomicUsize::new(0));
        let client = quiet_api_server(Arc::clone(&watches));
        let (cache, _changes) = Cache::with_client(client, Scope::All);
        let teapots = ApiResource::from_gvk(&GroupVersionKind::gvk("a.b", "v1", "Teapot"));
        let mut was_stale = false;
        assert!(cache.all(&teapots).is_err());
        while watches.load(Ordering::SeqCst) < 2 || cache.stale() > 0 {
            was_stale |= cache.stale() == 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(was_stale);
        assert!(cache.all(&teapots).unwrap().is_empty());
    }

    /// An API server that is starting: it does not know the kind until the third list request, and is not ready before that.
    fn beginning_api_server(lists: Arc<AtomicUsize>) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let refused = |code: u16| {
                let text =
                    json!({"status": "Failure", "message": "no", "reason": "No", "code": code});
                (code, text.to_string())
            };
            let query = request.uri().query().unwrap_or_default();
            let is_watch = query.contains("watch=");
            let item = json!({
                "apiVersion": "a.b/v1", "kind": "Teapot", "metadata": {"name": "a", "namespace": "n"},
            });
            let list = json!({"metadata": {"resourceVersion": "1"}, "items": [item]});
            let (status, text) = match request.uri().path() {
                "/readyz" if lists.load(Ordering::SeqCst) < 3 => refused(500),
                "/readyz" => (200, "ok".to_owned()),
                _ if is_watch => (200, String::new()),
                _ if lists.fetch_add(1, Ordering::SeqCst) < 2 => refused(404),
                _ => (200, list.to_string()),
            };
            let first = (!text.is_empty()).then(|| Ok(Frame::data(text.into())));
            let rest = stream::pending::<Result<Frame<Bytes>, Infallible>>();
            let rest = stream::iter(first).chain(rest.take(usize::from(is_watch)));
            let answer = Response::builder().status(status);
            let answer = answer.body(StreamBody::new(rest)).unwrap();
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        Client::new(service, "default")
    }

    /// An API server that has the kind in this version only.
    fn api_server_of(version: &'static str) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let is_watch = query.contains("watch=");
            let item = json!({"metadata": {"name": "a", "namespace": "n"}});
            let list = json!({"metadata": {"resourceVersion": "1"}, "items": [item]});
            let unknown =
                json!({"status": "Failure", "message": "no", "reason": "No", "code": 404});
            let (status, text) = match request.uri().path() {
                "/readyz" => (200, "ok".to_owned()),
                path if !path.contains(&format!("/{version}/")) => (404, unknown.to_string()),
                _ if is_watch => (200, String::new()),
                _ => (200, list.to_string()),
            };
            let first = (!text.is_empty()).then(|| Ok(Frame::data(text.into())));
            let rest = stream::pending::<Result<Frame<Bytes>, Infallible>>();
            let rest = stream::iter(first).chain(rest.take(usize::from(is_watch)));
            let answer = Response::builder().status(status);
            let answer = answer.body(StreamBody::new(rest)).unwrap();
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn a_kind_is_found_in_whichever_of_its_versions_the_cluster_has() {
        let kind =
            |version| ApiResource::from_gvk(&GroupVersionKind::gvk("a.b", version, "Teapot"));
        for version in ["v1", "v1beta1"] {
            let client = api_server_of(version);
            let (cache, _changes) = Cache::with_client(client, Scope::All);
            let begun = Instant::now();
            let found = loop {
                match cache.all_of_any(&[kind("v1"), kind("v1beta1")]) {
                    Ok(found) => break found,
                    Err(error) => assert!(begun.elapsed().as_secs() < 60, "{version}: {error}"),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            };
            assert_eq!(found.len(), 1, "{version}");
        }
    }

    #[tokio::test]
    async fn a_kind_is_not_empty_because_the_api_server_does_not_know_it_yet() {
        let lists = Arc::new(AtomicUsize::new(0));
        let client = beginning_api_server(lists);
        let (cache, _changes) = Cache::with_client(client, Scope::All);
        let teapots = ApiResource::from_gvk(&GroupVersionKind::gvk("a.b", "v1", "Teapot"));
        let found = loop {
            match cache.all(&teapots) {
                Ok(found) => break found,
                Err(not_synced) => assert_eq!(not_synced, NotSynced::NotYet("teapots".to_owned())),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        assert_eq!(found.len(), 1);
    }
}
