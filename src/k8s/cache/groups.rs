//! Finds out which kinds of optional API groups the cluster serves, and in which versions.
//!
//! This way, a kind that the cluster does not serve costs nothing: otherwise, each of its versions would need a watch that fails
//! repeatedly. A kind that was once served counts as served from then on: its own store determines whether its objects are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::api::ApiResource;
use kube::core::GroupVersionKind;
use kube::{Client, Error as ClientError};
use tokio::sync::{Notify, mpsc};

use super::clocks::BothClocks;
use super::store::{Changed, NotSynced, is_ready};
use crate::backoff::Backoff;
use crate::error_chain::error_chain;

/// How long one look-up may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The delay between look-ups: the first one after an error, the longest one also after a success.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(10),
};

/// How long an API server that does not report ready must answer before its answers count. One that is starting does not know all
/// groups at once.
const UNREADY: Duration = Duration::from_secs(30);

/// A kind of an API group, in any version that the cluster serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupKind {
    pub group: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
}

impl GroupKind {
    /// Its name with the group, as kubectl uses it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}.{}", self.kind, self.group)
    }

    fn in_version(&self, version: &str) -> ApiResource {
        let kind = GroupVersionKind::gvk(self.group, version, self.kind);
        ApiResource::from_gvk_with_plural(&kind, self.plural)
    }
}

/// The versions of a group that the cluster serves, the preferred one first, and the plurals in each.
type Versions = Vec<(String, BTreeSet<String>)>;

/// The groups that were requested.
#[derive(Default)]
pub struct Groups {
    state: Mutex<State>,
    added: Notify,
}

#[derive(Default)]
struct State {
    has_begun: bool,
    /// `None` for a group that has not been looked up yet.
    groups: BTreeMap<String, Option<Versions>>,
    /// When the last complete look-up began.
    confirmed: Option<BothClocks>,
    /// Why the last look-up failed.
    refused: Option<String>,
    /// Since when the API server has answered without being ready.
    unready_since: Option<Instant>,
}

impl Groups {
    /// The versions in which the cluster serves a kind, the preferred one first.
    ///
    /// # Errors
    /// If the group has not been looked up yet, or the look-up is rejected.
    pub fn versions(&self, kind: &GroupKind) -> Result<Vec<ApiResource>, NotSynced> {
        self.of_group(kind.group, |versions| {
            let serving = versions.iter();
            let serving = serving.filter(|(_, plurals)| plurals.contains(kind.plural));
            serving
                .map(|(version, _)| kind.in_version(version))
                .collect()
        })
    }

    /// Whether the cluster serves a kind in its version.
    ///
    /// # Errors
    /// Same as [`Self::versions`].
    pub fn serves(&self, kind: &ApiResource) -> Result<bool, NotSynced> {
        self.of_group(&kind.group, |versions| {
            let mut versions = versions.iter();
            versions.any(|(version, plurals)| {
                *version == kind.version && plurals.contains(&kind.plural)
            })
        })
    }

    fn of_group<T>(&self, group: &str, read: impl FnOnce(&Versions) -> T) -> Result<T, NotSynced> {
        let mut state = self.state();
        let versions = state.groups.entry(group.to_owned()).or_insert_with(|| {
            self.added.notify_one();
            None
        });
        if let Some(versions) = versions {
            return Ok(read(versions));
        }
        let plural = "API groups".to_owned();
        Err(match state.refused.clone() {
            Some(cause) => NotSynced::Refused { plural, cause },
            None => NotSynced::NotYet(plural),
        })
    }

    /// Whether a look-up that began within this time has confirmed the groups, if any was requested.
    pub fn are_confirmed(&self, within: Duration) -> bool {
        let state = self.state();
        let now = BothClocks::now();
        let is_recent = |at: BothClocks| at.elapsed(now) < within;
        state.groups.is_empty() || state.confirmed.is_some_and(is_recent)
    }

