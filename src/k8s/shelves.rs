//! What the API server holds of the kinds that are asked for: each is listed when it is first asked for, and watched from
//! then on.
//!
//! Must not know what the objects mean.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Error as ClientError};
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;

use super::Connection;

/// A watch is begun anew after so long, in seconds.
const RENEW: u32 = 25;
/// The pause after an error, doubled with each, half of it chance.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];

/// A kind has to be unknown to the API server for so long to be taken for gone: one that begins anew does not know all kinds
/// at once.
const GONE: Duration = Duration::from_secs(30);
/// A kind that was never listed is taken to be absent sooner, when the API server has been unknowing for so long and says
/// that it is ready (`/readyz`), which it is when its definitions are served.
const ABSENT: Duration = Duration::from_secs(2);
/// How long the API server may take to say so.
const READY: Duration = Duration::from_secs(5);

/// Who was heard so long ago may have changed unseen. A watch is begun anew, and heard by that, far more often.
const CURRENT: Duration = Duration::from_secs(60);

/// An object as the API server holds it; of pods only what is looked at.
pub type Object = Arc<DynamicObject>;

/// An object that is new, has changed or is gone.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The plural of its kind.
    pub plural: String,
    pub object: Object,
}

/// Why nothing can be said of a kind. What could not be listed is not empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unseen {
    #[error("{0} are not listed yet")]
    NotYet(String),
    #[error("{plural} cannot be listed: {cause}")]
    Refused { plural: String, cause: String },
    /// It cannot be counted as it is asked for.
    #[error("{0}")]
    Unclear(String),
}

/// Which namespaces are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    All,
    Namespace(String),
}

/// All kinds that were asked for.
pub struct Shelves {
    client: Client,
    scope: Scope,
    told: mpsc::UnboundedSender<Changed>,
    shelves: Mutex<HashMap<String, Arc<Shelf>>>,
}

/// The objects of one kind, by namespace and name.
type Objects = BTreeMap<String, BTreeMap<String, Object>>;

struct Shelf {
    plural: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    objects: Objects,
    /// Listed in full at least once, or known not to exist in this cluster.
    listed: bool,
    /// The cluster does not have the kind.
    absent: bool,
    /// Why it cannot be listed or watched now. What was listed before stays.
    refused: Option<String>,
    /// When the API server last granted what was asked of it.
    heard: Option<Instant>,
    /// Since when the API server has said nothing but that it does not know the kind.
    unknown_since: Option<Instant>,
}

impl Shelves {
    /// Nothing is watched before it is asked for. Changes are told to the receiver.
    #[must_use]
    pub fn new(connection: &Connection, scope: Scope) -> (Self, mpsc::UnboundedReceiver<Changed>) {
        let (told, changes) = mpsc::unbounded_channel();
        let shelves = Self {
            client: connection.client.clone(),
            scope,
            told,
            shelves: Mutex::default(),
        };
        (shelves, changes)
    }

    /// The objects of a kind in a namespace; none where the cluster does not have the kind.
    ///
    /// # Errors
    /// When they are not listed yet, or may not be.
    pub fn of(&self, kind: &ApiResource, namespace: &str) -> Result<Vec<Object>, Unseen> {
        let shelf = self.shelf(kind);
        let state = shelf.state();
        shelf.check(&state)?;
        let objects = state.objects.get(namespace).into_iter();
        Ok(objects.flat_map(BTreeMap::values).cloned().collect())
    }

    /// One object of a kind.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn one(
        &self,
        kind: &ApiResource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Object>, Unseen> {
        let shelf = self.shelf(kind);
        let state = shelf.state();
        shelf.check(&state)?;
        let objects = state.objects.get(namespace);
        Ok(objects.and_then(|objects| objects.get(name)).cloned())
    }

    /// The objects of a kind in all namespaces that are looked at.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn all(&self, kind: &ApiResource) -> Result<Vec<Object>, Unseen> {
        let shelf = self.shelf(kind);
        let state = shelf.state();
        shelf.check(&state)?;
        let objects = state.objects.values();
        Ok(objects.flat_map(BTreeMap::values).cloned().collect())
    }

    /// Of how many kinds only the last list is known, because a newer one is refused?
    #[must_use]
    pub fn stale(&self) -> usize {
        let shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        let is_stale = |state: &State| state.listed && state.refused.is_some();
        let stale = shelves.values().filter(|shelf| is_stale(&shelf.state()));
        stale.count()
    }

    /// Was all that is held heard of late, with nothing refused since?
    #[must_use]
    pub fn are_current(&self) -> bool {
        let shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        shelves.values().all(|shelf| shelf.state().is_current(now))
    }

    fn shelf(&self, kind: &ApiResource) -> Arc<Shelf> {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        let key = format!("{}.{}", kind.plural, kind.api_version);
        let shelf = shelves.entry(key).or_insert_with(|| {
            let shelf = Arc::new(Shelf {
                plural: kind.plural.clone(),
                state: Mutex::default(),
            });
            let client = noting(self.client.clone(), Arc::clone(&shelf));
            let api = match &self.scope {
                Scope::All => Api::all_with(client, kind),
                Scope::Namespace(name) => Api::namespaced_with(client, name, kind),
            };
            let filling = Arc::clone(&shelf).fill(api, self.client.clone(), self.told.clone());
            tokio::spawn(filling);
            shelf
        });
        Arc::clone(shelf)
    }
}

