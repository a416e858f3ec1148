//! The parts of a set of manifests: frontends, workers, and Services, or a graph.

use serde_json::Value as Json;

use super::{COMPONENT, GENERATION, SUB_COMPONENT};
use crate::inject;
use crate::inject::shown;

/// Kinds of workers whose next generation is not created here.
const UNSUPPORTED_KINDS: [&str; 5] = [
    "LeaderWorkerSet",
    "ModelServing",
    "PodClique",
    "PodCliqueScalingGroup",
    "PodCliqueSet",
];
/// Kinds that scale other objects.
const AUTOSCALERS: [&str; 2] = ["HorizontalPodAutoscaler", "ScaledObject"];

/// The parts of a set of manifests.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// A `DynamoGraphDeployment`. If there is one, there are no other frontends and workers.
    pub graph: Option<Json>,
    pub frontend: Json,
    pub workers: Vec<Worker>,
    pub services: Vec<Json>,
    pub others: Vec<Json>,
    /// The autoscalers of workers, in kubectl's notation.
    pub autoscalers: Vec<String>,
    /// Whether the frontends have a sidecar.
    pub has_sidecar: bool,
    /// The label with the graph of the frontends.
    pub graph_label: Option<String>,
}

/// Workers of one role.
#[derive(Debug)]
pub(super) struct Worker {
    pub role: &'static str,
    pub object: Json,
}

impl Parts {
    /// `as_written` are the same objects with their sidecars.
    pub fn of(which: &str, objects: Vec<Json>, as_written: &[Json]) -> Result<Self, String> {
        let mut parts = Self::default();
        let mut frontends = Vec::new();
        let mut graphs = Vec::new();
        let mut workers = Vec::new();
        for object in objects {
            let kind = object["kind"].as_str().unwrap_or_default();
            let makes_pods = matches!(kind, "Deployment" | "StatefulSet");
            match kind {
                "DynamoGraphDeployment" => graphs.push(object),
                "Service" => parts.services.push(object),
                _ if makes_pods && inject::is_dynamo_frontend(&object) => frontends.push(object),
                _ if makes_pods && is_worker(&object) => workers.push(object),
                _ => {
                    if AUTOSCALERS.contains(&kind) {
                        parts.autoscalers.push(shown(&object));
                    }
                    parts.others.push(object);
                }
            }
        }
        let several = |what: &str, objects: &[Json]| {
            let names: Vec<_> = objects.iter().map(shown).collect();
            format!(
                "{which} has several {what}: {}; pass one at a time",
                names.join(", ")
            )
        };
        if graphs.len() > 1 {
            return Err(several("graphs", &graphs));
        }
        parts.graph = graphs.pop();
        if parts.graph.is_some() {
            parts.others.extend(frontends);
            parts.others.extend(workers);
        } else {
            if frontends.len() > 1 {
                return Err(several("frontends", &frontends));
            }
            parts.frontend = frontends.pop().ok_or_else(|| {
                format!("{which} has neither a DynamoGraphDeployment nor a Deployment or StatefulSet that runs dynamo.frontend: `plan` \
                    creates generations of Dynamo; for another server, write the manifests of the next generation yourself, under other names")
            })?;
            if let ([], Some(object)) = (
                &workers[..],
                parts.others.iter().find(|one| is_unplanned(one)),
            ) {
                return Err(unplanned(&shown(object)));
            }
            if workers.is_empty() {
                return Err(format!(
                    "{which} has no workers: no Deployment or StatefulSet runs dynamo.vllm, dynamo.sglang, or dynamo.trtllm, has the label {COMPONENT}, or requests GPUs"
                ));
            }
            parts.workers = with_roles(which, workers)?;
        }
        let main = parts.graph.as_ref().unwrap_or(&parts.frontend);
        let written = as_written.iter().find(|object| is_same(object, main));
        parts.has_sidecar = written.is_some_and(has_sidecar);
        let label = written.and_then(|object| labels(object)[super::GRAPH].as_str());
        parts.graph_label = label.map(str::to_owned);
        Ok(parts)
    }

    /// The graph, or the frontends.
    pub fn main(&self) -> &Json {
        self.graph.as_ref().unwrap_or(&self.frontend)
    }

    /// The hash of their generation, if `plan` created it.
    pub fn hash(&self) -> Option<&str> {
        self.main()["metadata"]["labels"][GENERATION].as_str()
    }
}

/// The labels of the pods of an object.
pub(super) fn labels(object: &Json) -> &Json {
    &object["spec"]["template"]["metadata"]["labels"]
}

/// Whether an object has workers whose next generation is not created here.
pub(super) fn is_unplanned(object: &Json) -> bool {
    object["kind"]
        .as_str()
        .is_some_and(|kind| UNSUPPORTED_KINDS.contains(&kind))
}

