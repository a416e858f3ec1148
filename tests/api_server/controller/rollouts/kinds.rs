//! Rollouts between two objects of each kind that another operator runs, with a fake of that operator and exactly the permissions in
//! `deploy/`.

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::super::fixture::{Fixture, pods, resource};
use super::Managed;
use super::graphs::graphs;
use super::operator::make_pods;
use crate::rig::POLL;

const FULL: u64 = 4;
/// One more than the workers of both generations.
const MOST: u64 = FULL + 1;

/// A kind, and what its operator does.
#[derive(Clone, Copy)]
struct Kind {
    resource: fn() -> ApiResource,
    /// The spec of an object of this size.
    spec: fn(u64) -> Value,
    /// Where it has its size.
    size: &'static str,
    /// The pods of a replica.
    pods: u64,
    /// The labels of the pods of a replica of an object.
    labels: fn(&str, u64) -> Value,
    /// The status with this number of replicas, and this number of ready ones.
    status: fn(u64, u64) -> Value,
}

const GRAPH: Kind = Kind {
    resource: graphs,
    spec: |size| {
        json!({"services": {
            "Frontend": {"componentType": "frontend", "replicas": 1},
            "Decode": {"componentType": "worker", "replicas": size},
        }})
    },
    size: "/spec/services/Decode/replicas",
    pods: 1,
    labels: |name, _| {
        json!({
            "nvidia.com/dynamo-graph-deployment-name": name, "nvidia.com/dynamo-component-type": "worker",
            "nvidia.com/dynamo-component": "Decode",
        })
    },
    status: |replicas, ready| json!({"components": {"Decode": {"replicas": replicas, "readyReplicas": ready}}}),
};

const LEADER_WORKER_SET: Kind = Kind {
    resource: || {
        let group = "leaderworkerset.x-k8s.io";
        resource(group, "v1", "LeaderWorkerSet", "leaderworkersets")
    },
    spec: |size| {
        let template = json!({"spec": {"containers": [{"name": "main", "image": "any"}]}});
        json!({"replicas": size, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}})
    },
    size: "/spec/replicas",
    pods: 2,
    labels: |name, index| {
        json!({
            "leaderworkerset.sigs.k8s.io/name": name, "leaderworkerset.sigs.k8s.io/group-index": index.to_string(),
        })
    },
    status: |replicas, ready| json!({"replicas": replicas, "readyReplicas": ready}),
};

const POD_CLIQUE: Kind = Kind {
    resource: || resource("grove.io", "v1alpha1", "PodClique", "podcliques"),
    spec: |size| {
        let pod = json!({"containers": [{"name": "main", "image": "any"}]});
        json!({"replicas": size, "roleName": "decode", "podSpec": pod})
    },
    pods: 1,
    labels: |name, _| json!({"grove.io/podclique": name}),
    ..LEADER_WORKER_SET
};

const SCALING_GROUP: Kind = Kind {
    resource: || {
        let plural = "podcliquescalinggroups";
        resource("grove.io", "v1alpha1", "PodCliqueScalingGroup", plural)
    },
    spec: |size| json!({"replicas": size, "cliqueNames": ["leader", "worker"]}),
    pods: 2,
    labels: |name, index| {
        json!({
            "grove.io/podcliquescalinggroup": name, "grove.io/podcliquescalinggroup-replica-index": index.to_string(),
        })
    },
    status: |replicas, ready| json!({"replicas": replicas, "availableReplicas": ready}),
    ..LEADER_WORKER_SET
};

const MODEL_SERVING: Kind = Kind {
    resource: || {
        let group = "workload.serving.volcano.sh";
        resource(group, "v1alpha1", "ModelServing", "modelservings")
    },
    spec: |size| {
        let template = json!({"spec": {"containers": [{"name": "main", "image": "any"}]}});
        let role = json!({
            "name": "main", "replicas": 1, "workerReplicas": 1, "entryTemplate": template, "workerTemplate": template,
        });
        json!({"replicas": size, "template": {"roles": [role]}})
    },
    labels: |name, index| {
        json!({
            "modelserving.volcano.sh/name": name, "modelserving.volcano.sh/group-name": format!("{name}-{index}"),
        })
    },
    ..SCALING_GROUP
};

