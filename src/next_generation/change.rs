//! Determines what an edit changes, and whether the change needs a second generation.

use serde_json::{Map, Value as Json};

use super::parts::{Parts, Worker, cleaned, is_same};
use crate::dynamo_graph;
use crate::inject::shown;

/// The parts that an edit changes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Whether it changes what the workers are.
    workers: bool,
    /// Whether it changes what the frontends are.
    frontends: bool,
    /// Whether it changes anything at all.
    anything: bool,
    /// Other objects that it changes, as kubectl names them.
    pub edited_others: Vec<String>,
}

impl Change {
    /// Why a rolling update is enough, if it is.
    pub const fn rolling_update(&self) -> Option<&'static str> {
        match (self.anything, self.workers, self.frontends) {
            (false, ..) => Some("nothing changes: there is nothing to apply"),
            (_, true, _) => None,
            (_, _, true) => Some(
                "a plain rolling update is enough: only the frontends change, which need no GPU, and their sidecars end \
                 after their last \
                 stream; apply the edited manifests, or use --anyway",
            ),
            (..) => Some(
                "a plain rolling update is enough: only replicas, labels, annotations or resources change, and neither \
                 image, arguments, model \
                 nor environment; apply the edited manifests, or use --anyway",
            ),
        }
    }
}

/// What changes from `from` to `to`.
pub(super) fn between(from: &Parts, to: &Parts) -> Result<Change, String> {
    let edited = |object: &&Json| {
        let before = from.others.iter().find(|other| is_same(other, object));
        before.is_some_and(|before| cleaned(before) != cleaned(object))
    };
    let edited_others: Vec<_> = to.others.iter().filter(edited).map(shown).collect();
    let (workers, frontends) = match (&from.graph, &to.graph) {
        (Some(from), Some(to)) => (
            components(from, is_worker) != components(to, is_worker),
            components(from, |kind| !is_worker(kind)) != components(to, |kind| !is_worker(kind)),
        ),
        (None, None) => (
            all(&from.workers) != all(&to.workers),
            essence(&from.frontend) != essence(&to.frontend),
        ),
        _ => {
            return Err(
                "one of the two has a DynamoGraphDeployment and the other has Deployments: both must be of the same kind".to_owned(),
            );
        }
    };
    let main = |parts: &Parts| cleaned(parts.main());
    let each = |parts: &Parts| -> Vec<Json> {
        parts
            .workers
            .iter()
            .map(|worker| cleaned(&worker.object))
            .collect()
    };
    let is_new = |object: &Json| !from.others.iter().any(|other| is_same(other, object));
    let anything = workers
        || frontends
        || main(from) != main(to)
        || each(from) != each(to)
        || !edited_others.is_empty()
        || to.others.iter().any(is_new);
    Ok(Change {
        workers,
        frontends,
        anything,
        edited_others,
    })
}

fn is_worker(kind: &str) -> bool {
    ["worker", "prefill", "decode"].contains(&kind)
}

fn all(workers: &[Worker]) -> Vec<(&'static str, Json)> {
    let all = workers.iter();
    all.map(|worker| (worker.role, essence(&worker.object)))
        .collect()
}

/// The pod specs of an object, without labels, annotations and resources.
fn essence(object: &Json) -> Json {
    plain(&object["spec"]["template"]["spec"])
}

/// The components of a graph whose type is wanted, each as what its pods are.
fn components(graph: &Json, is_wanted: impl Fn(&str) -> bool) -> Vec<Json> {
    let spec = &graph["spec"];
    let wanted = dynamo_graph::components(spec)
        .filter(|component| is_wanted(component.kind.unwrap_or_default()))
        .map(|component| plain(component.spec));
    // What holds for all components.
    let mut rest = spec.clone();
    if let Some(rest) = rest.as_object_mut() {
        rest.shift_remove("components");
        rest.shift_remove("services");
    }
    std::iter::once(plain(&rest)).chain(wanted).collect()
}

/// What does not change what a server does.
const NOT_ESSENTIAL: [&str; 6] = [
    "replicas",
    "minAvailable",
    "labels",
    "annotations",
    "resources",
    "terminationGracePeriodSeconds",
];

/// Removes fields that do not affect the server.
fn plain(json: &Json) -> Json {
    without(json, &NOT_ESSENTIAL)
}

/// Without these fields, at any depth. Keys are sorted, so that their order means nothing.
pub(super) fn without(json: &Json, names: &[&str]) -> Json {
    match json {
        Json::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.retain(|(name, _)| !names.contains(&name.as_str()));
            fields.sort_by_key(|(name, _)| *name);
            let fields = fields.into_iter();
            let fields = fields.map(|(name, value)| (name.clone(), without(value, names)));
            Json::Object(fields.collect::<Map<_, _>>())
        }
        Json::Array(items) => items.iter().map(|item| without(item, names)).collect(),
        other => other.clone(),
    }
}