/// Why there is no next generation of such an object.
pub(super) fn unplanned(object: &str) -> String {
    format!(
        "{object} has workers, but `plan` supports only Deployments, StatefulSets, and a DynamoGraphDeployment: create the next \
         generation of the other objects and the DynamoRollout yourself"
    )
}

fn has_sidecar(object: &Json) -> bool {
    let text = object.to_string();
    text.contains("\"name\":\"crossfade\"") && text.contains("CROSSFADE_")
}

/// Whether two manifests describe the same object.
pub(super) fn is_same(one: &Json, other: &Json) -> bool {
    let key = |object: &Json| {
        let metadata = &object["metadata"];
        [
            object["kind"].clone(),
            metadata["name"].clone(),
            metadata["namespace"].clone(),
        ]
    };
    key(one) == key(other)
}

/// The name of an object.
pub(super) fn name(object: &Json) -> String {
    object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn command_line(pod: &Json) -> String {
    let containers = pod["containers"].as_array().into_iter().flatten();
    let lists = containers.flat_map(|container| [&container["command"], &container["args"]]);
    let words = lists
        .filter_map(Json::as_array)
        .flatten()
        .filter_map(Json::as_str);
    words.collect::<Vec<_>>().join(" ")
}

fn is_worker(object: &Json) -> bool {
    let of = |labels: &Json| labels[COMPONENT].as_str().map(str::to_owned);
    if let Some(component) = of(labels(object)).or_else(|| of(&object["metadata"]["labels"])) {
        return ["worker", "prefill", "decode"].contains(&&*component);
    }
    let pod = &object["spec"]["template"]["spec"];
    let line = command_line(pod);
    let engines = [
        "dynamo.vllm",
        "dynamo.sglang",
        "dynamo.trtllm",
        "dynamo.mocker",
    ];
    engines.iter().any(|engine| line.contains(engine)) || has_gpu(pod)
}

fn has_gpu(pod: &Json) -> bool {
    let containers = pod["containers"].as_array().into_iter().flatten();
    let mut limits =
        containers.filter_map(|container| container["resources"]["limits"].as_object());
    limits.any(|limits| limits.keys().any(|name| name.ends_with("/gpu")))
}

/// The role that the workers themselves state, if any.
fn role(object: &Json) -> Option<&'static str> {
    let of = |label: &str| labels(object)[label].as_str();
    let line = command_line(&object["spec"]["template"]["spec"]);
    let says = |words: &[&str]| words.iter().any(|word| line.contains(word));
    match (of(COMPONENT), of(SUB_COMPONENT)) {
        (Some("prefill"), _) | (_, Some("prefill")) => Some("prefill"),
        (Some("decode"), _) | (_, Some("decode")) => Some("decode"),
        _ if says(&[
            "--is-prefill-worker",
            "--disaggregation-mode prefill",
            "--disaggregation-mode=prefill",
        ]) =>
        {
            Some("prefill")
        }
        _ if says(&[
            "--is-decode-worker",
            "--disaggregation-mode decode",
            "--disaggregation-mode=decode",
        ]) =>
        {
            Some("decode")
        }
        _ => None,
    }
}

fn with_roles(which: &str, objects: Vec<Json>) -> Result<Vec<Worker>, String> {
    let has_prefill = objects.iter().any(|object| role(object) == Some("prefill"));
    // If some workers only prefill, the others decode.
    let default = if has_prefill { "decode" } else { "worker" };
    let mut workers: Vec<Worker> = Vec::new();
    for object in objects {
        let role = role(&object).unwrap_or(default);
        if let Some(other) = workers.iter().find(|worker| worker.role == role) {
            return Err(format!(
                "{which} has two sets of {role} workers, {} and {}: a rollout moves one of each role; set the label {COMPONENT} to say which is prefill and which is decode",
                shown(&other.object),
                shown(&object)
            ));
        }
        workers.push(Worker { role, object });
    }
    workers.sort_by_key(|worker| worker.role != "prefill");
    Ok(workers)
}

/// An object without the fields that a cluster has added.
pub(super) fn cleaned(object: &Json) -> Json {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.shift_remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in [
            "uid",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "managedFields",
            "selfLink",
        ] {
            metadata.shift_remove(field);
        }
        if let Some(annotations) = metadata
            .get_mut("annotations")
            .and_then(Json::as_object_mut)
        {
            annotations.shift_remove("kubectl.kubernetes.io/last-applied-configuration");
            annotations.shift_remove("deployment.kubernetes.io/revision");
            if annotations.is_empty() {
                metadata.shift_remove("annotations");
            }
        }
    }
    object
}
