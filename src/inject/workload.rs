//! Finds the objects in a document that create pods of frontends, and the position of each part of the pod.

use serde_json::Value as Json;

use super::path::{Path, below, get};

/// How deep lists of objects may be nested.
pub(super) const MAX_LISTS: usize = 4;

/// An object that creates pods, and its path in the document.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    /// The name in kubectl's notation, such as `Deployment/frontend`; for a component of a graph, with its name.
    pub name: String,
    /// The name by which an update refers to it.
    pub deployment: Option<String>,
    pub namespace: Option<String>,
    /// The whole object.
    pub object: Path,
    /// What creates the pods: the object itself, or a component of a graph.
    pub base: Path,
    pub spec: Path,
    pub annotations: Path,
    pub labels: Path,
    pub creator: PodCreator,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodCreator {
    /// Kubernetes itself.
    Kubernetes,
    /// Dynamo's operator, which adds what the manifest leaves out.
    Operator { main_apart: bool },
}

/// The kinds of objects in a document.
#[derive(Debug)]
pub(super) enum Found {
    Workload(Box<Workload>),
    Service(Path),
    ServiceAccount(Path),
    NetworkPolicy(Path),
    /// A policy for networks of a kind that is not checked.
    OtherPolicy(Path),
    /// It creates pods, but cannot be edited.
    Unsupported {
        name: String,
        why: Unsupported,
    },
    Other,
}

/// Why an object that creates pods cannot be edited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsupported {
    Kind,
    /// A supported kind, of an API that Kubernetes has removed.
    Version,
    /// Its frontends are in the pods of workers.
    FrontendSidecar,
}

impl Unsupported {
    /// The reason in words.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Kind => "inject supports Deployments, StatefulSets, and DynamoGraphDeployments",
            Self::Version => "its apiVersion must be apps/v1",
            Self::FrontendSidecar => {
                "inject does not support frontends in the pods of workers (frontendSidecar)"
            }
        }
    }

    /// What the user can do.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Kind | Self::FrontendSidecar => "run crossfade proxy in pods of its own instead",
            Self::Version => "Kubernetes no longer serves extensions/v1beta1",
        }
    }
}

/// All objects of a document.
pub(super) fn find(root: &Json) -> Vec<Found> {
    let mut found = Vec::new();
    objects(root, &Path::new(), None, MAX_LISTS, &mut found);
    found
}

/// `list` is the list that contains the object.
fn objects(root: &Json, path: &Path, list: Option<&Json>, lists: usize, found: &mut Vec<Found>) {
    let Some(object) = get(root, path) else {
        return;
    };
    let complete = list.and_then(|list| typed(object, list));
    let object = complete.as_ref().unwrap_or(object);
    let kind = object["kind"].as_str().unwrap_or_default();
    match (group(object), kind) {
        (_, kind) if kind.ends_with("List") && object["items"].is_array() && lists > 0 => {
            let items = object["items"].as_array().map_or(0, Vec::len);
            for index in 0..items {
                let path = below(&below(path, ["items"]), [index]);
                objects(root, &path, Some(object), lists - 1, found);
            }
        }
        ("extensions", "Deployment") => found.push(unsupported(object, Unsupported::Version)),
        ("apps", "Deployment" | "StatefulSet") => found.push(plain(object, path, kind)),
        ("nvidia.com", "DynamoGraphDeployment") => graph(object, path, found),
        ("", "Service") => found.push(Found::Service(path.clone())),
        ("networking.k8s.io", "NetworkPolicy") => found.push(Found::NetworkPolicy(path.clone())),
        (_, kind) if kind.ends_with("NetworkPolicy") => {
            found.push(Found::OtherPolicy(path.clone()));
        }
        ("", "ServiceAccount") => found.push(Found::ServiceAccount(path.clone())),
        _ if makes_pods(object) => found.push(unsupported(object, Unsupported::Kind)),
        _ => found.push(Found::Other),
    }
}

/// The group of an object's API.
fn group(object: &Json) -> &str {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    version.split_once('/').map_or("", |(group, _)| group)
}

