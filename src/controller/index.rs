//! Maps a changed object to the updates that it may affect, by names and labels. Errs on the side of too many updates.
//!
//! Does not interpret the objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value as Json;

use super::Key;
use super::spec_fields::SpecFields;
use crate::k8s::Object;
use crate::k8s::workloads::{is_selected, labels};

/// An index of the objects that updates refer to. Most of thousands of objects affect at most one update.
#[derive(Default)]
pub(super) struct DependencyIndex {
    /// By namespace and name.
    names: HashMap<(String, String), BTreeSet<Key>>,
    selectors: Vec<(BTreeMap<String, String>, Key)>,
    /// By namespace: the updates that count workers by `DynamoWorkerMetadata`.
    metadata: HashMap<String, BTreeSet<Key>>,
    /// The generation at which each update was indexed.
    known: HashMap<Key, IndexedUpdate>,
}

/// An update as it was last indexed.
struct IndexedUpdate {
    generation: Option<i64>,
    source: Option<String>,
}

impl DependencyIndex {
    /// Indexes an update. If it is new or its generation has changed, returns the `sourceDeployment`s for which another
    /// update may take precedence now: the one that it named before and the one that it names now.
    ///
    /// If the present spec is invalid, also indexes what `last_valid` refers to.
    pub fn insert(
        &mut self,
        key: &Key,
        update: &Object,
        last_valid: Option<&Json>,
    ) -> Option<BTreeSet<String>> {
        let generation = update.metadata.generation;
        let before = self.known.get(key);
        if before.is_some_and(|known| known.generation == generation) {
            return None;
        }
        let spec = SpecFields::of(update);
        let source = spec.source().map(str::to_owned);
        let mut sources = self.forget(key);
        sources.extend(source.clone());
        let known = IndexedUpdate { generation, source };
        self.known.insert(key.clone(), known);
        self.add_references(key, spec);
        if let Some(spec) = last_valid {
            self.add_references(key, SpecFields::of_spec(spec));
        }
        Some(sources)
    }

    /// Indexes what a spec refers to.
    fn add_references(&mut self, key: &Key, spec: SpecFields<'_>) {
        let own = &*key.namespace;
        let mut named: BTreeSet<(&str, &str)> = BTreeSet::new();
        for target in spec.targets() {
            let host = target.rsplit("//").next().unwrap_or(target);
            let host = host.split(':').next().unwrap_or(host);
            let mut labels = host.split('.');
            let name = labels.next().unwrap_or_default();
            named.extend([(own, name), (labels.next().unwrap_or(own), name)]);
        }
        let fields = [spec.source(), spec.target(), spec.client_service()];
        named.extend(fields.into_iter().flatten().map(|name| (own, name)));
        for generation in ["old", "new"] {
            let workers = spec.workers(generation);
            named.extend(workers.name().map(|name| (own, name)));
            let selector = workers.selector();
            if !selector.is_empty() {
                self.selectors.push((selector, key.clone()));
            }
            if workers.are_counted_by_metadata() || spec.names_dynamo_namespace() {
                let keys = self.metadata.entry(key.namespace.clone()).or_default();
                keys.insert(key.clone());
            }
        }
        for (namespace, name) in named.into_iter().filter(|(_, name)| !name.is_empty()) {
            let full_name = (namespace.to_owned(), name.to_owned());
            self.names.entry(full_name).or_default().insert(key.clone());
        }
    }

    /// Removes an update. Returns the `sourceDeployment` that it named, if any.
    pub fn forget(&mut self, key: &Key) -> BTreeSet<String> {
        let Some(known) = self.known.remove(key) else {
            return BTreeSet::new();
        };
        self.names.retain(|_, keys| {
            keys.remove(key);
            !keys.is_empty()
        });
        self.selectors.retain(|(_, other)| other != key);
        for keys in self.metadata.values_mut() {
            keys.remove(key);
        }
        known.source.into_iter().collect()
    }

