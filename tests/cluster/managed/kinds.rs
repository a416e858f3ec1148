//! Workers of the kinds of other operators. A stand-in for the operator of a kind creates the pods of each replica and writes the
//! status, as far as a rollout depends on them; the definitions of the kinds are those of the tests with an API server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use super::in_place::{SET, discovery, template};
use super::*;
use crate::fixture::long_tests_enabled;
use crate::operator::DEFINITION;

const FULL: u64 = 2;

/// The labels of the stand-in, on the Deployment of a replica and its pod: the object, and the number of the replica.
pub(super) const OBJECT: &str = "stand-in/object";
const REPLICA: &str = "stand-in/replica";

/// A kind, and what its operator does.
struct Kind {
    kind: &'static str,
    api_version: &'static str,
    /// The name of its definition.
    resource: &'static str,
    /// The objects with the workers of old and new.
    names: [&'static str; 2],
    /// Where an object has its size, and its number of ready replicas.
    paths: [&'static str; 2],
    /// The object with this pod template, without a name and a size.
    object: fn(Value) -> Value,
    /// The pod template of an object.
    template: fn(&Cluster, &Value) -> Value,
    /// The labels by which the operator finds the pods of a replica of an object.
    labels: fn(&str, u64) -> Value,
    /// The status of an object with this number of replicas, and this number of ready ones.
    status: fn(usize, usize) -> Value,
}

const GRAPH: Kind = Kind {
    kind: "DynamoGraphDeployment",
    api_version: "nvidia.com/v1beta1",
    resource: "dynamographdeployments.nvidia.com",
    // The names of the graphs to which the frontends belong.
    names: ["dgd-old", "dgd-new"],
    paths: [
        "/spec/components/1/replicas",
        "/status/components/worker/readyReplicas",
    ],
    object: |template| {
        json!({"spec": {"components": [
            {"name": "Frontend", "type": "frontend", "replicas": 1},
            {"name": "worker", "type": "worker", "replicas": 0, "podTemplate": template},
        ]}})
    },
    template: |_, graph| graph["spec"]["components"][1]["podTemplate"].clone(),
    labels: |name, _| json!({"nvidia.com/dynamo-graph-deployment-name": name, "nvidia.com/dynamo-component": "worker"}),
    status: |replicas, ready| json!({"components": {"worker": {"replicas": replicas, "readyReplicas": ready}}}),
};

const LEADER_WORKER_SET: Kind = Kind {
    kind: "LeaderWorkerSet",
    api_version: "leaderworkerset.x-k8s.io/v1",
    resource: "leaderworkersets.leaderworkerset.x-k8s.io",
    names: ["workers-old", "workers-new"],
    paths: ["/spec/replicas", "/status/readyReplicas"],
    object: |template| json!({"spec": {"leaderWorkerTemplate": {"size": 1, "workerTemplate": template}}}),
    template: |_, set| set["spec"]["leaderWorkerTemplate"]["workerTemplate"].clone(),
    labels: |name, index| {
        json!({
            "leaderworkerset.sigs.k8s.io/name": name, "leaderworkerset.sigs.k8s.io/group-index": index.to_string(),
            "leaderworkerset.sigs.k8s.io/worker-index": "0",
        })
    },
    status: |replicas, ready| json!({"replicas": replicas, "readyReplicas": ready}),
};

const POD_CLIQUE: Kind = Kind {
    kind: "PodClique",
    api_version: "grove.io/v1alpha1",
    resource: "podcliques.grove.io",
    // A clique has no pod template but the spec of its pods, which get its labels.
    object: |template| {
        json!({
            "metadata": {"labels": template["metadata"]["labels"]},
            "spec": {"roleName": "worker", "podSpec": template["spec"]},
        })
    },
    template: |_, clique| json!({"metadata": {"labels": clique["metadata"]["labels"]}, "spec": clique["spec"]["podSpec"]}),
    labels: |name, _| json!({"grove.io/podclique": name}),
    ..LEADER_WORKER_SET
};

const SCALING_GROUP: Kind = Kind {
    kind: "PodCliqueScalingGroup",
    resource: "podcliquescalinggroups.grove.io",
    paths: ["/spec/replicas", "/status/availableReplicas"],
    object: |template| {
        let labels = &template["metadata"]["labels"];
        let generation = match labels["nvidia.com/dynamo-namespace"] == "dynamo-v1" {
            true => "old",
            false => "new",
        };
        json!({"metadata": {"labels": labels}, "spec": {"cliqueNames": [generation]}})
    },
    // A group only names its cliques, whose pods the PodCliqueSet defines. Here, a clique has the pods of a generation.
    template: |cluster, group| {
        template(
            cluster,
            group["spec"]["cliqueNames"][0].as_str().expect("a name"),
        )
    },
    labels: |name, index| json!({"grove.io/podcliquescalinggroup": name, "grove.io/podcliquescalinggroup-replica-index": index.to_string()}),
    status: |replicas, ready| json!({"replicas": replicas, "availableReplicas": ready}),
    ..POD_CLIQUE
};

const MODEL_SERVING: Kind = Kind {
    kind: "ModelServing",
    api_version: "workload.serving.volcano.sh/v1alpha1",
    resource: "modelservings.workload.serving.volcano.sh",
    object: |template| {
        let role = json!({"name": "worker", "replicas": 1, "workerReplicas": 0, "entryTemplate": template});
        json!({"spec": {"template": {"roles": [role]}}})
    },
    template: |_, serving| serving["spec"]["template"]["roles"][0]["entryTemplate"].clone(),
    labels: |name, index| {
        json!({
            "modelserving.volcano.sh/name": name, "modelserving.volcano.sh/group-name": format!("{name}-{index}"),
            "modelserving.volcano.sh/entry": "true",
        })
    },
    ..SCALING_GROUP
};

impl Kind {
    /// The definition of the kind.
    fn definition(&self) -> &'static str {
        const KINDS: &str = include_str!("../../kubernetes/kinds.yaml");
        // With both versions of its API.
        if self.kind == GRAPH.kind {
            return DEFINITION;
        }
        let name = format!("name: {}", self.resource);
        let mut documents = KINDS.split("\n---\n");
        documents
            .find(|document| document.contains(&name))
            .expect("a definition")
    }

    /// The manifest of an object of this size.
    fn manifest(&self, name: &str, template: Value, size: u64) -> String {
        let mut object = (self.object)(template);
        object["apiVersion"] = json!(self.api_version);
        object["kind"] = json!(self.kind);
        object["metadata"]["name"] = json!(name);
        object["metadata"]["namespace"] = json!("default");
        let [path, _] = self.paths;
        match object.pointer_mut(path) {
            Some(replicas) => *replicas = json!(size),
            None => object["spec"]["replicas"] = json!(size),
        }
        object.to_string()
    }
}

/// A stand-in for the operator of a kind, until it is dropped.
struct StandIn {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StandIn {
    fn start(kind: &'static Kind) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let is_stopped = stopped.clone();
        let thread = std::thread::spawn(move || {
            let cluster = Cluster::around();
            while !is_stopped.load(Ordering::Relaxed) {
                reconcile(&cluster, kind);
                // The reconcile interval.
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        Self {
            stopped,
            thread: Some(thread),
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            let is_ok = ended.is_none_or(|ended| ended.is_ok());
            assert!(is_ok, "the operator failed");
        }
    }
}

/// Creates the Deployments of missing replicas, deletes those of the last replicas if there are too many, and writes the status.
fn reconcile(cluster: &Cluster, kind: &Kind) {
    let list = |resource: &str, more: &[&str]| -> Vec<Value> {
        let list = cluster.get(&[&[resource], more].concat());
        list["items"].as_array().expect("a list").clone()
    };
    let stays = |object: &&Value| object["metadata"]["deletionTimestamp"].is_null();
    let objects = list(kind.resource, &[]);
    let deployments = list("deployments", &["-l", OBJECT]);
    let pods = list("pods", &["-l", OBJECT]);
    for object in objects.iter().filter(stays) {
        let name = object["metadata"]["name"].as_str().expect("a name");
        let is_own = |made: &&Value| made["metadata"]["labels"][OBJECT] == name;
        let index = |made: &Value| {
            let label = made["metadata"]["labels"][REPLICA].as_str();
            label.and_then(|label| label.parse().ok()).expect("a label")
        };
        let made: BTreeSet<u64> = { deployments.iter() }
            .filter(is_own)
            .filter(stays)
            .map(index)
            .collect();
        let wanted = object.pointer(kind.paths[0]).and_then(Value::as_u64);
        let wanted = 0..wanted.expect("a size");
        for index in wanted.clone().filter(|index| !made.contains(index)) {
            let deployment = deployment(cluster, kind, object, index);
            cluster.apply(&deployment.to_string());
        }
        for index in made.iter().filter(|index| !wanted.contains(*index)) {
            let surplus = format!("{name}-{index}");
            cluster.try_kubectl(&["delete", "deployment", &surplus, "--wait=false"], "");
        }
        let own: Vec<_> = pods.iter().filter(is_own).filter(stays).collect();
        let is_ready = |pod: &&&Value| {
            let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            conditions.any(|is| is["type"] == "Ready" && is["status"] == "True")
        };
        let status = (kind.status)(own.len(), own.iter().filter(is_ready).count());
        if object["status"] != status {
            let patch = json!({ "status": status }).to_string();
            let args = ["patch", kind.resource, name, "--subresource=status"];
            let args = [&args[..], &["--type=merge", "-p", &patch]].concat();
            // It may have been deleted meanwhile.
            cluster.try_kubectl(&args, "");
        }
    }
}

/// The Deployment with the pod of a replica.
fn deployment(cluster: &Cluster, kind: &Kind, object: &Value, index: u64) -> Value {
    let name = object["metadata"]["name"].as_str().expect("a name");
    let own = json!({OBJECT: name, REPLICA: index.to_string()});
    let mut template = (kind.template)(cluster, object);
    for labels in [&own, &(kind.labels)(name, index)] {
        for (label, value) in labels.as_object().expect("labels") {
            template["metadata"]["labels"][label] = value.clone();
        }
    }
    let owner = json!([{
        "apiVersion": object["apiVersion"], "kind": kind.kind, "name": name, "uid": object["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true,
    }]);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "name": format!("{name}-{index}"), "namespace": "default", "labels": own, "ownerReferences": owner,
        },
        "spec": {"replicas": 1, "selector": {"matchLabels": own}, "template": template},
    })
}

/// Moves two workers from one object of this kind to another, and back.
async fn assert_moves_and_returns(kind: &'static Kind) {
    if !long_tests_enabled() {
        return;
    }
    let cluster = Cluster::around();
    if !cluster.is_own() {
        return println!("skipped: this cluster may have the real operator");
    }
    cluster.apply(kind.definition());
    let definition = format!("crd/{}", kind.resource);
    let established = "--for=condition=Established";
    cluster.kubectl(&["wait", established, &definition, "--timeout=30s"]);
    let managed = Managed {
        kind: kind.resource,
        names: kind.names.map(|name| vec![name.to_owned()]),
        paths: kind.paths,
        max_requested: FULL + 1,
        min_ready: FULL,
        ..Managed::with_workers(0, 1, 0).await
    };
    for (generation, (name, size)) in ["old", "new"]
        .into_iter()
        .zip(kind.names.into_iter().zip([FULL, 0]))
    {
        cluster.apply(&discovery(&cluster, generation));
        let template = template(&cluster, generation);
        cluster.apply(&kind.manifest(name, template, size));
    }
    let operator = StandIn::start(kind);
    managed.fixture().with_model_again("old").await;
    let both_ready = [vec![(FULL, FULL)], vec![(0, 0)]];
    eventually("old is whole", async || managed.sizes() == both_ready).await;

    let generation = |name: &str| json!({"kind": kind.kind, "name": name});
    let [source, target] = kind.names.map(generation);
    let load = managed
        .begin(&json!({"source": source, "target": target}))
        .await;
    managed.until("Complete").await;
    assert_eq!(managed.sizes(), [vec![(0, 0)], vec![(FULL, FULL)]]);
    assert_eq!(managed.client_selector(), "new-frontend");
    managed.edit(json!({"undoTo": 1}));
    managed.until("RolledBack").await;
    assert_eq!(managed.sizes(), both_ready);
    assert_eq!(managed.client_selector(), "old-frontend");
    managed.end(load).await;

    let [old, new] = kind.names;
    let delete = ["delete", kind.resource, old, new, "--cascade=foreground"];
    cluster.kubectl(&delete);
    drop(operator);
    let services = ["old", "new"].map(|generation| format!("service/{generation}-{SET}"));
    cluster.kubectl(&["delete", &services[0], &services[1]]);
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn workers_move_from_one_graph_to_another_and_back() {
    assert_moves_and_returns(&GRAPH).await;
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn workers_move_from_one_leader_worker_set_to_another_and_back() {
    assert_moves_and_returns(&LEADER_WORKER_SET).await;
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn workers_move_from_one_pod_clique_to_another_and_back() {
    assert_moves_and_returns(&POD_CLIQUE).await;
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn workers_move_from_one_scaling_group_to_another_and_back() {
    assert_moves_and_returns(&SCALING_GROUP).await;
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn workers_move_from_one_model_serving_to_another_and_back() {
    assert_moves_and_returns(&MODEL_SERVING).await;
}