/// An item with the kind and version that it has because of its list, such as a `DeploymentList`; `None` if it names its own.
pub(super) fn typed(item: &Json, list: &Json) -> Option<Json> {
    let kind = list["kind"].as_str()?.strip_suffix("List")?;
    if kind.is_empty() || !item["kind"].is_null() || !item.is_object() {
        return None;
    }
    let mut item = item.clone();
    item["kind"] = kind.into();
    item["apiVersion"] = list["apiVersion"].clone();
    Some(item)
}

/// The name of an object in kubectl's notation.
#[must_use]
pub fn shown(object: &Json) -> String {
    let kind = object["kind"].as_str().unwrap_or("?");
    let name = &object["metadata"]["name"];
    let name = name
        .as_str()
        .or(object["metadata"]["generateName"].as_str());
    format!("{kind}/{}", name.unwrap_or("?"))
}

/// A boolean as kubectl reads it, which also accepts the words of YAML 1.1.
pub(super) fn truth(json: &Json) -> Option<bool> {
    let word = json.as_str().map(str::to_ascii_lowercase);
    match word.as_deref() {
        Some("yes" | "on" | "y" | "true") => Some(true),
        Some("no" | "off" | "n" | "false") => Some(false),
        _ => json.as_bool(),
    }
}

/// Kinds that create pods of model servers without a pod template in a usual place.
const KINDS: [&str; 11] = [
    "DynamoComponentDeployment",
    "DynamoGraphDeploymentRequest",
    "JobSet",
    "LLMInferenceService",
    "NIMPipeline",
    "NIMService",
    "RayCluster",
    "RayClusterFleet",
    "RayJob",
    "RayService",
    "StormService",
];

fn makes_pods(object: &Json) -> bool {
    let spec = &object["spec"];
    [
        "/containers",
        "/template/spec/containers",
        "/jobTemplate/spec/template/spec/containers",
        "/leaderWorkerTemplate/workerTemplate/spec/containers",
        "/predictor",
    ]
    .into_iter()
    .any(|pointer| spec.pointer(pointer).is_some())
        || KINDS.iter().any(|kind| object["kind"] == *kind)
        // Other groups use this kind for something else.
        || object["kind"] == "Model" && group(object) == "kubeai.org"
}

fn text(json: &Json) -> Option<String> {
    json.as_str().map(str::to_owned)
}

fn plain(object: &Json, path: &Path, kind: &str) -> Found {
    let template = below(path, ["spec", "template"]);
    let name = text(&object["metadata"]["name"]);
    Found::Workload(Box::new(Workload {
        name: format!("{kind}/{}", name.as_deref().unwrap_or("?")),
        deployment: name,
        namespace: text(&object["metadata"]["namespace"]),
        object: path.clone(),
        base: path.clone(),
        spec: below(&template, ["spec"]),
        annotations: below(&template, ["metadata", "annotations"]),
        labels: below(&template, ["metadata", "labels"]),
        creator: PodCreator::Kubernetes,
    }))
}

