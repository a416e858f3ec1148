//! What lists have confirmed in addition to a watch, and how their objects are merged with those that the watch has reported.
//! Pure, apart from the clocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::api::DynamicObject;

use super::clocks::BothClocks;
use super::objects::{Object, Objects, key_of, put};

/// How long a confirmation is kept in case it is needed again.
const KEPT: Duration = Duration::from_secs(600);

/// The objects that one list covers: those of a namespace, or all that the cache holds of the kind.
pub type Part = Option<String>;

/// A complete list, made by a consistent read.
#[derive(Clone, Copy)]
struct List {
    /// When it was requested.
    begun: BothClocks,
    /// Its `resourceVersion`; 0 if it is not a number.
    version: u64,
}

/// The lists that have confirmed the objects of one kind.
#[derive(Default)]
pub struct Confirmed {
    lists: BTreeMap<Part, List>,
    /// The objects that the watch reported as deleted while a list was under way, with the version of the deletion.
    deleted: BTreeMap<(String, String), u64>,
    under_way: usize,
}

impl Confirmed {
    /// How long ago the last list of `part` was requested, if there was one.
    pub fn age(&self, part: &Part, now: BothClocks) -> Option<Duration> {
        let list = self.lists.get(part)?;
        Some(list.begun.elapsed(now))
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.lists.clear();
    }

    /// Whether a list has already reported the change in this watch event.
    pub fn covers(&self, object: &DynamicObject) -> bool {
        let version = resource_version(object);
        let namespace = object.metadata.namespace.clone();
        [None, namespace]
            .iter()
            .filter_map(|part| self.lists.get(part))
            .any(|list| (1..=list.version).contains(&version))
    }

    /// Records an object that the watch reports as deleted.
    pub fn note_deleted(&mut self, object: &DynamicObject) {
        if self.under_way > 0 {
            self.deleted
                .insert(key_of(object), resource_version(object));
        }
    }

    /// Begins a list. Call [`Self::end`] once for it.
    pub fn begin(&mut self) {
        self.under_way += 1;
    }

    /// Ends a list that failed or that was merged.
    pub fn end(&mut self) {
        self.under_way -= 1;
        if self.under_way == 0 {
            self.deleted.clear();
        }
    }

    /// Records that the kind is known not to exist.
    pub fn note_absent(&mut self, part: Part, begun: BothClocks) {
        self.note(part, List { begun, version: 0 });
    }

    /// Merges a list of `part`, requested at `begun`, into `objects`. Returns the objects that were added, changed or removed.
    pub fn merge(
        &mut self,
        objects: &mut Objects,
        part: Part,
        listed: Vec<Object>,
        (begun, version_of_list): (BothClocks, u64),
    ) -> Vec<Object> {
        let mut changed = Vec::new();
        let mut keys = BTreeSet::new();
        for object in listed {
            let key = key_of(&object);
            let known = objects.get(&key.0).and_then(|all| all.get(&key.1));
            let is_known = known.is_some_and(|known| {
                let is_same = known.metadata.resource_version == object.metadata.resource_version;
                is_same || resource_version(known) > resource_version(&object)
            });
            let is_deleted = self
                .deleted
                .get(&key)
                .is_some_and(|at| *at > version_of_list);
            if !is_known && !is_deleted {
                put(objects, Arc::clone(&object));
                changed.push(object);
            }
            keys.insert(key);
        }
        // Objects that are newer than the list cannot be in it.
        let is_gone = |object: &Object| {
            resource_version(object) <= version_of_list && !keys.contains(&key_of(object))
        };
        let of_part = |namespace: &str| part.as_deref().is_none_or(|part| part == namespace);
        for (namespace, of_namespace) in objects.iter_mut() {
            if of_part(namespace) {
                of_namespace.retain(|_, object| {
                    let is_gone = is_gone(object);
                    if is_gone {
                        changed.push(Arc::clone(object));
                    }
                    !is_gone
                });
            }
        }
        let version = version_of_list;
        self.note(part, List { begun, version });
        changed
    }

    fn note(&mut self, part: Part, list: List) {
        self.lists
            .retain(|_, known| known.begun.elapsed(list.begun) < KEPT);
        self.lists.insert(part, list);
    }
}

/// A `resourceVersion` as a number, which API servers compare them as; 0 if it is not a number.
#[must_use]
pub fn version_number(version: Option<&str>) -> u64 {
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

/// The `resourceVersion` of an object, as a number.
#[must_use]
pub fn resource_version(object: &DynamicObject) -> u64 {
    version_number(object.metadata.resource_version.as_deref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, version: u64) -> Object {
        let metadata =
            json!({"name": name, "namespace": "n", "resourceVersion": version.to_string()});
        Arc::new(serde_json::from_value(json!({"metadata": metadata})).unwrap())
    }

    fn names(objects: &Objects) -> Vec<(String, u64)> {
        let all = objects.values().flat_map(BTreeMap::values);
        all.map(|one| (key_of(one).1, resource_version(one)))
            .collect()
    }

    fn merge(
        confirmed: &mut Confirmed,
        objects: &mut Objects,
        list: &[Object],
        version: u64,
    ) -> usize {
        let part = Some("n".to_owned());
        let read = (BothClocks::now(), version);
        confirmed.merge(objects, part, list.to_vec(), read).len()
    }

    #[test]
    fn a_list_corrects_what_a_silent_watch_has_missed_and_keeps_what_is_younger() {
        let (mut confirmed, mut objects) = (Confirmed::default(), Objects::new());
        for (name, version) in [
            ("gone", 1),
            ("same", 2),
            ("changed", 3),
            ("ahead", 12),
            ("young", 13),
        ] {
            put(&mut objects, object(name, version));
        }
        let mut elsewhere = (*object("elsewhere", 1)).clone();
        elsewhere.metadata.namespace = Some("other".into());
        put(&mut objects, Arc::new(elsewhere));
        confirmed.begin();
        let list = [
            object("same", 2),
            object("changed", 9),
            object("ahead", 5),
            object("missed", 10),
        ];
        assert_eq!(merge(&mut confirmed, &mut objects, &list, 11), 3);
        confirmed.end();
        let mut expected = [
            ("ahead", 12),
            ("changed", 9),
            ("same", 2),
            ("missed", 10),
            ("young", 13),
            ("elsewhere", 1),
        ];
        expected.sort_unstable();
        let mut found = names(&objects);
        found.sort_unstable();
        assert_eq!(
            found,
            expected.map(|(name, version)| (name.to_owned(), version))
        );
        // The watch catches up after the list.
        assert!(confirmed.covers(&object("gone", 1)) && confirmed.covers(&object("changed", 11)));
        assert!(!confirmed.covers(&object("changed", 12)));
        assert!(
            confirmed
                .age(&Some("n".into()), BothClocks::now())
                .is_some()
        );
        assert!(confirmed.age(&None, BothClocks::now()).is_none());
    }

    #[test]
    fn an_object_deleted_during_a_list_does_not_reappear() {
        let (mut confirmed, mut objects) = (Confirmed::default(), Objects::new());
        confirmed.begin();
        confirmed.note_deleted(&object("a", 12));
        confirmed.note_deleted(&object("again", 8));
        let list = [object("a", 5), object("again", 9)];
        assert_eq!(merge(&mut confirmed, &mut objects, &list, 10), 1);
        confirmed.end();
        assert_eq!(names(&objects), [("again".to_owned(), 9)]);
    }
}
