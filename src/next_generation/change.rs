//! Determines what an edit changes, and whether the change needs a second generation.

use serde_json::{Map, Value as Json};

use super::parts::{Parts, Worker, cleaned, is_same, is_unplanned, unplanned};
use crate::dynamo_graph;
use crate::inject::shown;

/// The parts that an edit changes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Whether it changes the workers themselves.
    workers: bool,
    /// Whether it changes the frontends themselves.
    frontends: bool,
    /// Whether it changes the kind or name of an object, so that the edited manifests describe another object.
    identities: bool,
    /// Whether it changes anything else in the workers and frontends.
    sizes: bool,
    /// Whether it changes anything at all.
    anything: bool,
    /// Other objects that it changes, in kubectl's notation.
    pub edited_others: Vec<String>,
}

impl Change {
    /// Why a rolling update is enough, if it is.
    pub const fn rolling_update(&self) -> Option<&'static str> {
        if !self.anything {
            return Some("the manifests do not differ: there is nothing to apply");
        }
        if self.workers || self.identities {
            return None;
        }
        Some(match (self.frontends, self.sizes) {
            (true, _) => {
                "a plain rolling update is enough: only the frontends change, which need no GPU, and their sidecars end \
                 after their last stream; apply the edited manifests, or use --anyway"
            }
            (_, true) => {
                "a plain rolling update is enough: only replicas, labels, annotations, or resources change, but not \
                 the image, arguments, model, or environment; apply the edited manifests, or use --anyway"
            }
            _ => {
                "no second generation is needed: neither workers nor frontends change; apply the edited manifests, or use \
                 --anyway"
            }
        })
    }
}

/// What changes from `from` to `to`.
pub(super) fn between(from: &Parts, to: &Parts) -> Result<Change, String> {
    let namespace = |parts: &Parts| {
        parts.main()["metadata"]["namespace"]
            .as_str()
            .map(str::to_owned)
    };
    if let (Some(before), Some(after)) = (namespace(from), namespace(to))
        && before != after
    {
        return Err(format!(
            "{} moves from namespace {before} to {after}: both generations must be in the same namespace",
            shown(to.main())
        ));
    }
    let edited = |object: &&Json| {
        let before = from.others.iter().find(|other| is_same(other, object));
        before.is_some_and(|before| cleaned(before) != cleaned(object))
    };
    let edited_others: Vec<_> = to.others.iter().filter(edited).collect();
    if let (Some(object), None) = (
        edited_others.iter().find(|one| is_unplanned(one)),
        &to.graph,
    ) {
        return Err(unplanned(&shown(object)));
    }
    let edited_others: Vec<_> = edited_others.into_iter().map(shown).collect();
    let (workers, frontends) = match (&from.graph, &to.graph) {
        (Some(from), Some(to)) => (
            components(from, is_worker) != components(to, is_worker),
            components(from, |kind| !is_worker(kind)) != components(to, |kind| !is_worker(kind)),
        ),
        (None, None) => (
            all(&from.workers) != all(&to.workers),
            normalized(&from.frontend) != normalized(&to.frontend),
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
    let sizes = main(from) != main(to) || each(from) != each(to);
    let anything =
        workers || frontends || sizes || !edited_others.is_empty() || to.others.iter().any(is_new);
    Ok(Change {
        workers,
        frontends,
        identities: identities(from) != identities(to),
        sizes,
        anything,
        edited_others,
    })
}

/// The kinds and names of frontends and workers.
fn identities(parts: &Parts) -> Vec<String> {
    let workers = parts.workers.iter().map(|worker| &worker.object);
    std::iter::once(parts.main())
        .chain(workers)
        .map(shown)
        .collect()
}

fn is_worker(kind: &str) -> bool {
    ["worker", "prefill", "decode"].contains(&kind)
}

fn all(workers: &[Worker]) -> Vec<(&'static str, Json)> {
    let all = workers.iter();
    all.map(|worker| (worker.role, normalized(&worker.object)))
        .collect()
}

/// The pod specs of an object, without labels, annotations and resources.
fn normalized(object: &Json) -> Json {
    plain(&object["spec"]["template"]["spec"])
}

/// The components of a graph whose type is wanted, each reduced to the specification of its pods.
fn components(graph: &Json, is_wanted: impl Fn(&str) -> bool) -> Vec<Json> {
    let spec = &graph["spec"];
    let wanted = dynamo_graph::components(spec)
        .filter(|component| is_wanted(component.kind.unwrap_or_default()))
        .map(|component| plain(component.spec));
    // The settings for all components.
    let mut rest = spec.clone();
    if let Some(rest) = rest.as_object_mut() {
        rest.shift_remove("components");
        rest.shift_remove("services");
    }
    std::iter::once(plain(&rest)).chain(wanted).collect()
}

/// Fields that do not affect the server.
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

/// Without these fields, at any depth. Keys are sorted, so that their order does not matter.
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