/// The frontends of a graph, in `v1beta1` (`components`) and in `v1alpha1` (`services`).
fn graph(object: &Json, path: &Path, found: &mut Vec<Found>) {
    let name = text(&object["metadata"]["name"]);
    let of = |component: &str, base: Path, pod: Path, spec: Path, main_apart: bool| {
        Found::Workload(Box::new(Workload {
            name: format!("{} {component}", shown(object)),
            deployment: name.clone(),
            namespace: text(&object["metadata"]["namespace"]),
            object: path.clone(),
            base,
            spec,
            annotations: below(&pod, ["annotations"]),
            labels: below(&pod, ["labels"]),
            creator: PodCreator::Operator { main_apart },
        }))
    };
    let before = found.len();
    for (index, component) in object["spec"]["components"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
    {
        if component["type"] == "frontend" {
            let base = below(&below(path, ["spec", "components"]), [index]);
            let template = below(&base, ["podTemplate"]);
            let name = component["name"].as_str().unwrap_or("frontend");
            found.push(of(
                name,
                base,
                below(&template, ["metadata"]),
                below(&template, ["spec"]),
                false,
            ));
        }
    }
    for (name, service) in object["spec"]["services"].as_object().into_iter().flatten() {
        if service["componentType"] == "frontend" || name.eq_ignore_ascii_case("frontend") {
            let base = below(path, ["spec", "services", name]);
            found.push(of(
                name,
                base.clone(),
                base.clone(),
                below(&base, ["extraPodSpec"]),
                true,
            ));
        }
    }
    if found.len() == before {
        let components = object["spec"]["components"]
            .as_array()
            .into_iter()
            .flatten();
        let services = object["spec"]["services"].as_object().into_iter().flatten();
        let mut all = components.chain(services.map(|(_, service)| service));
        let why = match all.any(|component| !component["frontendSidecar"].is_null()) {
            true => Unsupported::FrontendSidecar,
            false => Unsupported::Kind,
        };
        found.push(unsupported(object, why));
    }
}

fn unsupported(object: &Json, why: Unsupported) -> Found {
    let name = shown(object);
    Found::Unsupported { name, why }
}

impl Workload {
    /// The containers of the pod that may be the frontend, each with its path.
    pub fn containers<'j>(&self, root: &'j Json) -> Vec<(Path, &'j Json)> {
        let mut containers = self.list(root, "containers");
        if self.creator == (PodCreator::Operator { main_apart: true }) {
            let path = below(&self.spec, ["mainContainer"]);
            if let Some(main) = get(root, &path) {
                containers.insert(0, (path, main));
            }
        }
        containers
    }

    /// The path where the container `main` would be added, which the operator creates if the manifest does not contain it.
    pub fn place_of_main(&self, root: &Json, main: &str) -> Option<Path> {
        let PodCreator::Operator { main_apart } = self.creator else {
            return None;
        };
        if main_apart {
            let path = below(&self.spec, ["mainContainer"]);
            return get(root, &path).is_none_or(Json::is_null).then_some(path);
        }
        let containers = self.containers(root);
        let has_main = { containers.iter() }.any(|(_, container)| {
            let name = container["name"].as_str();
            name.is_none_or(|name| name == main)
        });
        let path = below(&self.spec, ["containers"]);
        (!has_main).then(|| below(&path, [containers.len()]))
    }

    /// The service account of the pod.
    pub fn account(&self, root: &Json) -> String {
        let spec = get(root, &self.spec).unwrap_or(&Json::Null);
        let own = spec["serviceAccountName"].as_str();
        let own = own.or(spec["serviceAccount"].as_str());
        match (own, self.creator, self.deployment.as_deref()) {
            (Some(own), ..) => own.to_owned(),
            (None, PodCreator::Operator { .. }, Some(name)) => {
                format!("{name}-k8s-service-discovery")
            }
            _ => "default".to_owned(),
        }
    }

    /// All containers of the pod, including the init containers.
    pub fn everywhere<'j>(&self, root: &'j Json) -> Vec<(Path, &'j Json)> {
        let mut containers = self.containers(root);
        containers.extend(self.list(root, "initContainers"));
        containers
    }

    /// Whether the pod uses the network of its node.
    pub fn is_on_host_network(&self, root: &Json) -> bool {
        let spec = get(root, &self.spec);
        spec.and_then(|spec| truth(&spec["hostNetwork"])) == Some(true)
    }

    /// The path of the containers if they are not a list, so that Kubernetes would reject the object.
    pub fn malformed(&self, root: &Json) -> Option<Path> {
        let paths = ["containers", "initContainers"].map(|name| below(&self.spec, [name]));
        paths
            .into_iter()
            .find(|path| get(root, path).is_some_and(|list| !list.is_array() && !list.is_null()))
    }

    fn list<'j>(&self, root: &'j Json, name: &str) -> Vec<(Path, &'j Json)> {
        let path = below(&self.spec, [name]);
        let list = get(root, &path).and_then(Json::as_array);
        let list = list.into_iter().flatten().enumerate();
        list.map(|(index, container)| (below(&path, [index]), container))
            .collect()
    }
}
