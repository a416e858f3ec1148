//! Lists and watches one kind, and decides what an error means for its cached objects.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use kube::api::{Api, DynamicObject};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Error as ClientError};
use tokio::sync::mpsc;

use super::{Changed, Store};
use crate::backoff::Backoff;
use crate::error_chain::error_chain;
use crate::k8s::cache::clocks::BothClocks;
use crate::k8s::cache::objects::{Object, Objects, differing, key_of, put};
use crate::k8s::cache::trim::trimmed;

/// How long a watch lasts before it is restarted, in seconds.
const RENEW: u32 = 25;

/// The delays after errors.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(10),
};

/// How long the API server must report a kind as unknown before its objects count as gone. An API server that is starting does
/// not know all kinds at once.
const GONE: Duration = Duration::from_secs(30);

/// The shorter limit for a kind that was never listed, which applies while the API server reports that it is ready
/// (`/readyz`). It is ready only once its CustomResourceDefinitions are served.
const ABSENT: Duration = Duration::from_secs(2);

/// How long `/readyz` may take.
const READY: Duration = Duration::from_secs(5);

impl Store {
    /// Lists and watches the kind until the receiver of changes is dropped.
    pub async fn fill(
        self: Arc<Self>,
        api: Api<DynamicObject>,
        client: Client,
        changed: mpsc::UnboundedSender<Changed>,
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
        // Whether the API server reported ready before the latest request.
        let mut was_ready = false;
        loop {
            match events.next().await {
                Some(Ok(event)) => {
                    if !matches!(event, Event::Init) {
                        failures = 0;
                    }
                    for object in self.take(event, &mut listed) {
                        let plural = self.plural.clone();
                        let _ = changed.send(Changed { plural, object });
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
                        let _ = changed.send(Changed { plural, object });
                    }
                    tokio::time::sleep(BACKOFF.jittered(failures, fastrand::f64())).await;
                    failures = failures.saturating_add(1);
                }
                None => events = begin(),
            }
            if changed.is_closed() {
                return;
            }
        }
    }

    /// Applies an event and returns the objects that it adds, changes or removes.
    fn take(&self, event: Event<DynamicObject>, listed: &mut Vec<Object>) -> Vec<Object> {
        let mut state = self.state();
        // Before the list begins, the API server has confirmed nothing.
        if !matches!(event, Event::Init) {
            state.last_contact = Some(BothClocks::now());
        }
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(object) => listed.push(trimmed(&self.plural, object)),
            Event::InitDone => {
                let mut objects = Objects::new();
                for object in listed.drain(..) {
                    put(&mut objects, object);
                }
                let before = std::mem::replace(&mut state.objects, objects);
                (state.listed, state.absent) = (true, false);
                // The list may be older than what was confirmed while it arrived.
                state.confirmed.clear();
                return differing(&before, &state.objects);
            }
            // A watch that lags reports changes that a later list has already contained.
            Event::Apply(object) | Event::Delete(object) if state.confirmed.covers(&object) => {}
            Event::Apply(object) => {
                let object = trimmed(&self.plural, object);
                put(&mut state.objects, Arc::clone(&object));
                return vec![object];
            }
            Event::Delete(object) => {
                let (namespace, name) = key_of(&object);
                if let Some(objects) = state.objects.get_mut(&namespace) {
                    objects.remove(&name);
                }
                state.confirmed.note_deleted(&object);
                return vec![trimmed(&self.plural, object)];
            }
        }
        Vec::new()
    }

    /// Records that the API server granted a request.
    fn record_contact(&self) {
        let mut state = self.state();
        state.unknown_since = None;
        state.last_contact = Some(BothClocks::now());
        if state.refused.take().is_some() && state.listed {
            tracing::info!(kind = self.plural, "the watch has recovered");
        }
    }

    /// Records an error. Returns whether the watch must restart with a list, and the objects that are gone as a result.
    /// `was_ready` says whether the API server reported ready before the request.
    fn fails(&self, error: &watcher::Error, was_ready: bool, now: Instant) -> (bool, Vec<Object>) {
        let code = match error {
            watcher::Error::InitialListFailed(ClientError::Api(status))
            | watcher::Error::WatchStartFailed(ClientError::Api(status)) => status.code,
            _ => 0,
        };
        tracing::debug!(
            kind = self.plural,
            error = error_chain(error),
            "a watch failed"
        );
        let mut state = self.state();
        let since = match code {
            404 => *state.unknown_since.get_or_insert(now),
            _ => {
                state.unknown_since = None;
                now
            }
        };
        if code == 404 && state.absent {
            state.refused = None;
            return (true, Vec::new());
        }
        // A watch that only needs to relist was not rejected.
        if matches!(code, 410 | 504) {
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
        // Not a rejection yet: the API server may be starting.
        if code == 404 && !state.listed {
            return (true, Vec::new());
        }
        let cause = error_chain(error);
        if before.is_none() && code != 0 {
            let what = match state.listed {
                true => "cannot watch; the last list stays in use",
                false => "cannot list",
            };
            tracing::warn!(kind = self.plural, cause, "{what}");
        }
        state.refused = Some(cause);
        (code == 404, Vec::new())
    }
}