impl State {
    /// Has the API server only said that it does not know the kind?
    const fn may_be_absent(&self) -> bool {
        !self.listed && self.unknown_since.is_some()
    }

    fn is_current(&self, now: Instant) -> bool {
        let is_heard = |at: Instant| now.saturating_duration_since(at) < CURRENT;
        !self.listed || self.absent || (self.refused.is_none() && self.heard.is_some_and(is_heard))
    }
}

impl Shelf {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, state: &State) -> Result<(), Unseen> {
        let plural = self.plural.clone();
        match &state.refused {
            _ if state.listed => Ok(()),
            Some(cause) => Err(Unseen::Refused {
                plural,
                cause: cause.clone(),
            }),
            None => Err(Unseen::NotYet(plural)),
        }
    }

    async fn fill(
        self: Arc<Self>,
        api: Api<DynamicObject>,
        client: Client,
        told: mpsc::UnboundedSender<Changed>,
    ) {
        let begin = || {
            Box::pin(watcher(
                api.clone(),
                watcher::Config::default().timeout(RENEW),
            ))
        };
        let mut events = begin();
        let mut listed = Vec::new();
        let mut failures = 0;
        // Has the API server said that it is ready, before it was asked last?
        let mut was_ready = false;
        loop {
            match events.next().await {
                Some(Ok(event)) => {
                    if !matches!(event, Event::Init) {
                        failures = 0;
                    }
                    for object in self.take(event, &mut listed) {
                        let plural = self.plural.clone();
                        let _ = told.send(Changed { plural, object });
                    }
                }
                Some(Err(error)) => {
                    let (anew, gone) = self.fails(&error, was_ready, Instant::now());
                    let is_open = self.state().may_be_absent();
                    was_ready = is_open && is_ready(&client).await;
                    if anew {
                        events = begin();
                    }
                    for object in gone {
                        let plural = self.plural.clone();
                        let _ = told.send(Changed { plural, object });
                    }
                    let pause = PAUSES[1].min(PAUSES[0] * 2u32.pow(failures.min(10)));
                    failures += 1;
                    tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                }
                None => events = begin(),
            }
            if told.is_closed() {
                return;
            }
        }
    }

    /// Takes in an event; which objects are new, changed or gone by it?
    fn take(&self, event: Event<DynamicObject>, listed: &mut Vec<Object>) -> Vec<Object> {
        let mut state = self.state();
        state.heard = Some(Instant::now());
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(object) => listed.push(self.trimmed(object)),
            Event::InitDone => {
                let mut objects = Objects::new();
                for object in listed.drain(..) {
                    put(&mut objects, object);
                }
                let before = std::mem::replace(&mut state.objects, objects);
                (state.listed, state.absent) = (true, false);
                return differing(&before, &state.objects);
            }
            Event::Apply(object) => {
                let object = self.trimmed(object);
                put(&mut state.objects, Arc::clone(&object));
                return vec![object];
            }
            Event::Delete(object) => {
                let (namespace, name) = place(&object);
                if let Some(objects) = state.objects.get_mut(&namespace) {
                    objects.remove(&name);
                }
                return vec![self.trimmed(object)];
            }
        }
        Vec::new()
    }

    /// Notes that the API server grants what is asked of it.
    fn is_heard(&self) {
        let mut state = self.state();
        state.unknown_since = None;
        state.heard = Some(Instant::now());
        if state.refused.take().is_some() && state.listed {
            tracing::info!(kind = self.plural, "can be watched again");
        }
    }

    /// Notes an error. Must the watch begin anew, by listing, and which objects are gone by it?
    /// `was_ready` before it was asked, by what the API server says of itself?
    fn fails(&self, error: &watcher::Error, was_ready: bool, now: Instant) -> (bool, Vec<Object>) {
        let code = match error {
            watcher::Error::InitialListFailed(ClientError::Api(status))
            | watcher::Error::WatchStartFailed(ClientError::Api(status)) => status.code,
            _ => 0,
        };
        tracing::debug!(kind = self.plural, %error, "a watch fails");
        let mut state = self.state();
        let since = match code {
            404 => *state.unknown_since.get_or_insert(now),
            _ => {
                state.unknown_since = None;
                now
            }
        };
        // A watch that only has to list anew is no refusal.
        if matches!(code, 410 | 504) || (code == 404 && state.absent) {
            return (true, Vec::new());
        }
        let before = state.refused.take();
        let unknown_for = now.duration_since(since);
        let is_absent = !state.listed && was_ready && unknown_for >= ABSENT;
        let is_gone = code == 404 && (is_absent || unknown_for >= GONE);
        if is_gone {
            let objects = std::mem::take(&mut state.objects);
            (state.listed, state.absent) = (true, true);
            return (true, differing(&objects, &Objects::new()));
        }
        // Not yet refused: the API server may only be beginning.
        if code == 404 && !state.listed {
            return (true, Vec::new());
        }
        let cause = crate::state_api::whole(error);
        if before.is_none() && state.listed && code != 0 {
            tracing::warn!(
                kind = self.plural,
                cause,
                "cannot be watched; what was last listed stays"
            );
        }
        state.refused = Some(cause);
        (code == 404, Vec::new())
    }

    /// Without what is not looked at: there may be thousands.
    fn trimmed(&self, mut object: DynamicObject) -> Object {
        if self.plural == "dynamoupdateconfigs" {
            return Arc::new(object);
        }
        object.metadata.managed_fields = None;
        if self.plural == "pods" {
            let ports = |list: &str| -> Json {
                let containers = object.data["spec"][list].as_array().into_iter().flatten();
                containers
                    .map(
                        |container| json!({"name": container["name"], "ports": container["ports"]}),
                    )
                    .collect()
            };
            let spec = json!({"containers": ports("containers"), "initContainers": ports("initContainers")});
            object.data["spec"] = spec;
        }
        Arc::new(object)
    }
}

