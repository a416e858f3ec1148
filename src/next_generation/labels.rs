//! The labels that keep the pods of two generations apart.

use std::collections::BTreeSet;

use serde_json::{Map, Value as Json, json};

use super::{
    COMPONENT, DYNAMO_NAMESPACE, GENERATION, GRAPH, SUB_COMPONENT, names::Names, parts::labels,
};

/// Whether a Service selects pods with these labels.
pub(super) fn selects(service: &Json, labels: &Json) -> bool {
    let selector = service["spec"]["selector"].as_object();
    selector.is_some_and(|selector| {
        let has = |(label, value): (&String, &Json)| labels[label.as_str()] == *value;
        !selector.is_empty() && selector.iter().all(has)
    })
}

/// The labels by which the pods of an object are selected, by the object itself or by Services.
pub(super) fn selecting(object: &Json, services: &[Json]) -> BTreeSet<String> {
    let own = object["spec"]["selector"]["matchLabels"].as_object();
    let services = services
        .iter()
        .filter(|service| selects(service, labels(object)));
    let services = services.filter_map(|service| service["spec"]["selector"].as_object());
    own.into_iter()
        .chain(services)
        .flat_map(Map::keys)
        .cloned()
        .collect()
}

/// Gives each label of `selecting` a new value, and adds the labels of the generation and the graph.
pub(super) fn move_labels(
    labels: &mut Json,
    selecting: &BTreeSet<String>,
    names: &Names,
    graph: Option<&str>,
) {
    let Some(labels) = labels.as_object_mut() else {
        return;
    };
    for (label, value) in labels.iter_mut() {
        *value = match label.as_str() {
            GRAPH => graph.map_or_else(|| names.next_in(value), Json::from),
            COMPONENT | SUB_COMPONENT | GENERATION => continue,
            DYNAMO_NAMESPACE => names.next_in(value),
            label if selecting.contains(label) => names.next_in(value),
            _ => continue,
        };
    }
    if labels.contains_key(GENERATION) {
        labels.insert(GENERATION.to_owned(), names.hash.clone().into());
    }
}

/// Adds a label to metadata that may not have labels.
pub(super) fn put(object: &mut Json, label: &str, value: &str) {
    if !object.is_object() {
        *object = json!({});
    }
    object[label] = value.into();
}
