//! A fake of Dynamo's operator. For each graph, it creates the objects on which an update depends (Deployments with labels, ports,
//! probes and a service account, and the Service of the frontend) and sets the state of the graph.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::Cluster;

/// The versions convert to each other without loss, as with the operator's conversion webhook.
pub const DEFINITION: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: dynamographdeployments.nvidia.com}
spec:
  group: nvidia.com
  scope: Namespaced
  names: {kind: DynamoGraphDeployment, plural: dynamographdeployments, singular: dynamographdeployment, shortNames: [dgd]}
  versions:
  - &version
    name: v1beta1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
  - {<<: *version, name: v1alpha1, storage: false}
";

const LABELS: [&str; 3] = [
    "nvidia.com/dynamo-graph-deployment-name",
    "nvidia.com/dynamo-component-type",
    "nvidia.com/dynamo-namespace",
];

/// Runs until it is dropped.
pub struct Operator {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Operator {
    pub fn of(namespace: &'static str) -> Self {
        let cluster = Cluster::around();
        cluster.apply(DEFINITION);
        let name = "crd/dynamographdeployments.nvidia.com";
        cluster.kubectl(&["wait", "--for=condition=Established", name, "--timeout=30s"]);
        let stopped = Arc::new(AtomicBool::new(false));
        let is_stopped = stopped.clone();
        let thread = std::thread::spawn(move || {
            let mut made = BTreeMap::new();
            while !is_stopped.load(Ordering::Relaxed) {
                reconcile(&cluster, namespace, &mut made);
                // The reconcile interval.
                sleep(Duration::from_millis(500));
            }
        });
        Self {
            stopped,
            thread: Some(thread),
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(
                ended.is_none_or(|ended| ended.is_ok()),
                "the operator failed"
            );
        }
    }
}

/// Applies the objects of each graph that has been edited since the generation in `made`, and sets the state of all graphs.
fn reconcile(cluster: &Cluster, namespace: &str, made: &mut BTreeMap<String, Value>) {
    let graphs = cluster.get(&["dgd", "-n", namespace]);
    for graph in graphs["items"].as_array().expect("a list") {
        let metadata = &graph["metadata"];
        if !metadata["deletionTimestamp"].is_null() {
            continue;
        }
        let name = metadata["name"].as_str().expect("a name");
        let uid = metadata["uid"].as_str().expect("a uid");
        if made.get(uid) != Some(&metadata["generation"]) {
            let args = ["apply", "-n", namespace, "-f", "-"];
            cluster.kubectl_with(&args, &objects(graph, namespace).to_string());
            made.insert(uid.to_owned(), metadata["generation"].clone());
        }
        let is_ready = |deployment: &Value| {
            let (wanted, status) = (&deployment["spec"]["replicas"], &deployment["status"]);
            let ready = status["readyReplicas"].as_u64().unwrap_or(0);
            Some(ready) == wanted.as_u64()
                && status["updatedReplicas"].as_u64().unwrap_or(0) == ready
        };
        let label = format!("{}={name}", LABELS[0]);
        let deployments = cluster.get(&["deployments", "-n", namespace, "-l", &label]);
        let deployments = deployments["items"].as_array().expect("a list");
        let state = match deployments.iter().all(is_ready) {
            true => "successful",
            false => "pending",
        };
        if graph["status"]["state"] != state {
            let patch = json!({"status": {"state": state}}).to_string();
            let patch = [
                "patch",
                "dgd",
                name,
                "-n",
                namespace,
                "--subresource=status",
                "--type=merge",
                "-p",
                &patch,
            ];
            // It may have been deleted meanwhile.
            cluster.try_kubectl(&patch, "");
        }
    }
}

fn objects(graph: &Value, namespace: &str) -> Value {
    let name = graph["metadata"]["name"].as_str().expect("a name");
    let owner = json!([{
        "apiVersion": graph["apiVersion"], "kind": graph["kind"], "name": name, "uid": graph["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let account = format!("{name}-k8s-service-discovery");
    let mut items = vec![json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "ownerReferences": owner},
    })];
    for component in components(&graph["spec"]) {
        let kind = component["type"].as_str().expect("a type");
        let part = component["name"].as_str().expect("a name").to_lowercase();
        let own = format!("{name}-{part}");
        let dynamo = format!("{namespace}-{name}");
        let labels = json!({LABELS[0]: name, LABELS[1]: kind, LABELS[2]: dynamo});
        let mut template = component["podTemplate"].clone();
        template["metadata"]["labels"] = labels.clone();
        template["spec"]["serviceAccountName"] = account.clone().into();
        let containers = template["spec"]["containers"]
            .as_array_mut()
            .expect("containers");
        let main = containers
            .iter_mut()
            .find(|container| container["name"] == "main");
        complete(main.expect("main"), kind, &dynamo);
        items.push(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": own, "labels": labels, "ownerReferences": owner},
            "spec": {"replicas": component["replicas"], "selector": {"matchLabels": labels}, "template": template},
        }));
        if kind == "frontend" {
            items.push(json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": own, "labels": {LABELS[0]: name}, "ownerReferences": owner},
                "spec": {"selector": labels, "ports": [{"name": "http", "port": 8000, "targetPort": "http"}]},
            }));
        }
    }
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// The components of a graph, as v1beta1 lists them. In v1alpha1, they are `services` by name, each with the container `main` beside
/// the others.
fn components(spec: &Value) -> Vec<Value> {
    if let Some(components) = spec["components"].as_array() {
        return components.clone();
    }
    let services = spec["services"]
        .as_object()
        .expect("components or services");
    let converted = services.iter().map(|(name, service)| {
        let mut pod = service["extraPodSpec"].clone();
        let mut main = pod["mainContainer"].take();
        main["name"] = "main".into();
        pod.as_object_mut().expect("a pod").remove("mainContainer");
        let mut containers = vec![main];
        containers.extend(pod["containers"].as_array().into_iter().flatten().cloned());
        pod["containers"] = containers.into();
        json!({
            "name": name, "type": service["componentType"], "replicas": service["replicas"],
            "podTemplate": {"spec": pod},
        })
    });
    converted.collect()
}

/// Adds the operator's defaults to the container `main`.
fn complete(main: &mut Value, kind: &str, dynamo: &str) {
    let mut env = main["env"].as_array().cloned().unwrap_or_default();
    for (name, value) in [("DYN_NAMESPACE", dynamo), ("DYN_HTTP_PORT", "8000")] {
        if !env.iter().any(|variable| variable["name"] == name) {
            env.push(json!({"name": name, "value": value}));
        }
    }
    main["env"] = env.into();
    if kind != "frontend" {
        return;
    }
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "http"}, "periodSeconds": 2, "failureThreshold": 30});
    for (field, value) in [
        ("command", json!(["python3", "-m", "dynamo.frontend"])),
        ("ports", json!([{"name": "http", "containerPort": 8000}])),
        ("readinessProbe", probe("/health")),
        ("livenessProbe", probe("/live")),
        ("startupProbe", probe("/live")),
    ] {
        if main[field].is_null() {
            main[field] = value;
        }
    }
}