    /// Looks the groups up repeatedly, until the receiver of changes is dropped. Only the first call does anything.
    pub fn follow(self: &Arc<Self>, client: &Client, changed: &mpsc::UnboundedSender<Changed>) {
        if std::mem::replace(&mut self.state().has_begun, true) {
            return;
        }
        let (groups, client, changed) = (Arc::clone(self), client.clone(), changed.clone());
        tokio::spawn(async move {
            let mut failures = 0;
            while !changed.is_closed() {
                failures = match groups.look_up(&client).await {
                    true => 0,
                    false => failures + 1,
                };
                let delay = match failures {
                    0 => BACKOFF.jittered(u32::MAX, fastrand::f64()),
                    failures => BACKOFF.jittered(failures - 1, fastrand::f64()),
                };
                let added = groups.added.notified();
                let _ = tokio::time::timeout(delay, added).await;
            }
        });
    }

    /// Looks the groups up once. Returns whether the answer counts.
    async fn look_up(&self, client: &Client) -> bool {
        let begun = BothClocks::now();
        let (wanted, has_new) = {
            let state = self.state();
            let wanted: BTreeSet<String> = state.groups.keys().cloned().collect();
            (wanted, state.groups.values().any(Option::is_none))
        };
        // Only an API server that is ready is known to know all of its groups.
        let was_ready = !has_new || is_ready(client).await;
        let answer = tokio::time::timeout(TIMEOUT, served(client, &wanted)).await;
        let mut state = self.state();
        let groups = match answer {
            Ok(Ok(groups)) => groups,
            Ok(Err(error)) => {
                state.refused = Some(error_chain(&error));
                state.unready_since = None;
                return false;
            }
            Err(_) => {
                state.refused = Some("the API server does not respond".to_owned());
                state.unready_since = None;
                return false;
            }
        };
        state.refused = None;
        if !was_ready {
            let since = *state.unready_since.get_or_insert_with(Instant::now);
            if since.elapsed() < UNREADY {
                // Anything that depends on only one kind can still request its list.
                state.refused = Some("the API server is not ready".to_owned());
                return false;
            }
        }
        state.unready_since = None;
        state.confirmed = Some(begun);
        for group in wanted {
            let versions = groups.get(&group).cloned().unwrap_or_default();
            let known = state.groups.entry(group).or_default();
            merge(known.get_or_insert_default(), versions);
        }
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds what is served now.
fn merge(known: &mut Versions, served: Versions) {
    for (version, plurals) in served {
        match known.iter_mut().find(|(known, _)| *known == version) {
            Some((_, known)) => known.extend(plurals),
            None => known.push((version, plurals)),
        }
    }
}

/// The versions of these groups that the cluster serves.
async fn served(
    client: &Client,
    wanted: &BTreeSet<String>,
) -> Result<BTreeMap<String, Versions>, ClientError> {
    let mut found = BTreeMap::new();
    let all = client.list_api_groups().await?.groups.into_iter();
    for group in all.filter(|group| wanted.contains(&group.name)) {
        let mut versions = Versions::new();
        let preferred = group.preferred_version.into_iter();
        for version in preferred.chain(group.versions) {
            if versions.iter().any(|(known, _)| *known == version.version) {
                continue;
            }
            let resources = client.list_api_group_resources(&version.group_version);
            let resources = resources.await?.resources.into_iter();
            let plurals = resources.map(|resource| resource.name).collect();
            versions.push((version.version, plurals));
        }
        found.insert(group.name, versions);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value as Json, json};

    use super::*;

    const TEAPOT: GroupKind = kind("a.b", "Teapot", "teapots");

    const fn kind(group: &'static str, kind: &'static str, plural: &'static str) -> GroupKind {
        GroupKind {
            group,
            kind,
            plural,
        }
    }

    /// An API server that serves `teapots` in two versions, and another kind in one of them. It is ready from the given request for
    /// its state, and refuses the first requests for its groups.
    fn api_server(ready_from: usize, refused: usize) -> Client {
        let (states, groups) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let service = tower::service_fn(move |request: Request<Body>| {
            let refuse = |code: u16| {
                let text = json!({"kind": "Status", "status": "Failure", "message": "no", "reason": "No", "code": code});
                (code, text)
            };
            let version =
                |name: &str| json!({"groupVersion": format!("a.b/{name}"), "version": name});
            let resources = |plurals: &[&str]| -> (u16, Json) {
                let resource = |name: &&str| json!({"name": name, "singularName": "", "namespaced": true, "kind": "Any", "verbs": []});
                let resources: Vec<Json> = plurals.iter().map(resource).collect();
                (
                    200,
                    json!({"groupVersion": "a.b/any", "resources": resources}),
                )
            };
            let (code, answer) = match request.uri().path() {
                "/readyz" if states.fetch_add(1, Ordering::SeqCst) < ready_from => refuse(500),
                "/readyz" => (200, json!("ok")),
                "/apis" if groups.fetch_add(1, Ordering::SeqCst) < refused => refuse(403),
                "/apis" => {
                    let versions = [version("v1"), version("v2")];
                    let group = json!({"name": "a.b", "versions": versions, "preferredVersion": version("v2")});
                    let other = json!({"name": "other", "versions": [{"groupVersion": "other/v1", "version": "v1"}]});
                    (
                        200,
                        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [other, group]}),
                    )
                }
                "/apis/a.b/v1" => resources(&["teapots", "kettles", "teapots/status"]),
                "/apis/a.b/v2" => resources(&["teapots"]),
                path => panic!("{path}"),
            };
            let response = Response::builder().status(code);
            let response = response.body(Body::from(answer.to_string().into_bytes()));
            std::future::ready(Ok::<_, std::convert::Infallible>(response.unwrap()))
        });
        Client::new(service, "default")
    }