/// Does the API server say that it serves all it has?
async fn is_ready(client: &Client) -> bool {
    let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else {
        return false;
    };
    let asked = tokio::time::timeout(READY, client.request_text(request)).await;
    matches!(asked, Ok(Ok(_)))
}

/// A client that tells `shelf` of each answer that grants what was asked: a watch that goes on after an error has no event
/// of its own for that.
fn noting(client: Client, shelf: Arc<Shelf>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request| {
        let (client, shelf) = (client.clone(), Arc::clone(&shelf));
        async move {
            let response = client.send(request).await?;
            if response.status().is_success() {
                shelf.is_heard();
            }
            Ok::<_, ClientError>(response)
        }
    });
    Client::new(service, namespace)
}

fn place(object: &DynamicObject) -> (String, String) {
    let metadata = &object.metadata;
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

fn put(objects: &mut Objects, object: Object) {
    let (namespace, name) = place(&object);
    objects.entry(namespace).or_default().insert(name, object);
}

fn differing(before: &Objects, after: &Objects) -> Vec<Object> {
    let flat = |objects: &Objects| -> BTreeMap<(String, String), Object> {
        let all = objects.values().flat_map(BTreeMap::values);
        all.map(|object| (place(object), Arc::clone(object)))
            .collect()
    };
    let (before, after) = (flat(before), flat(after));
    let is_same = |key, object: &Object, other: &BTreeMap<(String, String), Object>| {
        other.get(key).is_some_and(|known: &Object| {
            known.metadata.resource_version == object.metadata.resource_version
        })
    };
    let new = after
        .iter()
        .filter(|(key, object)| !is_same(*key, object, &before));
    let gone = before.iter().filter(|(key, _)| !after.contains_key(*key));
    new.chain(gone)
        .map(|(_, object)| Arc::clone(object))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use futures_util::stream;
    use http::{Request, Response};
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use kube::client::Body;
    use kube::core::{GroupVersionKind, Status};

    use super::*;

    fn refusal(code: u16) -> watcher::Error {
        let status = Status {
            code,
            ..Status::failure("no", "No")
        };
        watcher::Error::InitialListFailed(ClientError::Api(status.into()))
    }

    fn shelf() -> Shelf {
        Shelf {
            plural: "teapots".to_owned(),
            state: Mutex::default(),
        }
    }

    fn listed() -> Shelf {
        let shelf = shelf();
        let object = json!({"metadata": {"name": "a", "namespace": "n"}});
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let mut list = Vec::new();
        shelf.take(Event::InitApply(object), &mut list);
        shelf.take(Event::InitDone, &mut list);
        shelf
    }

    fn count(shelf: &Shelf) -> usize {
        shelf.state().objects.values().map(BTreeMap::len).sum()
    }

    #[test]
    fn a_kind_that_was_never_there_is_empty_and_one_that_was_is_gone_after_a_while() {
        let now = Instant::now();
        for (was_ready, after, is_empty) in [
            (true, Duration::ZERO, false),
            (true, ABSENT / 2, false),
            (true, ABSENT, true),
            // One that is not ready yet, or may not be asked.
            (false, ABSENT, false),
            (false, GONE / 2, false),
            (false, GONE, true),
        ] {
            let never = shelf();
            assert!(never.fails(&refusal(404), was_ready, now).0);
            let unseen = never.check(&never.state());
            assert_eq!(unseen, Err(Unseen::NotYet("teapots".to_owned())));
            assert!(never.state().may_be_absent());
            assert!(never.fails(&refusal(404), was_ready, now + after).0);
            let is_listed = never.check(&never.state()).is_ok();
            assert_eq!(is_listed, is_empty, "{was_ready} {after:?}");
            assert!(never.state().refused.is_none(), "which is nothing to tell");
        }

        let shelf = listed();
        assert!(shelf.fails(&refusal(404), true, now).1.is_empty());
        assert!(
            shelf
                .fails(&refusal(404), true, now + GONE / 2)
                .1
                .is_empty()
        );
        assert_eq!(count(&shelf), 1);
        let (_, gone) = shelf.fails(&refusal(404), true, now + GONE);
        assert_eq!(
            (gone.len(), count(&shelf)),
            (1, 0),
            "whom it concerns is told"
        );
    }

    #[test]
    fn an_answer_in_between_begins_the_wait_anew() {
        let (now, shelf) = (Instant::now(), listed());
        shelf.fails(&refusal(404), true, now);
        shelf.is_heard();
        shelf.fails(&refusal(404), true, now + GONE);
        assert_eq!(count(&shelf), 1);
    }

    #[test]
    fn only_an_answer_that_a_kind_is_unknown_begins_the_wait_for_its_end() {
        for other in [
            watcher::Error::InitialListFailed(ClientError::TlsRequired),
            refusal(403),
            refusal(410),
        ] {
            let (now, shelf) = (Instant::now(), listed());
            shelf.fails(&other, true, now);
            let later = now + GONE + GONE / 30;
            assert!(
                shelf.fails(&refusal(404), true, later).1.is_empty(),
                "{other}"
            );
            assert_eq!(count(&shelf), 1, "{other}");
            shelf.fails(&other, true, later + GONE / 2);
            shelf.fails(&refusal(404), true, later + GONE);
            assert_eq!(count(&shelf), 1, "{other}");
            shelf.fails(&refusal(404), true, later + 2 * GONE);
            assert_eq!(count(&shelf), 0, "{other}");
        }
    }

    /// An API server whose list is empty and whose first watch is refused; the next one is granted, and silent.
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
    async fn a_quiet_kind_whose_watch_goes_on_after_an_error_is_no_longer_stale() {
        let watches = Arc::new(AtomicUsize::new(0));
        let (told, _changes) = mpsc::unbounded_channel();
        let shelves = Shelves {
            client: quiet_api_server(Arc::clone(&watches)),
            scope: Scope::All,
            told,
            shelves: Mutex::default(),
        };
        let teapots = ApiResource::from_gvk(&GroupVersionKind::gvk("a.b", "v1", "Teapot"));
        let mut was_stale = false;
        assert!(shelves.all(&teapots).is_err());
        while watches.load(Ordering::SeqCst) < 2 || shelves.stale() > 0 {
            was_stale |= shelves.stale() == 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(was_stale);
        assert!(shelves.all(&teapots).unwrap().is_empty());
    }

    /// An API server that begins: it knows no kind but the third time that it is asked, and is ready only then.
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

    #[tokio::test]
    async fn a_kind_is_not_empty_because_the_api_server_does_not_know_it_yet() {
        let lists = Arc::new(AtomicUsize::new(0));
        let (told, _changes) = mpsc::unbounded_channel();
        let shelves = Shelves {
            client: beginning_api_server(lists),
            scope: Scope::All,
            told,
            shelves: Mutex::default(),
        };
        let teapots = ApiResource::from_gvk(&GroupVersionKind::gvk("a.b", "v1", "Teapot"));
        let found = loop {
            match shelves.all(&teapots) {
                Ok(found) => break found,
                Err(unseen) => assert_eq!(unseen, Unseen::NotYet("teapots".to_owned())),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn what_is_refused_after_it_was_listed_stays_and_is_stale() {
        let (now, shelf) = (Instant::now(), listed());
        shelf.fails(&refusal(403), true, now);
        shelf.fails(&refusal(403), true, now + 10 * GONE);
        assert_eq!(count(&shelf), 1);
        assert!(shelf.check(&shelf.state()).is_ok() && shelf.state().refused.is_some());
        shelf.is_heard();
        assert!(shelf.state().refused.is_none());
    }
}