/// A fake of the operator of a kind, until it is dropped.
struct KindOperator(JoinHandle<()>);

impl Drop for KindOperator {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl KindOperator {
    fn start(fixture: &Fixture, kind: Kind) -> Self {
        let (client, namespace) = (fixture.client.clone(), fixture.namespace.clone());
        Self(tokio::spawn(async move {
            loop {
                // Failures are retried in the next round.
                let _ = reconcile(&client, &namespace, kind).await;
                tokio::time::sleep(POLL).await;
            }
        }))
    }
}

async fn reconcile(client: &Client, namespace: &str, kind: Kind) -> kube::Result<()> {
    let of = |kind: ApiResource| -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), namespace, &kind)
    };
    let (objects, all) = (of((kind.resource)()), of(pods()));
    for object in objects.list(&ListParams::default()).await? {
        let name = object.metadata.name.clone().unwrap();
        let wanted = size(&object, kind);
        let (mut replicas, mut ready) = (0, 0);
        for index in 0..MOST {
            let replica = format!("{name}-{index}");
            let wanted = if index < wanted { kind.pods } else { 0 };
            let labels = (kind.labels)(&name, index);
            let (there, ready_pods) = make_pods(&all, &replica, labels, wanted, true).await?;
            replicas += u64::from(there > 0);
            ready += u64::from(ready_pods as u64 == kind.pods);
        }
        let status = (kind.status)(replicas, ready);
        if object.data["status"] != status {
            let status = Patch::Merge(json!({ "status": status }));
            let params = PatchParams::default();
            objects.patch_status(&name, &params, &status).await?;
        }
    }
    Ok(())
}

fn size(object: &DynamicObject, kind: Kind) -> u64 {
    let spec = json!({"spec": object.data["spec"]});
    spec.pointer(kind.size).and_then(Value::as_u64).unwrap()
}

/// Moves four workers from one object to another.
async fn assert_moves(kind: Kind) {
    let mut managed = Managed::start(0).await;
    let resource = (kind.resource)();
    for (name, size) in [("old", FULL), ("new", 0)] {
        let object = json!({"spec": (kind.spec)(size)});
        managed.fixture.create(&resource, name, object).await;
    }
    let _operator = KindOperator::start(&managed.fixture, kind);
    let generation = |name: &str| json!({"kind": resource.kind, "name": name});
    managed
        .begin(json!({"source": generation("old"), "target": generation("new")}))
        .await;
    let name = format!("kinds-{}", resource.plural);
    let _controller = managed.controller_with_own_rights(&name).await;
    managed.fixture.proxy("chat").await;
    let object = managed
        .until("all new", |status| {
            let size = |generation: &str| status[generation]["roles"]["worker"]["spec"].as_u64();
            let both = size("source").unwrap_or(0) + size("target").unwrap_or(0);
            assert!(both <= MOST, "{status:#}");
            status["waitingFor"]
                .to_string()
                .contains("clients to be routed")
        })
        .await;
    let status = &object["status"];
    assert_eq!(
        (&status["source"]["workers"], &status["target"]["workers"]),
        (&json!("0/0"), &json!("4/4")),
        "{status:#}"
    );
    for (name, wanted) in [("old", 0), ("new", FULL)] {
        let object = managed.fixture.api(&resource).get(name).await.unwrap();
        assert_eq!(size(&object, kind), wanted, "{name}");
    }
}

#[tokio::test]
async fn graphs_without_adapters_are_scaled_by_their_components() {
    assert_moves(GRAPH).await;
}

#[tokio::test]
async fn leader_worker_sets_are_scaled() {
    assert_moves(LEADER_WORKER_SET).await;
}

#[tokio::test]
async fn pod_cliques_are_scaled() {
    assert_moves(POD_CLIQUE).await;
}

#[tokio::test]
async fn scaling_groups_are_scaled() {
    assert_moves(SCALING_GROUP).await;
}

#[tokio::test]
async fn model_servings_are_scaled_by_their_groups() {
    assert_moves(MODEL_SERVING).await;
}
