//! Keeps the deletion check of each update, and requests the lists that it needs besides the watches. Contains no policy.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, MutexGuard, PoisonError};

use super::super::Key;
use super::super::deletion_check::DeletionCheck;
use super::super::parsed::ParsedUpdate;
use super::Observer;
use crate::k8s::Object;

impl Observer {
    /// Whether recent lists confirm all that the update rests on.
    pub(super) fn is_confirmed(&self, parsed: &ParsedUpdate) -> bool {
        self.cache.are_confirmed(&self.namespaces(parsed))
    }

    /// Lists what the update rests on, unless that was done recently, and wakes the update if the confirmation was missing.
    pub fn confirm(self: &Arc<Self>, parsed: &ParsedUpdate) {
        let (key, namespaces) = (parsed.key.clone(), self.namespaces(parsed));
        if !self.confirming().insert(key.clone()) {
            return;
        }
        let observer = Arc::clone(self);
        tokio::spawn(async move {
            let cache = &observer.cache;
            let was_confirmed = cache.are_confirmed(&namespaces);
            cache.confirm(&namespaces).await;
            observer.confirming().remove(&key);
            // What cannot be confirmed is tried again when the update is next due.
            if !was_confirmed && cache.are_confirmed(&namespaces) {
                let _ = observer.wake.send(key);
            }
        });
    }

    /// Records the check from the last reconcile of an update.
    pub fn record_deletion_check(&self, key: &Key, check: DeletionCheck) {
        self.deletion_checks().insert(key.clone(), check);
    }

    /// Forgets the check of an update.
    pub fn forget_deletion_check(&self, key: &Key) {
        self.deletion_checks().remove(key);
    }

    /// The check by this process of the current state of `update`, if it is recent.
    pub fn deletion_check(&self, key: &Key, update: &Object) -> Option<DeletionCheck> {
        let checks = self.deletion_checks();
        checks.get(key).filter(|check| check.is_of(update)).cloned()
    }

    fn deletion_checks(&self) -> MutexGuard<'_, HashMap<Key, DeletionCheck>> {
        self.deletion_checks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the other namespaces that an update rests on.
    pub(super) fn rests_on(&self, key: &Key, namespaces: BTreeSet<String>) {
        let mut elsewhere = self
            .elsewhere
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match namespaces.is_empty() {
            true => elsewhere.remove(key),
            false => elsewhere.insert(key.clone(), namespaces),
        };
    }

    /// Adds to the other namespaces that an update rests on.
    pub(super) fn also_rests_on(&self, key: &Key, namespaces: BTreeSet<String>) {
        let mut elsewhere = self
            .elsewhere
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        elsewhere.entry(key.clone()).or_default().extend(namespaces);
    }

    fn confirming(&self) -> MutexGuard<'_, BTreeSet<Key>> {
        self.confirming
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The namespaces with objects that the update rests on.
    fn namespaces(&self, parsed: &ParsedUpdate) -> BTreeSet<String> {
        let domain = &self.settings.options.domain;
        let of_targets = parsed
            .plan
            .new
            .iter()
            .filter_map(|target| target.service(domain));
        let of_targets = of_targets.map(|(_, namespace)| namespace.to_owned());
        let elsewhere = self
            .elsewhere
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let elsewhere = elsewhere.get(&parsed.key).into_iter().flatten().cloned();
        of_targets
            .chain(elsewhere)
            .chain([parsed.key.namespace.clone()])
            .collect()
    }
}
