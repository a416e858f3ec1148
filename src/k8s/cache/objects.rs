//! The cached objects of one kind, by namespace and name.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::api::DynamicObject;

/// An object as the API server returned it. Pods are trimmed to the fields that are used.
pub type Object = Arc<DynamicObject>;

/// The objects of one kind, by namespace and name.
pub type Objects = BTreeMap<String, BTreeMap<String, Object>>;

/// An object of a test.
#[cfg(test)]
#[must_use]
pub fn object(object: serde_json::Value) -> Object {
    Arc::new(serde_json::from_value(object).expect("an object"))
}

pub fn key_of(object: &DynamicObject) -> (String, String) {
    let metadata = &object.metadata;
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

pub fn put(objects: &mut Objects, object: Object) {
    let (namespace, name) = key_of(&object);
    objects.entry(namespace).or_default().insert(name, object);
}

/// Returns the objects that were added, changed or removed.
pub fn differing(before: &Objects, after: &Objects) -> Vec<Object> {
    let flat = |objects: &Objects| -> BTreeMap<(String, String), Object> {
        let all = objects.values().flat_map(BTreeMap::values);
        all.map(|object| (key_of(object), Arc::clone(object)))
            .collect()
    };
    let (before, after) = (flat(before), flat(after));
    let is_same = |key, object: &Object, other: &BTreeMap<(String, String), Object>| {
        other.get(key).is_some_and(|known: &Object| {
            known.metadata.resource_version == object.metadata.resource_version
        })
    };
    let new = after
        .iter()
        .filter(|(key, object)| !is_same(*key, object, &before));
    let gone = before.iter().filter(|(key, _)| !after.contains_key(*key));
    new.chain(gone)
        .map(|(_, object)| Arc::clone(object))
        .collect()
}
