//! Watches the updates of a namespace, or those of a single deployment in it. Resumes the watch where the API server allows
//! it, and relists where it does not.
//!
//! `kube::runtime::watcher` speaks the protocol, and this module handles its errors: after a 410 or 504 at the start of a watch,
//! the watcher would only repeat the same request. `DeserializeGuard` is not used, because an object that does not match the type is
//! still an update: each of its problems is reported.

use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{CustomResourceExt, Error as ClientError};
use tokio::time::Instant;

use super::Connection;
use super::throttle::throttled;
use super::update::update_of;
use crate::backoff::Backoff;
use crate::error_chain::error_chain;
use crate::resource::{DynamoUpdateConfig, ReportedStatus, Update};

/// How long a watch lasts before it is restarted, in seconds. It is random, as in client-go, so that the watches of many
/// proxies that start together do not restart together. It also bounds how long a dead connection without an error may go
/// unnoticed, which is why it is not longer.
const RENEW: Range<u32> = 60..120;
/// The delays after errors.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(5),
};

/// A change reported by the watch.
#[derive(Debug)]
pub enum WatchEvent {
    /// The full list; it replaces everything known before.
    Replaced(Vec<Update>),
    /// An update was added or changed.
    Applied(Update),
    /// The update of this name was removed.
    Deleted(String),
    /// The API server cannot be reached or returns errors; `last_contact` is when it last answered.
    Disconnected {
        cause: String,
        last_contact: Instant,
    },
    /// The API server can be reached again.
    Reconnected,
}

type Events = Pin<Box<dyn Stream<Item = watcher::Result<Event<DynamicObject>>> + Send>>;

/// A watch on the updates of a namespace.
pub struct Watch {
    api: Api<DynamicObject>,
    events: Events,
    /// The deployment by which updates are selected, if the API server supports the field selector.
    source: Option<String>,
    /// The objects of a list that is still incomplete.
    listed: Vec<Update>,
    contact: tokio::sync::watch::Receiver<Instant>,
    last_contact: Instant,
    lost: Option<String>,
    failures: u32,
    resume: Instant,
}

impl Watch {
    /// Watches the updates of the deployment with these names. The API server can select by one name only, so with several
    /// names all updates of the namespace are watched. Sends no request before [`Watch::next`] is polled.
    #[must_use]
    pub fn new(connection: &Connection, names: &[String]) -> Self {
        // Untyped, because one object that does not match the type would end the watch on all of them.
        let kind: ApiResource = DynamoUpdateConfig::api_resource();
        let client = throttled(connection.update_watch_client.clone());
        let api = Api::namespaced_with(client, connection.namespace(), &kind);
        let source = match names {
            [only] => Some(only.clone()),
            _ => None,
        };
        Self {
            events: events(&api, source.as_deref()),
            api,
            source,
            listed: Vec::new(),
            contact: connection.contact.clone(),
            last_contact: Instant::now(),
            lost: None,
            failures: 0,
            resume: Instant::now(),
        }
    }

    /// Whether the watch is limited to the updates of one deployment. If so, an update that is edited to name another
    /// deployment is reported as removed.
    #[must_use]
    pub const fn is_selective(&self) -> bool {
        self.source.is_some()
    }

    /// Waits for the next event. It is safe to drop the future and call again.
    pub async fn next(&mut self) -> WatchEvent {
        loop {
            let resume = self.resume;
            let event = async {
                tokio::time::sleep_until(resume).await;
                self.events.next().await
            };
            let event = tokio::select! {
                event = event => event,
                Ok(()) = self.contact.changed() => {
                    self.last_contact = *self.contact.borrow_and_update();
                    if self.lost.take().is_some() {
                        return WatchEvent::Reconnected;
                    }
                    continue;
                }
            };
            if let Some(seen) = self.take(event) {
                return seen;
            }
        }
    }