    fn versions(groups: &Groups, kind: &GroupKind) -> Vec<String> {
        let versions = groups.versions(kind).unwrap().into_iter();
        versions.map(|kind| kind.api_version).collect()
    }

    #[tokio::test]
    async fn a_kind_has_the_versions_that_the_cluster_serves_and_a_missing_kind_has_none() {
        let (groups, client) = (Groups::default(), api_server(0, 0));
        let kettle = kind("a.b", "Kettle", "kettles");
        let absent = [kind("a.b", "Cup", "cups"), kind("c.d", "Teapot", "teapots")];
        assert!(
            groups.are_confirmed(Duration::ZERO),
            "nothing was requested"
        );
        for kind in [TEAPOT, kettle].iter().chain(&absent) {
            let unknown = NotSynced::NotYet("API groups".to_owned());
            assert_eq!(groups.versions(kind), Err(unknown));
        }
        assert!(!groups.are_confirmed(TIMEOUT));
        assert!(groups.look_up(&client).await);
        assert!(groups.are_confirmed(TIMEOUT) && !groups.are_confirmed(Duration::ZERO));
        assert_eq!(versions(&groups, &TEAPOT), ["a.b/v2", "a.b/v1"]);
        assert_eq!(versions(&groups, &kettle), ["a.b/v1"]);
        for kind in &absent {
            assert_eq!(groups.versions(kind), Ok(Vec::new()), "{kind:?}");
        }
        let served = |kind: &GroupKind, version| groups.serves(&kind.in_version(version)).unwrap();
        assert!(served(&TEAPOT, "v2") && served(&kettle, "v1"));
        assert!(!served(&kettle, "v2") && !served(&absent[0], "v1") && !served(&absent[1], "v1"));
        // A group that had not been requested when the others were looked up.
        let late = kind("e.f", "Cup", "cups");
        assert!(groups.versions(&late).is_err() && groups.serves(&late.in_version("v1")).is_err());
    }

    #[tokio::test]
    async fn an_api_server_that_refuses_or_is_not_ready_does_not_lack_a_kind() {
        let (groups, client) = (Groups::default(), api_server(2, 1));
        let absent = kind("c.d", "Teapot", "teapots");
        assert!(groups.versions(&absent).is_err());
        assert!(!groups.look_up(&client).await);
        let refused = groups.versions(&absent);
        assert!(
            matches!(refused, Err(NotSynced::Refused { .. })),
            "{refused:?}"
        );
        assert!(!groups.look_up(&client).await, "not ready");
        let refused = groups.serves(&absent.in_version("v1"));
        assert!(
            matches!(refused, Err(NotSynced::Refused { .. })),
            "{refused:?}"
        );
        assert!(groups.versions(&absent).is_err() && !groups.are_confirmed(TIMEOUT));
        assert!(groups.look_up(&client).await);
        assert_eq!(groups.versions(&absent), Ok(Vec::new()));
        // A kind that was served stays served: its list determines whether the objects are gone.
        assert!(groups.versions(&TEAPOT).is_err());
        assert!(groups.look_up(&client).await);
        let mut known = vec![("v1".to_owned(), BTreeSet::from(["teapots".to_owned()]))];
        merge(&mut known, Vec::new());
        assert_eq!(known.len(), 1);
    }
}
