//! Decides which updates or rollouts are followed: a limited number per namespace and in total, the oldest first, so that no
//! namespace can use up the controller's memory and time. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Key, parsed};
use crate::k8s::Object;

/// The maximum number of updates that are followed, and likewise of rollouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateLimits {
    /// Per namespace.
    pub per_namespace: usize,
    /// In total.
    pub total: usize,
}

/// The limit that prevents an object from being followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TooMany {
    InNamespace(usize),
    InTotal(usize),
}

impl TooMany {
    /// The limit as text for users. `what` is the plural of what is limited.
    pub fn message(self, what: &str) -> String {
        let (limit, place, flag) = match self {
            Self::InNamespace(limit) => (limit, "in this namespace", "--max-updates-per-namespace"),
            Self::InTotal(limit) => (limit, "in all namespaces", "--max-updates"),
        };
        format!(
            "the controller follows only the {limit} oldest {what} {place} ({flag}); delete {what} that are no longer needed"
        )
    }
}

/// When an object was created, in seconds since 1970, and its name.
type Age = (i64, Key);

/// All updates, or all rollouts, by age.
pub(super) struct Admission {
    most: UpdateLimits,
    ages: HashMap<Key, i64>,
    all: BTreeSet<Age>,
    namespaces: BTreeMap<String, BTreeSet<Age>>,
}

impl Admission {
    pub fn new(most: UpdateLimits) -> Self {
        Self {
            most,
            ages: HashMap::new(),
            all: BTreeSet::new(),
            namespaces: BTreeMap::new(),
        }
    }

    /// Adds an object that exists.
    pub fn add(&mut self, object: &Object) {
        let key = parsed::key(object);
        let created = object.metadata.creation_timestamp.as_ref();
        let created = created.map_or(0, |time| time.0.as_second());
        if self.ages.get(&key) == Some(&created) {
            return;
        }
        self.forget(&key);
        let namespace = key.namespace.clone();
        self.ages.insert(key.clone(), created);
        self.all.insert((created, key.clone()));
        self.namespaces
            .entry(namespace)
            .or_default()
            .insert((created, key));
    }

    /// Forgets an object that was deleted.
    pub fn forget(&mut self, key: &Key) {
        let Some(created) = self.ages.remove(key) else {
            return;
        };
        let age = (created, key.clone());
        self.all.remove(&age);
        if let Some(own) = self.namespaces.get_mut(&key.namespace) {
            own.remove(&age);
            if own.is_empty() {
                self.namespaces.remove(&key.namespace);
            }
        }
    }

    /// Why an object is not followed, if it is not.
    pub fn refuses(&self, key: &Key) -> Option<TooMany> {
        let age = (*self.ages.get(key)?, key.clone());
        let own = self.namespaces.get(&key.namespace)?;
        let most = self.most;
        if own.len() > most.per_namespace && own.range(..age.clone()).count() >= most.per_namespace
        {
            return Some(TooMany::InNamespace(most.per_namespace));
        }
        if self.all.len() <= most.total {
            return None;
        }
        // An object beyond its namespace's limit takes no slot from others.
        let mut counts: HashMap<&str, usize> = HashMap::new();
        let older = self.all.range(..age).filter(|(_, older)| {
            let count = counts.entry(&older.namespace).or_default();
            *count += 1;
            *count <= most.per_namespace
        });
        (older.count() >= most.total).then_some(TooMany::InTotal(most.total))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn update(namespace: &str, name: &str, created: i64) -> Object {
        let created = Timestamp::from_second(created).unwrap().to_string();
        let metadata = json!({"name": name, "namespace": namespace, "creationTimestamp": created});
        Arc::new(serde_json::from_value(json!({"metadata": metadata})).unwrap())
    }

    #[test]
    fn the_oldest_of_each_namespace_are_followed_and_namespaces_do_not_compete() {
        let most = UpdateLimits {
            per_namespace: 2,
            total: 3,
        };
        let mut admission = Admission::new(most);
        let all = [
            update("a", "1", 10),
            update("a", "2", 11),
            update("a", "3", 12),
            update("a", "4", 13),
            update("b", "1", 20),
            update("b", "2", 21),
        ];
        for update in all.iter().rev() {
            admission.add(update);
            admission.add(update);
        }
        let refused = |admission: &Admission| {
            all.each_ref()
                .map(|update| admission.refuses(&parsed::key(update)))
        };
        let (in_namespace, in_all) = (Some(TooMany::InNamespace(2)), Some(TooMany::InTotal(3)));
        let expected = [None, None, in_namespace, in_namespace, None, in_all];
        assert_eq!(refused(&admission), expected);
        admission.forget(&parsed::key(&all[0]));
        let expected = [None, None, None, in_namespace, None, in_all];
        assert_eq!(refused(&admission), expected);
        // If it is recreated, it is the youngest.
        admission.add(&update("a", "1", 30));
        assert_eq!(refused(&admission)[0], in_namespace);
        for update in &all {
            admission.forget(&parsed::key(update));
        }
        assert!(admission.all.is_empty() && admission.namespaces.is_empty());
    }
}
