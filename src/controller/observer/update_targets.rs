//! The targets of each update. Cached until the update changes, because checking an update involves reading all others.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use kube::api::DynamicObject;

use super::super::parsed::ParsedUpdate;
use super::super::spec_fields::SpecFields;
use crate::k8s::Object;
use crate::resource::{TargetAddress, TargetScope};

/// Where an update sends requests.
pub(super) struct UpdateTargets {
    /// Whether its spec is usable. If not, the targets are all those that it names.
    pub is_usable: bool,
    pub targets: Vec<TargetAddress>,
    /// Whether the targets get a share of the requests.
    pub gives: bool,
    /// The deployments whose proxies may follow it: an unusable update may name another one than its last valid spec.
    pub sources: BTreeSet<String>,
    pub target_deployment: Option<String>,
}

/// The cached state of an update: its `resourceVersion` and its targets.
type CachedTargets = (Option<String>, Arc<UpdateTargets>);

/// Where the updates send requests, by `metadata.uid` and by whether they may name targets anywhere.
#[derive(Default)]
pub(super) struct UpdateTargetsCache(Mutex<HashMap<(String, bool), CachedTargets>>);

impl UpdateTargetsCache {
    /// Where an update that may use the targets of `scope` sends requests.
    pub fn of(&self, update: &Object, scope: &TargetScope) -> Arc<UpdateTargets> {
        let metadata = &update.metadata;
        let Some(uid) = metadata.uid.clone() else {
            return Arc::new(UpdateTargets::of(update, scope));
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (uid, scope.anywhere);
        match known.get(&key) {
            Some((version, targets)) if *version == metadata.resource_version => {
                Arc::clone(targets)
            }
            _ => {
                let targets = Arc::new(UpdateTargets::of(update, scope));
                let version = metadata.resource_version.clone();
                known.insert(key, (version, Arc::clone(&targets)));
                targets
            }
        }
    }

    /// Forgets all except these `updates` once many others are remembered.
    pub fn keep<'a>(&self, updates: impl Iterator<Item = &'a Object> + Clone) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() <= 2 * updates.clone().count() + 64 {
            return;
        }
        let uids: HashSet<&str> = updates
            .filter_map(|one| one.metadata.uid.as_deref())
            .collect();
        known.retain(|(uid, _), _| uids.contains(&**uid));
    }
}

impl UpdateTargets {
    fn of(update: &Object, scope: &TargetScope) -> Self {
        match ParsedUpdate::read_within(update, scope) {
            Ok(parsed) => Self {
                is_usable: true,
                targets: parsed.plan.new.clone(),
                gives: parsed.plan.weights.new_weight() > 0,
                sources: parsed.spec.source_deployment.into_iter().collect(),
                target_deployment: parsed.spec.target_deployment,
            },
            Err(_) => Self {
                is_usable: false,
                targets: targets_of(update),
                gives: true,
                sources: specs_of(update)
                    .filter_map(SpecFields::source)
                    .map(str::to_owned)
                    .collect(),
                target_deployment: None,
            },
        }
    }
}

/// The targets that an update names, in its spec and in the last valid one, even if it cannot be used.
fn targets_of(update: &DynamicObject) -> Vec<TargetAddress> {
    let targets = specs_of(update).flat_map(SpecFields::targets);
    targets.filter_map(|target| target.parse().ok()).collect()
}

/// The spec of an update, and the last valid one.
fn specs_of(update: &DynamicObject) -> impl Iterator<Item = SpecFields<'_>> {
    [SpecFields::of(update), SpecFields::last_valid(update)].into_iter()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn update(uid: &str, version: &str, target: &str) -> Object {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": "u", "namespace": "n", "uid": uid, "resourceVersion": version},
                "spec": {"newFrontendService": target, "trafficSplitPercent": 5, "sourceDeployment": "a"},
            }))
            .unwrap(),
        )
    }

    #[test]
    fn where_an_update_leads_is_remembered_until_it_changes() {
        let leads = UpdateTargetsCache::default();
        let scope = TargetScope {
            namespace: "n".into(),
            domain: "cluster.local".into(),
            anywhere: true,
        };
        let targets = leads.of(&update("1", "1", "http://10.0.0.1:80"), &scope);
        assert!(targets.is_usable && targets.gives);
        let same = leads.of(&update("1", "1", "http://10.0.0.1:80"), &scope);
        assert!(Arc::ptr_eq(&targets, &same));
        let edited = leads.of(&update("1", "2", "http://10.0.0.2:80"), &scope);
        assert_ne!(edited.targets, targets.targets);
        let bad = leads.of(
            &update("2", "3", "https://10.0.0.1:80,http://10.0.0.2:80"),
            &scope,
        );
        assert!(!bad.is_usable && bad.targets.len() == 2);
        let mut edited = (*update("3", "4", "http://10.0.0.1:0")).clone();
        edited.data["status"]["lastValid"]["spec"]["sourceDeployment"] = "b".into();
        let bad = leads.of(&Arc::new(edited), &scope);
        assert!(!bad.is_usable && bad.targets.is_empty());
        assert_eq!(bad.sources, ["a".to_owned(), "b".to_owned()].into());
        for i in 0..100 {
            leads.of(&update(&format!("x{i}"), "1", "http://10.0.0.1:80"), &scope);
        }
        let left = [update("1", "2", "")];
        leads.keep(left.iter());
        assert_eq!(leads.0.lock().unwrap().len(), 1);
    }
}