    fn take(&mut self, event: Option<watcher::Result<Event<DynamicObject>>>) -> Option<WatchEvent> {
        let event = match event {
            Some(Ok(event)) => event,
            Some(Err(error)) => return self.lose(error),
            // The stream should never end; restart it if it does.
            None => {
                self.begin();
                return None;
            }
        };
        if !matches!(event, Event::Init) {
            self.last_contact = Instant::now();
            self.failures = 0;
        }
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => self.listed.push(update(&object)),
            Event::InitDone => return Some(WatchEvent::Replaced(std::mem::take(&mut self.listed))),
            Event::Apply(object) => return Some(WatchEvent::Applied(update(&object))),
            Event::Delete(object) => {
                return Some(WatchEvent::Deleted(
                    object.metadata.name.unwrap_or_default(),
                ));
            }
        }
        None
    }

    /// Restarts the watch with a list.
    fn begin(&mut self) {
        self.events = events(&self.api, self.source.as_deref());
    }

    fn lose(&mut self, error: watcher::Error) -> Option<WatchEvent> {
        if self.source.is_some() && is_bad_request(&error) {
            tracing::info!(
                "the API server cannot select updates by spec.sourceDeployment, so all updates of the namespace are watched; \
                 on Kubernetes 1.31 or later, it can with the definition that `crossfade crd` prints"
            );
            self.source = None;
            self.begin();
            return None;
        }
        // A watch that only needs to relist is not a lost connection.
        if let watcher::Error::WatchError(status) = &error
            && status.code == 410
        {
            self.resume = Instant::now();
            return None;
        }
        self.resume = Instant::now() + BACKOFF.jittered(self.failures, fastrand::f64());
        self.failures = self.failures.saturating_add(1);
        if must_relist(&error) {
            self.begin();
        }
        // Ignore responses from before the error: they do not indicate recovery.
        self.contact.mark_unchanged();
        self.last_contact = self.last_contact.max(*self.contact.borrow());
        let cause = error_chain(&error);
        if self.lost.as_ref() == Some(&cause) {
            return None;
        }
        self.lost = Some(cause.clone());
        let last_contact = self.last_contact;
        Some(WatchEvent::Disconnected {
            cause,
            last_contact,
        })
    }
}

/// Whether a watch must begin with a new list, because it cannot be resumed: after a 410, and after a 504 ("Too large resource
/// version"), when the store of the API server was restored to an older state. `kube::runtime::watcher` would repeat the same
/// request.
pub(super) fn must_relist(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(ClientError::Api(status)) => {
            matches!(status.code, 410 | 504)
        }
        _ => false,
    }
}

/// A random watch duration, in seconds.
pub(super) fn length() -> u32 {
    fastrand::u32(RENEW)
}

fn events(api: &Api<DynamicObject>, source: Option<&str>) -> Events {
    let mut settings = watcher::Config::default().timeout(length());
    if let Some(source) = source {
        settings = settings.fields(&selector(source));
    }
    Box::pin(watcher(api.clone(), settings))
}

/// The field selector for the updates of `source`.
fn selector(source: &str) -> String {
    let mut selector = "spec.sourceDeployment=".to_owned();
    for letter in source.chars() {
        // Same escapes as `fields.EscapeValue` of apimachinery.
        if matches!(letter, '\\' | ',' | '=') {
            selector.push('\\');
        }
        selector.push(letter);
    }
    selector
}

/// Whether the API server rejected the request as malformed, as it does for a selector on a field that is not selectable.
fn is_bad_request(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(ClientError::Api(status))
        | watcher::Error::WatchStartFailed(ClientError::Api(status)) => status.code == 400,
        _ => false,
    }
}

fn update(object: &DynamicObject) -> Update {
    let status = object.data.get("status");
    Update {
        status: status.map(ReportedStatus::of).unwrap_or_default(),
        ..update_of(object)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// How long a new watch lasts, in seconds, as requested from an API server without updates.
    async fn requested_length() -> u32 {
        let requested = Arc::new(Mutex::new(None));
        let noted = Arc::clone(&requested);
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let mut parameters = query.split('&').filter_map(|one| one.split_once('='));
            let length = parameters.find(|(name, _)| *name == "timeoutSeconds");
            if let (Some((_, length)), true) = (length, query.contains("watch=")) {
                noted.lock().unwrap().get_or_insert(length.parse().unwrap());
            }
            let list = json!({"metadata": {"resourceVersion": "1"}, "items": []}).to_string();
            let response = Response::new(Body::from(list.into_bytes()));
            std::future::ready(Ok::<_, Infallible>(response))
        });
        let kind = DynamoUpdateConfig::api_resource();
        let mut watch = events(
            &Api::namespaced_with(Client::new(service, "default"), "n", &kind),
            None,
        );
        loop {
            _ = watch.next().await;
            if let Some(length) = *requested.lock().unwrap() {
                return length;
            }
        }
    }

    #[tokio::test]
    async fn each_watch_lasts_for_another_time_between_one_and_two_minutes() {
        let mut lengths = Vec::new();
        for _ in 0..200 {
            lengths.push(requested_length().await);
        }
        assert!(
            lengths.iter().all(|length| (60..120).contains(length)),
            "{lengths:?}"
        );
        let different: BTreeSet<&u32> = lengths.iter().collect();
        assert!(different.len() > 20, "{lengths:?}");
    }
}
