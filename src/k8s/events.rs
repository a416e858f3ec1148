//! Writes Events on an update or a rollout, for `kubectl describe`: one per reason, edit, and occasion.
//!
//! All proxies of a deployment observe the same state, and so does a controller that restarts. The name of an Event is a hash of
//! the edit, the reason and the occasion, so the API server keeps the first Event and rejects the duplicates. The `Recorder` of
//! `kube::runtime` cannot do this: each process counts its own series. Nothing waits for an Event, and a failed write is only logged.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::sync::mpsc;
use xxhash_rust::xxh3::xxh3_64;

use super::Connection;
use crate::error_chain::error_chain;
use crate::resource::{API_VERSION, Identity};

/// How many Events may be queued; more are dropped.
const WAITING: usize = 32;
/// Attempts per Event, and the pause between them.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_secs(2);
/// How long the API server may take to respond.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum length of a note (events.k8s.io/v1), and the length to which the update's name is cut, in bytes.
const MAX_NOTE: usize = 1024;
const MAX_NAME: usize = 200;
/// `reportingController` of the Events.
const CONTROLLER: &str = "nvidia.com/crossfade";

/// Something to report about an update or a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The update or rollout, and which edit of it.
    pub about: Identity,
    /// Its kind.
    pub kind: &'static str,
    /// One word in CamelCase, such as `Invalid`.
    pub reason: &'static str,
    /// The message.
    pub note: String,
    /// Whether the Event has type `Warning`.
    pub warning: bool,
    /// Distinguishes Events with the same reason about the same edit. Proxies that report the same occasion use the same
    /// value.
    pub occasion: u64,
}

impl Notice {
    /// The Event's name: equal for every proxy that reports the same reason and occasion of the same edit.
    fn name(&self) -> String {
        let about = &self.about;
        let name = about.name.as_deref().unwrap_or("update");
        let name = start(name, MAX_NAME).trim_end_matches(['.', '-']);
        let key = format!(
            "{:?} {:?} {} {}",
            about.uid, about.generation, self.reason, self.occasion
        );
        format!("{name}.{:016x}", xxh3_64(key.as_bytes()))
    }

    fn event(&self, namespace: &str, instance: &str) -> Event {
        let about = self.about.clone();
        Event {
            metadata: ObjectMeta {
                name: Some(self.name()),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(Timestamp::now())),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(instance.to_owned()),
            action: Some("Follow".to_owned()),
            reason: Some(self.reason.to_owned()),
            regarding: Some(ObjectReference {
                api_version: Some(API_VERSION.to_owned()),
                kind: Some(self.kind.to_owned()),
                namespace: about.namespace,
                name: about.name,
                uid: about.uid,
                ..ObjectReference::default()
            }),
            note: Some(start(&self.note, MAX_NOTE).to_owned()),
            type_: Some(if self.warning { "Warning" } else { "Normal" }.to_owned()),
            ..Event::default()
        }
    }
}

/// The longest prefix of `text` with at most `most` bytes.
fn start(text: &str, most: usize) -> &str {
    let ends = text
        .char_indices()
        .map(|(at, letter)| at + letter.len_utf8());
    &text[..ends.take_while(|end| *end <= most).last().unwrap_or(0)]
}

/// The sending half, through which notices are reported.
#[derive(Clone, Debug)]
pub struct Notices(mpsc::Sender<Notice>);

impl Notices {
    /// Queues a notice to be written soon. Drops it if the queue is full.
    pub fn publish(&self, notice: Notice) {
        if let Err(error) = self.0.try_send(notice) {
            tracing::warn!(%error, "dropped an Event");
        }
    }
}

/// Writes notices as Events.
pub struct Reporter {
    client: Client,
    namespace: String,
    instance: String,
    waiting: mpsc::Receiver<Notice>,
}

impl Reporter {
    #[must_use]
    pub fn new(connection: &Connection) -> (Notices, Self) {
        Self::with_room(connection, WAITING)
    }

    /// A reporter whose queue holds `room` notices.
    #[must_use]
    pub fn with_room(connection: &Connection, room: usize) -> (Notices, Self) {
        let (sender, waiting) = mpsc::channel(room);
        let namespace = connection.namespace().to_owned();
        let instance = std::env::var("HOSTNAME")
            .ok()
            .filter(|name| !name.is_empty());
        let reporter = Self {
            client: connection.client.clone(),
            namespace,
            instance: instance.unwrap_or_else(|| "crossfade".to_owned()),
            waiting,
        };
        (Notices(sender), reporter)
    }

    /// Writes queued notices for as long as it is polled.
    pub async fn write(mut self) {
        while let Some(notice) = self.waiting.recv().await {
            let namespace = notice.about.namespace.as_ref().unwrap_or(&self.namespace);
            let api = Api::namespaced(self.client.clone(), namespace);
            let event = notice.event(namespace, &self.instance);
            for attempt in 1.. {
                match create(&api, &event).await {
                    Ok(()) => break,
                    Err(error) if attempt < ATTEMPTS && is_retryable(&error) => {
                        tokio::time::sleep(PAUSE).await
                    }
                    Err(error) => {
                        tracing::warn!(
                            reason = notice.reason,
                            error = error_chain(&error),
                            "cannot write an Event"
                        );
                        break;
                    }
                }
            }
        }
    }
}

async fn create(api: &Api<Event>, event: &Event) -> Result<(), kube::Error> {
    let params = PostParams::default();
    match tokio::time::timeout(TIMEOUT, api.create(&params, event)).await {
        Ok(Ok(_)) => Ok(()),
        // Another proxy wrote it first.
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => Ok(()),
        Ok(Err(error)) => Err(error),
        Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
    }
}

/// Whether a retry may succeed: not after the API server rejected the Event.
fn is_retryable(error: &kube::Error) -> bool {
    !matches!(error, kube::Error::Api(status) if status.code < 500 && status.code != 429)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice() -> Notice {
        Notice {
            about: Identity {
                namespace: Some("default".into()),
                name: Some("my-update".into()),
                uid: Some("u-1".into()),
                generation: Some(3),
            },
            kind: "DynamoUpdateConfig",
            reason: "Invalid",
            note: "ü".repeat(1000),
            warning: true,
            occasion: 0,
        }
    }

    #[test]
    fn all_proxies_give_one_event_the_same_name() {
        let mut other = notice();
        other.note = "in other words".into();
        assert_eq!(notice().name(), other.name());
        assert!(notice().name().starts_with("my-update."));
    }

    #[test]
    fn another_reason_edit_or_object_is_another_event() {
        let mut others = [notice(), notice(), notice()];
        others[0].reason = "Conflict";
        others[1].about.generation = Some(4);
        others[2].about.uid = Some("u-2".into());
        for other in others {
            assert_ne!(notice().name(), other.name());
        }
    }

    #[test]
    fn an_event_is_within_what_the_api_server_takes() {
        let mut long = notice();
        long.about.name = Some(format!("{}.{}", "a".repeat(199), "b".repeat(53)));
        let event = long.event("default", "pod-1");
        let name = event.metadata.name.unwrap();
        assert!(name.len() <= 253 && !name.contains(".."), "{name}");
        assert!(event.note.unwrap().len() <= 1024);
    }
}