/// Whether the API server reports ready.
pub async fn is_ready(client: &Client) -> bool {
    let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else {
        return false;
    };
    let answer = tokio::time::timeout(READY, client.request_text(request)).await;
    matches!(answer, Ok(Ok(_)))
}

/// Wraps a client so that `store` learns of every successful response: a watch that resumes after an error has no event to report
/// this.
pub fn noting(client: Client, store: Arc<Store>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request| {
        let (client, store) = (client.clone(), Arc::clone(&store));
        async move {
            let response = client.send(request).await?;
            if response.status().is_success() {
                store.record_contact();
            }
            Ok::<_, ClientError>(response)
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kube::core::Status;
    use serde_json::json;

    use super::*;
    use crate::k8s::cache::store::{CURRENT, NotSynced};

    fn refusal(code: u16) -> watcher::Error {
        let status = Status {
            code,
            ..Status::failure("no", "No")
        };
        watcher::Error::InitialListFailed(ClientError::Api(status.into()))
    }

    fn store() -> Arc<Store> {
        Store::new("teapots")
    }

    fn listed() -> Arc<Store> {
        let store = store();
        let object = json!({"metadata": {"name": "a", "namespace": "n"}});
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let mut list = Vec::new();
        store.take(Event::InitApply(object), &mut list);
        store.take(Event::InitDone, &mut list);
        store
    }

    fn count(store: &Store) -> usize {
        store.state().objects.values().map(BTreeMap::len).sum()
    }

    #[test]
    fn a_kind_that_was_never_there_is_empty_and_one_that_was_is_gone_after_a_while() {
        let now = Instant::now();
        for (was_ready, after, is_empty) in [
            (true, Duration::ZERO, false),
            (true, ABSENT / 2, false),
            (true, ABSENT, true),
            // An API server that is not ready, or rejects the question.
            (false, ABSENT, false),
            (false, GONE / 2, false),
            (false, GONE, true),
        ] {
            let never = store();
            assert!(never.fails(&refusal(404), was_ready, now).0);
            let not_synced = never.check(&never.state());
            assert_eq!(not_synced, Err(NotSynced::NotYet("teapots".to_owned())));
            assert!(never.state().may_be_absent());
            assert!(never.fails(&refusal(404), was_ready, now + after).0);
            let is_listed = never.check(&never.state()).is_ok();
            assert_eq!(is_listed, is_empty, "{was_ready} {after:?}");
            assert!(never.state().refused.is_none(), "which is nothing to tell");
        }

        let store = listed();
        assert!(store.fails(&refusal(404), true, now).1.is_empty());
        assert!(
            store
                .fails(&refusal(404), true, now + GONE / 2)
                .1
                .is_empty()
        );
        assert_eq!(count(&store), 1);
        let (_, gone) = store.fails(&refusal(404), true, now + GONE);
        assert_eq!(
            (gone.len(), count(&store)),
            (1, 0),
            "whom it concerns is told"
        );
    }

    #[test]
    fn an_intermediate_response_restarts_the_wait() {
        let (now, store) = (Instant::now(), listed());
        store.fails(&refusal(404), true, now);
        store.record_contact();
        store.fails(&refusal(404), true, now + GONE);
        assert_eq!(count(&store), 1);
    }

    #[test]
    fn only_an_answer_that_a_kind_is_unknown_begins_the_wait_for_its_end() {
        for other in [
            watcher::Error::InitialListFailed(ClientError::TlsRequired),
            refusal(403),
            refusal(410),
        ] {
            let (now, store) = (Instant::now(), listed());
            store.fails(&other, true, now);
            let later = now + GONE + GONE / 30;
            assert!(
                store.fails(&refusal(404), true, later).1.is_empty(),
                "{other}"
            );
            assert_eq!(count(&store), 1, "{other}");
            store.fails(&other, true, later + GONE / 2);
            store.fails(&refusal(404), true, later + GONE);
            assert_eq!(count(&store), 1, "{other}");
            store.fails(&refusal(404), true, later + 2 * GONE);
            assert_eq!(count(&store), 0, "{other}");
        }
    }

    /// So much later by both clocks, or only by one.
    fn later(by: Duration, by_wall: Duration) -> BothClocks {
        let now = BothClocks::now();
        BothClocks(now.0 + by, now.1 + by_wall)
    }

    #[test]
    fn a_list_expires_by_either_clock_and_by_answers_of_the_api_server() {
        let is_current = |store: &Store, now: BothClocks| store.state().is_current(now);
        let almost = CURRENT - Duration::from_secs(1);
        let store = listed();
        assert!(is_current(&store, later(almost, almost)));
        assert!(!is_current(&store, later(CURRENT, CURRENT)));
        // The machine slept, or its clock was set.
        assert!(!is_current(&store, later(Duration::ZERO, CURRENT)));
        assert!(!is_current(&store, later(CURRENT, Duration::ZERO)));
        // An API server that cannot list in time has not refused, but has not confirmed anything either: a new list that has only
        // begun does not make the cache current.
        let last_contact = |store: &Store| store.state().last_contact.unwrap().0;
        let before = last_contact(&store);
        for code in [504, 410] {
            store.fails(&refusal(code), true, Instant::now());
            store.take(Event::Init, &mut Vec::new());
        }
        assert_eq!(last_contact(&store), before);
        store.take(Event::InitDone, &mut Vec::new());
        assert!(last_contact(&store) > before);
    }

    #[test]
    fn a_kind_that_was_absent_is_not_known_to_be_so_while_it_may_not_be_listed() {
        let (now, store) = (Instant::now(), store());
        store.fails(&refusal(404), true, now);
        store.fails(&refusal(404), true, now + ABSENT);
        let is_current = |times: u32| {
            let since = times * CURRENT;
            store.state().is_current(later(since, since))
        };
        assert!(store.state().is_absent() && is_current(2));
        // It exists now, but the client is not allowed to read it.
        store.fails(&refusal(403), true, now + 3 * CURRENT);
        assert!(!is_current(3));
        store.fails(&refusal(404), true, now + 4 * CURRENT);
        assert!(is_current(4));
    }

    #[test]
    fn a_kind_that_becomes_forbidden_stays_and_is_stale() {
        let (now, store) = (Instant::now(), listed());
        store.fails(&refusal(403), true, now);
        store.fails(&refusal(403), true, now + 10 * GONE);
        assert_eq!(count(&store), 1);
        assert!(store.check(&store.state()).is_ok() && store.state().refused.is_some());
        store.record_contact();
        assert!(store.state().refused.is_none());
    }
}
