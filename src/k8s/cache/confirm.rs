//! Confirms the cached objects by lists, in addition to the watches. A watch that was granted and delivers nothing, for any
//! reason, looks like one of unchanged objects. Decisions that must not rely on that rely on a recent list.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::{Client, Error as ClientError};
use tokio::sync::mpsc;

use super::clocks::BothClocks;
use super::confirmed::{Part, version_number};
use super::store::Store;
use super::trim::trimmed;
use super::{Cache, Changed, Object, Scope};

use crate::error_chain::error_chain;

/// The maximum age of a list that a decision relies on.
const CONFIRMED: Duration = Duration::from_secs(30);
/// The age at which a list is repeated.
const REPEATED: Duration = Duration::from_secs(15);
/// How long one list may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Objects per request of a list.
const PAGE: u32 = 500;
/// Maximum number of concurrent lists, over all namespaces.
pub const AT_ONCE: usize = 4;

/// A part of a kind that must be listed.
struct ListToConfirm {
    store: Arc<Store>,
    kind: ApiResource,
    part: Part,
}

impl Cache {
    /// Whether consistent reads have recently confirmed everything that the cache holds of these namespaces, of every kind that
    /// is read in all namespaces, and which kinds the cluster serves.
    #[must_use]
    pub fn are_confirmed(&self, namespaces: &BTreeSet<String>) -> bool {
        self.groups.are_confirmed(CONFIRMED) && self.unconfirmed(namespaces, CONFIRMED).is_empty()
    }

    /// Lists the kinds of these namespaces that were not confirmed recently, and applies the results. Returns immediately if
    /// there are none. A list that fails confirms nothing.
    pub async fn confirm(&self, namespaces: &BTreeSet<String>) {
        let wanted = self.unconfirmed(namespaces, REPEATED);
        let lists = wanted.into_iter().map(|wanted| async move {
            // Never closed.
            let _turn = self.turns.acquire().await;
            wanted
                .confirm(&self.client, &self.scope, &self.changed)
                .await;
        });
        join_all(lists).await;
    }

    fn unconfirmed(&self, namespaces: &BTreeSet<String>, within: Duration) -> Vec<ListToConfirm> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let now = BothClocks::now();
        let mut wanted = Vec::new();
        for (store, kind) in cache.values() {
            let is_whole = store.is_wide() || matches!(self.scope, Scope::Namespace(_));
            let parts: Vec<Part> = match is_whole {
                true => vec![None],
                false => namespaces.iter().cloned().map(Some).collect(),
            };
            let state = store.state();
            let is_old = |part: &Part| {
                let age = state.confirmed.age(part, now);
                state.is_listed() && age.is_none_or(|age| age >= within)
            };
            wanted.extend(parts.into_iter().filter(is_old).map(|part| ListToConfirm {
                store: Arc::clone(store),
                kind: kind.clone(),
                part,
            }));
        }
        wanted
    }
}

impl ListToConfirm {
    async fn confirm(
        self,
        client: &Client,
        scope: &Scope,
        sender: &mpsc::UnboundedSender<Changed>,
    ) {
        let namespace = match scope {
            Scope::Namespace(own) => Some(own),
            Scope::All => self.part.as_ref(),
        };
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.kind),
            None => Api::all_with(client.clone(), &self.kind),
        };
        let begun = BothClocks::now();
        self.store.state().confirmed.begin();
        let listed = tokio::time::timeout(TIMEOUT, list(&api, &self.store)).await;
        let mut state = self.store.state();
        let changed = match listed {
            Ok(Ok((objects, version))) if !state.is_absent() => {
                let state = &mut *state;
                let (part, read) = (self.part, (begun, version));
                state
                    .confirmed
                    .merge(&mut state.objects, part, objects, read)
            }
            Ok(Err(ClientError::Api(status))) if status.code == 404 && state.is_absent() => {
                state.confirmed.note_absent(self.part, begun);
                Vec::new()
            }
            Ok(Ok(_)) => Vec::new(),
            Ok(Err(error)) => {
                tracing::debug!(
                    kind = self.store.plural(),
                    error = error_chain(&error),
                    "a list failed and confirms nothing"
                );
                Vec::new()
            }
            Err(_) => {
                tracing::debug!(kind = self.store.plural(), "a list timed out");
                Vec::new()
            }
        };
        state.confirmed.end();
        drop(state);
        for object in changed {
            let plural = self.store.plural().to_owned();
            let _ = sender.send(Changed { plural, object });
        }
    }
}

/// All objects and the `resourceVersion` of the list. Each request without a `resourceVersion` is a consistent read: the API
/// server does not answer it from what it has merely cached.
async fn list(api: &Api<DynamicObject>, store: &Store) -> Result<(Vec<Object>, u64), ClientError> {
    let mut params = ListParams::default().limit(PAGE);
    let (mut objects, mut version) = (Vec::new(), None);
    loop {
        let page = api.list(&params).await?;
        version = version.or(page.metadata.resource_version);
        objects.extend(
            page.items
                .into_iter()
                .map(|object| trimmed(store.plural(), object)),
        );
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok((objects, version_number(version.as_deref()))),
        }
    }
}
