//! The updates of a namespace, or those of one deployment in it, as they come and go: resumed where the API server lets it,
//! listed anew where it does not.
//!
//! Must not know what an update means.

use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{CustomResourceExt, Error as ClientError};
use tokio::time::Instant;

use super::Connection;
use crate::error_chain::error_chain;
use crate::resource::{DynamoUpdateConfig, Identity, ReportedStatus, Update};

/// A watch is begun anew after so long, in seconds: by chance, as in client-go, so that the watches of many proxies that
/// began together do not go on together. It is also how long a way to the API server that is dead without an error may stay
/// unnoticed, which is why it is not longer.
const RENEW: Range<u32> = 60..120;
/// The pause after an error, doubled with each to the second; half of it is chance, so that not all come back at once.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];

/// What became known.
#[derive(Debug)]
pub enum WatchEvent {
    /// These are all, whatever was known before.
    All(Vec<Update>),
    /// This one is new or has changed.
    Is(Update),
    /// The one of this name is gone.
    Gone(String),
    /// The API server cannot be reached or does not answer as it should; `heard` is when it last did.
    Lost { cause: String, heard: Instant },
    /// It can be reached again.
    Found,
}

type Events = Pin<Box<dyn Stream<Item = watcher::Result<Event<DynamicObject>>> + Send>>;

/// A watch on the updates of a namespace.
pub struct Watch {
    api: Api<DynamicObject>,
    events: Events,
    /// The deployment whose updates alone are asked for, as long as the API server can select them.
    source: Option<String>,
    /// What a list has given so far.
    listed: Vec<Update>,
    contact: tokio::sync::watch::Receiver<Instant>,
    heard: Instant,
    lost: Option<String>,
    failures: u32,
    resume: Instant,
}

impl Watch {
    /// Of the deployment with these names. Only a single name can be selected by; of several, all updates of the namespace
    /// are watched. Nothing is asked before [`Watch::next`] is.
    #[must_use]
    pub fn new(connection: &Connection, names: &[String]) -> Self {
        // Not as its type: one object that cannot be read as such would end the watch on all.
        let kind: ApiResource = DynamoUpdateConfig::api_resource();
        let client = connection.watching.clone();
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
            heard: Instant::now(),
            lost: None,
            failures: 0,
            resume: Instant::now(),
        }
    }

    /// Whether it tells only of the updates of one deployment: one that is edited to name another is gone from it as a
    /// deleted one is.
    #[must_use]
    pub const fn is_selective(&self) -> bool {
        self.source.is_some()
    }

    /// The next that becomes known. It may be dropped and asked again at any time.
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
                    self.heard = *self.contact.borrow_and_update();
                    if self.lost.take().is_some() {
                        return WatchEvent::Found;
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
            // The stream has no end; begun anew all the same.
            None => {
                self.begin();
                return None;
            }
        };
        if !matches!(event, Event::Init) {
            self.heard = Instant::now();
            self.failures = 0;
        }
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => self.listed.push(update(object)),
            Event::InitDone => return Some(WatchEvent::All(std::mem::take(&mut self.listed))),
            Event::Apply(object) => return Some(WatchEvent::Is(update(object))),
            Event::Delete(object) => {
                return Some(WatchEvent::Gone(object.metadata.name.unwrap_or_default()));
            }
        }
        None
    }

    /// Begins by listing.
    fn begin(&mut self) {
        self.events = events(&self.api, self.source.as_deref());
    }

    fn lose(&mut self, error: watcher::Error) -> Option<WatchEvent> {
        if self.source.is_some() && is_bad_request(&error) {
            tracing::info!(
                "the API server cannot select updates by spec.sourceDeployment, so all of the namespace are watched; the \
                 definition of `crossfade crd` lets it, from Kubernetes 1.31 on"
            );
            self.source = None;
            self.begin();
            return None;
        }
        // Where a watch cannot be resumed it is only by listing that it goes on (410), as after the API server's
        // store was put back to an older state (504, "Too large resource version").
        if let watcher::Error::WatchStartFailed(ClientError::Api(status)) = &error
            && matches!(status.code, 410 | 504)
        {
            self.begin();
        }
        let pause = PAUSES[1].min(PAUSES[0] * 2u32.pow(self.failures.min(10)));
        self.resume = Instant::now() + pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.failures += 1;
        // A watch that only has to list anew is no loss.
        if let watcher::Error::WatchError(status) = &error
            && status.code == 410
        {
            self.resume = Instant::now();
            return None;
        }
        // What was heard up to now was before this.
        self.contact.mark_unchanged();
        self.heard = self.heard.max(*self.contact.borrow());
        let cause = error_chain(&error);
        if self.lost.as_ref() == Some(&cause) {
            return None;
        }
        self.lost = Some(cause.clone());
        let heard = self.heard;
        Some(WatchEvent::Lost { cause, heard })
    }
}

/// How long a watch is to last, in seconds.
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

/// By which only the updates of `source` are told.
fn selector(source: &str) -> String {
    let mut selector = "spec.sourceDeployment=".to_owned();
    for letter in source.chars() {
        // As `fields.EscapeValue` of apimachinery.
        if matches!(letter, '\\' | ',' | '=') {
            selector.push('\\');
        }
        selector.push(letter);
    }
    selector
}

/// Is what was asked for nothing that the API server understands? So it answers a selector by a field that is not selectable.
fn is_bad_request(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(ClientError::Api(status))
        | watcher::Error::WatchStartFailed(ClientError::Api(status)) => status.code == 400,
        _ => false,
    }
}

fn update(object: DynamicObject) -> Update {
    let metadata = object.metadata;
    Update {
        identity: Identity {
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            generation: metadata.generation,
        },
        created: metadata
            .creation_timestamp
            .map_or(0, |time| time.0.as_second()),
        status: object
            .data
            .get("status")
            .map(ReportedStatus::of)
            .unwrap_or_default(),
        spec: object.data.get("spec").cloned().unwrap_or_default(),
    }
}