    /// Number of updates.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// The updates that `object` of this kind may affect.
    pub fn of(&self, plural: &str, object: &Object) -> BTreeSet<Key> {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let mut affected = BTreeSet::new();
        let mut by_name = |name: &str| {
            let full_name = (namespace.to_owned(), name.to_owned());
            affected.extend(self.names.get(&full_name).into_iter().flatten().cloned());
        };
        // Owned objects have the owner's name as a prefix.
        let name = object.metadata.name.as_deref().unwrap_or_default();
        by_name(name);
        for (at, _) in name.match_indices('-') {
            by_name(&name[..at]);
        }
        labels(object)
            .into_iter()
            .flatten()
            .for_each(|(_, value)| by_name(value));
        let selected = self.selectors.iter();
        let selected = selected
            .filter(|(selector, key)| key.namespace == namespace && is_selected(object, selector));
        affected.extend(selected.map(|(_, key)| key.clone()));
        // Pods behind the metadata can have any name and labels.
        if matches!(plural, "pods" | "dynamoworkermetadatas") {
            affected.extend(self.metadata.get(namespace).into_iter().flatten().cloned());
        }
        affected
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn object(metadata: Value, spec: Value) -> Object {
        Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
    }

    fn pod(name: &str, labels: Value) -> Object {
        object(
            json!({"name": name, "namespace": "a", "labels": labels}),
            json!({}),
        )
    }

    #[test]
    fn an_edit_concerns_the_source_that_it_leaves_and_the_one_that_it_names() {
        let key = Key {
            namespace: "a".into(),
            name: "up".into(),
        };
        let mut index = DependencyIndex::default();
        let mut edit = |generation: i64, source: Option<&str>| {
            let metadata = json!({"name": "up", "namespace": "a", "generation": generation});
            let update = object(metadata, json!({"sourceDeployment": source}));
            let sources = index.insert(&key, &update, None)?;
            Some(sources.into_iter().collect::<Vec<_>>().join(" "))
        };
        assert_eq!(edit(1, Some("old")).as_deref(), Some("old"));
        assert_eq!(edit(1, Some("old")), None);
        assert_eq!(edit(2, Some("other")).as_deref(), Some("old other"));
        assert_eq!(edit(3, None).as_deref(), Some("other"));
        assert_eq!(edit(4, Some("old")).as_deref(), Some("old"));
        assert_eq!(index.forget(&key), ["old".to_owned()].into());
    }

    #[test]
    fn a_slice_of_another_namespace_concerns_an_update_whose_target_is_there() {
        let key = Key {
            namespace: "a".into(),
            name: "up".into(),
        };
        let mut index = DependencyIndex::default();
        for (generation, target) in [
            "front.b.svc.cluster.local:80",
            "https://front.b.svc.cluster.local",
            "other:80, http://front.b",
        ]
        .into_iter()
        .enumerate()
        {
            let metadata = json!({"name": "up", "namespace": "a", "generation": generation});
            let update = object(metadata, json!({"newFrontendService": target}));
            index.insert(&key, &update, None);
            for (namespace, is_affected) in [("a", true), ("b", true), ("c", false)] {
                let labels = json!({"kubernetes.io/service-name": "front"});
                let metadata = json!({"name": "any", "namespace": namespace, "labels": labels});
                let slice = object(metadata, json!({}));
                let affected = index.of("endpointslices", &slice);
                assert_eq!(affected.contains(&key), is_affected, "{target} {namespace}");
            }
        }
    }

    #[test]
    fn an_invalid_update_still_depends_on_the_objects_of_its_last_valid_spec() {
        let key = Key {
            namespace: "a".into(),
            name: "up".into(),
        };
        let metadata = json!({"name": "up", "namespace": "a", "generation": 2});
        let update = object(metadata, json!({"sourceDeployment": "old"}));
        let mut index = DependencyIndex::default();
        let valid = json!({"sourceDeployment": "old", "targetDeployment": "new"});
        index.insert(&key, &update, Some(&valid));
        for name in ["old-0", "new-0"] {
            assert_eq!(index.of("pods", &pod(name, json!({}))).len(), 1, "{name}");
        }
    }

    #[test]
    fn an_object_affects_updates_that_name_it_or_its_labels_in_its_namespace() {
        let key = |namespace: &str| Key {
            namespace: namespace.into(),
            name: "up".into(),
        };
        let spec = json!({
            "sourceDeployment": "old", "targetDeployment": "new-one", "newFrontendService": "http://front:80",
            "workers": {"new": {"selector": {"track": "next"}}},
        });
        let mut index = DependencyIndex::default();
        for namespace in ["a", "b"] {
            let update = object(
                json!({"name": "up", "namespace": namespace, "generation": 1}),
                spec.clone(),
            );
            assert!(index.insert(&key(namespace), &update, None).is_some());
            let again = index.insert(&key(namespace), &update, None);
            assert_eq!(again, None, "the same edit");
        }
        for (name, labels, is_affected) in [
            ("old", json!({}), true),
            ("old-7d9c-x2x", json!({}), true),
            ("older", json!({}), false),
            ("new-one-0", json!({}), true),
            ("new", json!({}), false),
            ("front-abc", json!({}), true),
            ("any", json!({"graph": "old"}), true),
            ("any", json!({"track": "next"}), true),
            ("any", json!({"track": "last"}), false),
        ] {
            let expected = if is_affected {
                BTreeSet::from([key("a")])
            } else {
                BTreeSet::new()
            };
            assert_eq!(index.of("pods", &pod(name, labels)), expected, "{name}");
        }
        index.forget(&key("a"));
        assert_eq!(
            (index.of("pods", &pod("old", json!({}))).len(), index.len()),
            (0, 1)
        );
    }
}
