//! Workers are counted in every supported kind of workload, with its real group, version and fields.

use serde_json::{Value, json};

use super::fixture::{Controller, Fixture, pods, resource};

/// An update whose new workers are counted as specified by `workers`. The four old workers are pods.
async fn counting(workers: Value) -> (Fixture, Controller) {
    let fixture = Fixture::with_update(json!({"workers": {"new": workers}})).await;
    let controller = fixture.controller(&[]).await;
    (fixture, controller)
}

fn labels(kind: &str) -> Value {
    json!({"labels": {"nvidia.com/dynamo-graph-deployment-name": "new", "nvidia.com/dynamo-component-type": kind}})
}

/// Waits until new has these workers, as ready/wanted.
async fn counts(fixture: &Fixture, workers: &str) -> Value {
    fixture
        .until("up", workers, |object| {
            object["status"]["new"]["workers"] == workers
        })
        .await
}

#[tokio::test]
async fn a_deployment_by_name_only() {
    let fixture = Fixture::with_update(json!({})).await;
    let _controller = fixture.controller(&[]).await;
    let kind = resource("apps", "v1", "Deployment", "deployments");
    let template = json!({
        "metadata": {"labels": {"app": "new"}}, "spec": {"containers": [{"name": "main", "image": "any"}]},
    });
    let spec =
        json!({"replicas": 3, "selector": {"matchLabels": {"app": "new"}}, "template": template});
    fixture.create(&kind, "new", json!({"spec": spec})).await;
    counts(&fixture, "0/3").await;
    fixture
        .status(&kind, "new", json!({"replicas": 3, "readyReplicas": 2}))
        .await;
    fixture.wait_for_split("up", 2, 1).await;
}

#[tokio::test]
async fn a_deployment_with_sidecars_only_if_the_update_names_it_as_workers() {
    let workers = json!({"kind": "Deployment", "name": "servers"});
    let (fixture, _controller) = counting(workers).await;
    let kind = resource("apps", "v1", "Deployment", "deployments");
    // A model server that is both frontend and worker, with the sidecar of `crossfade inject`.
    let sidecar = json!({
        "name": "crossfade", "image": "any", "restartPolicy": "Always",
        "ports": [{"name": "crossfade", "containerPort": 9464}],
    });
    let deployment = |app: &str| {
        json!({"spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": app}},
            "template": {
                "metadata": {"labels": {"app": app}},
                "spec": {"initContainers": [sidecar], "containers": [{"name": "main", "image": "any"}]},
            },
        }})
    };
    let ready = json!({"replicas": 2, "readyReplicas": 2});
    for name in ["servers", "new"] {
        fixture.create(&kind, name, deployment(name)).await;
        fixture.status(&kind, name, ready.clone()).await;
    }
    counts(&fixture, "2/2").await;
    fixture.wait_for_split("up", 2, 1).await;
    // With only the name of the target, it could also be a Deployment of frontends.
    fixture.edit("up", json!({"workers": null})).await;
    counts(&fixture, "0/0").await;
}

#[tokio::test]
async fn a_stateful_set_of_one_revision_by_its_pods() {
    let workers = json!({"kind": "StatefulSet", "name": "both", "revision": "both-22"});
    let (fixture, _controller) = counting(workers).await;
    let kind = resource("apps", "v1", "StatefulSet", "statefulsets");
    let template = json!({
        "metadata": {"labels": {"app": "both"}}, "spec": {"containers": [{"name": "main", "image": "any"}]},
    });
    let spec = json!({
        "replicas": 3, "serviceName": "both", "selector": {"matchLabels": {"app": "both"}}, "template": template,
    });
    fixture.create(&kind, "both", json!({"spec": spec})).await;
    // The total of both revisions, which does not determine that of one.
    fixture
        .status(
            &kind,
            "both",
            json!({"replicas": 3, "readyReplicas": 3, "updatedReplicas": 2}),
        )
        .await;
    for (i, revision) in ["both-11", "both-22", "both-22"].into_iter().enumerate() {
        let labels = json!({"app": "both", "controller-revision-hash": revision});
        fixture.pod(&format!("both-{i}"), labels, json!([])).await;
        fixture.pod_ready(&format!("both-{i}"), i < 2).await;
    }
    counts(&fixture, "1/2").await;
    fixture.wait_for_split("up", 4, 1).await;
}

#[tokio::test]
async fn a_stateful_set_whose_pods_are_labelled_as_frontends_if_the_update_names_it_as_workers() {
    // A model server that is both frontend and worker, with the label of `crossfade inject` for the discovery of its proxies.
    for revision in [None, Some("servers-1")] {
        let mut workers = json!({"kind": "StatefulSet", "name": "servers"});
        if let Some(revision) = revision {
            workers["revision"] = revision.into();
        }
        let (fixture, _controller) = counting(workers).await;
        let kind = resource("apps", "v1", "StatefulSet", "statefulsets");
        let mut metadata = labels("frontend");
        metadata["labels"]["app"] = "servers".into();
        let template = json!({
            "metadata": metadata, "spec": {"containers": [{"name": "main", "image": "any"}]},
        });
        let spec = json!({
            "replicas": 1, "serviceName": "servers", "selector": {"matchLabels": {"app": "servers"}}, "template": template,
        });
        fixture
            .create(&kind, "servers", json!({"spec": spec}))
            .await;
        let status = json!({"replicas": 1, "readyReplicas": 1});
        fixture.status(&kind, "servers", status).await;
        let mut labels = metadata["labels"].clone();
        labels["controller-revision-hash"] = "servers-1".into();
        fixture.pod("servers-0", labels, json!([])).await;
        fixture.pod_ready("servers-0", true).await;
        counts(&fixture, "1/1").await;
        fixture.wait_for_split("up", 4, 1).await;
    }
}

#[tokio::test]
async fn a_leader_worker_set_by_its_groups() {
    let (fixture, _controller) = counting(json!({"kind": "LeaderWorkerSet", "name": "new"})).await;
    let kind = resource(
        "leaderworkerset.x-k8s.io",
        "v1",
        "LeaderWorkerSet",
        "leaderworkersets",
    );
    let spec = json!({"replicas": 2, "leaderWorkerTemplate": {"size": 4}});
    fixture.create(&kind, "new", json!({"spec": spec})).await;
    fixture
        .status(&kind, "new", json!({"replicas": 2, "readyReplicas": 1}))
        .await;
    counts(&fixture, "1/2").await;
    fixture.wait_for_split("up", 4, 1).await;
}

#[tokio::test]
async fn pods_of_a_replica_over_several_nodes_are_one_worker_when_all_are_ready() {
    let fixture = Fixture::with_update(json!({})).await;
    let _controller = fixture.controller(&[]).await;
    for (name, group) in [("a-0", "a"), ("a-1", "a"), ("b-0", "b")] {
        let mut metadata = labels("worker");
        metadata["labels"]["leaderworkerset.sigs.k8s.io/group-key"] = group.into();
        metadata["annotations"] = json!({"leaderworkerset.sigs.k8s.io/size": "2"});
        let spec = json!({
            "automountServiceAccountToken": false, "containers": [{"name": "main", "image": "any"}],
        });
        let object = json!({"metadata": metadata, "spec": spec});
        fixture
            .create(&super::fixture::pods(), &format!("new-{name}"), object)
            .await;
        fixture
            .pod_ready(&format!("new-{name}"), name != "a-1")
            .await;
    }
    counts(&fixture, "0/2").await;
    fixture.pod_ready("new-a-1", true).await;
    counts(&fixture, "1/2").await;
}

#[tokio::test]
async fn pod_cliques_without_those_of_a_scaling_group_which_counts_by_its_available_replicas() {
    let (fixture, _controller) = counting(json!({"kind": "PodClique", "name": "new"})).await;
    let clique = resource("grove.io", "v1alpha1", "PodClique", "podcliques");
    for (name, of_group) in [("new-0-worker", false), ("new-0-group-0-leader", true)] {
        let mut metadata = labels("worker");
        if of_group {
            metadata["labels"]["grove.io/podcliquescalinggroup"] = "new-0-group".into();
        }
        let spec = json!({"roleName": "worker", "replicas": 2});
        fixture
            .create(&clique, name, json!({"metadata": metadata, "spec": spec}))
            .await;
        fixture
            .status(&clique, name, json!({"replicas": 2, "readyReplicas": 1}))
            .await;
    }
    counts(&fixture, "1/2").await;
    let workers = json!({"new": {"kind": "PodCliqueScalingGroup", "name": "new"}});
    fixture.edit("up", json!({"workers": workers})).await;
    let group = resource(
        "grove.io",
        "v1alpha1",
        "PodCliqueScalingGroup",
        "podcliquescalinggroups",
    );
    let spec = json!({"replicas": 3, "cliqueNames": ["leader", "worker"]});
    fixture
        .create(
            &group,
            "new-0-group",
            json!({"metadata": labels("worker"), "spec": spec}),
        )
        .await;
    let status = json!({"replicas": 3, "scheduledReplicas": 3, "availableReplicas": 2, "updatedReplicas": 3});
    fixture.status(&group, "new-0-group", status).await;
    counts(&fixture, "2/3").await;
    fixture.wait_for_split("up", 2, 1).await;
}

#[tokio::test]
async fn a_model_serving_by_its_groups_and_the_roles_in_each() {
    let (fixture, _controller) = counting(json!({"kind": "ModelServing", "name": "new"})).await;
    let kind = resource(
        "workload.serving.volcano.sh",
        "v1alpha1",
        "ModelServing",
        "modelservings",
    );
    let roles = json!([{"name": "prefill", "replicas": 2}, {"name": "decode", "replicas": 1}]);
    let spec = json!({"replicas": 3, "template": {"roles": roles}});
    fixture.create(&kind, "new", json!({"spec": spec})).await;
    let status =
        json!({"replicas": 3, "currentReplicas": 3, "updatedReplicas": 3, "availableReplicas": 2});
    fixture.status(&kind, "new", status).await;
    let object = counts(&fixture, "6/9").await;
    assert_eq!(
        object["status"]["new"]["roles"]["prefill"]["ready"], 4,
        "{object}"
    );
    // New has other roles than old, so the user has to say what is complete.
    let message = object["status"]["message"].as_str().unwrap();
    assert!(message.contains("spec.workers.new.replicas."), "{message}");
    let replicas = json!({"new": {"replicas": {"prefill": 8, "decode": 4}}});
    fixture.edit("up", json!({"workers": replicas})).await;
    fixture.wait_for_split("up", 2, 1).await;
}

#[tokio::test]
async fn the_groups_of_one_revision_of_a_model_serving_by_their_pods() {
    let workers = json!({"kind": "ModelServing", "name": "new", "revision": "abc"});
    let (fixture, _controller) = counting(workers).await;
    let kind = resource(
        "workload.serving.volcano.sh",
        "v1alpha1",
        "ModelServing",
        "modelservings",
    );
    let roles = json!([{"name": "main", "workerReplicas": 1}]);
    let spec = json!({"replicas": 4, "template": {"roles": roles}});
    fixture.create(&kind, "new", json!({"spec": spec})).await;
    let status = json!({
        "replicas": 4, "availableReplicas": 4, "currentRevision": "old", "updateRevision": "abc",
    });
    fixture.status(&kind, "new", status).await;
    const LABEL: &str = "modelserving.volcano.sh";
    for (pod, group, revision) in [
        ("new-0-main-0-0", "new-0", "old"),
        ("new-0-main-0-1", "new-0", "old"),
        ("new-2-main-0-0", "new-2", "abc"),
        ("new-3-main-0-0", "new-3", "abc"),
        ("new-3-main-0-1", "new-3", "abc"),
    ] {
        let labels = json!({
            format!("{LABEL}/name"): "new", format!("{LABEL}/group-name"): group, format!("{LABEL}/revision"): revision,
        });
        fixture.pod(pod, labels, json!([])).await;
        fixture.pod_ready(pod, true).await;
    }
    // One pod of a group is missing.
    counts(&fixture, "1/2").await;
}

#[tokio::test]
async fn a_graph_by_its_status_and_during_a_rolling_update_by_the_hash_of_its_pods() {
    let (fixture, _controller) =
        counting(json!({"kind": "DynamoGraphDeployment", "name": "new"})).await;
    let kind = resource(
        "nvidia.com",
        "v1alpha1",
        "DynamoGraphDeployment",
        "dynamographdeployments",
    );
    let services = json!({
        "Frontend": {"componentType": "frontend", "replicas": 5},
        "A": {"componentType": "worker", "subComponentType": "prefill", "replicas": 2},
        "B": {"componentType": "worker", "subComponentType": "decode", "replicas": 2},
    });
    fixture
        .create(&kind, "new", json!({"spec": {"services": services}}))
        .await;
    let components = json!({
        "Frontend": {"componentKind": "Deployment", "replicas": 5, "readyReplicas": 5},
        "A": {"componentKind": "PodClique", "replicas": 2, "readyReplicas": 1},
        "B": {"componentKind": "PodCliqueScalingGroup", "replicas": 2, "availableReplicas": 2},
    });
    fixture
        .status(
            &kind,
            "new",
            json!({"state": "pending", "components": components}),
        )
        .await;
    let object = counts(&fixture, "3/4").await;
    assert_eq!(
        object["status"]["new"]["roles"]["decode"]["ready"], 2,
        "{object}"
    );
    fixture
        .edit("up", json!({"workers": {"new": {"revision": "abcd1234"}}}))
        .await;
    for (name, hash) in [("x", "abcd1234"), ("y", "00000000")] {
        let mut metadata = labels("worker")["labels"].clone();
        metadata["nvidia.com/dynamo-worker-hash"] = hash.into();
        fixture
            .pod(&format!("new-{name}"), metadata, json!([]))
            .await;
        fixture.pod_ready(&format!("new-{name}"), true).await;
    }
    counts(&fixture, "1/1").await;
}

#[tokio::test]
async fn a_dynamo_namespace_by_what_its_frontends_report() {
    let more = json!({"targetDeployment": null, "newDynamoNamespace": "dynamo-v2"});
    let fixture = Fixture::with_update(more).await;
    let _controller = fixture.controller(&[]).await;
    let kind = resource(
        "nvidia.com",
        "v1alpha1",
        "DynamoWorkerMetadata",
        "dynamoworkermetadatas",
    );
    for (name, namespace) in [
        ("w0", "dynamo-v2"),
        ("w1", "dynamo-v2"),
        ("w2", "dynamo-v1"),
    ] {
        fixture.pod(name, json!({"app": "any"}), json!([])).await;
        fixture.pod_ready(name, name != "w1").await;
        let endpoint =
            json!({"namespace": namespace, "component": "backend", "endpoint": "generate"});
        let key = format!("{namespace}/backend/generate");
        let spec = json!({"data": {"endpoints": {key: endpoint}, "model_cards": {}}});
        fixture.create(&kind, name, json!({"spec": spec})).await;
    }
    counts(&fixture, "1/2").await;
    fixture.pod_ready("w1", true).await;
    fixture.wait_for_split("up", 2, 1).await;
    // By kind and name, which have precedence over the namespace in the spec.
    let workers = json!({"new": {"kind": "DynamoWorkerMetadata", "name": "dynamo-v1"}});
    fixture.edit("up", json!({"workers": workers})).await;
    counts(&fixture, "1/1").await;
    fixture.wait_for_split("up", 4, 1).await;
}

#[tokio::test]
async fn pods_by_a_selector() {
    let (fixture, _controller) =
        counting(json!({"selector": {"app": "mine", "track": "next"}})).await;
    for (name, track) in [("a", "next"), ("b", "next"), ("c", "last")] {
        fixture
            .pod(name, json!({"app": "mine", "track": track}), json!([]))
            .await;
        fixture.pod_ready(name, true).await;
    }
    counts(&fixture, "2/2").await;
    fixture.wait_for_split("up", 2, 1).await;
}

#[tokio::test]
async fn a_service_without_a_ready_endpoint_gets_nothing() {
    let fixture = Fixture::start().await;
    for i in 0..2 {
        fixture.worker("old", i, "worker").await;
        fixture.worker("new", i, "worker").await;
    }
    let name = format!("new-frontend.{}.svc.cluster.local:8000", fixture.namespace);
    fixture
        .update("up", json!({"newFrontendService": "new-frontend:8000"}))
        .await;
    let place = format!("{name}={}", fixture.new.address);
    let args = ["--namespace", &fixture.namespace, "--resolve", &place];
    let _controller = Controller::start(&fixture.kubeconfig, &args).await;
    fixture
        .until("up", "closed", |object| {
            let message = object["status"]["message"].as_str().unwrap_or_default();
            message.contains("its frontend service has no ready endpoint")
        })
        .await;
    let slices = resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
    let slice = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "new-frontend"}}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.0.1"], "conditions": {"ready": true}}],
    });
    fixture.create(&slices, "new-frontend-1", slice).await;
    fixture.wait_for_split("up", 1, 1).await;
}

/// Creates a Deployment of one generation of a graph, with all its workers ready.
async fn of_generation(fixture: &Fixture, hash: &str, replicas: u32) {
    let kind = resource("apps", "v1", "Deployment", "deployments");
    let name = format!("both-worker-{hash}");
    let template = json!({
        "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "any"}]},
    });
    let spec = json!({
        "replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template,
    });
    let labels = json!({
        "nvidia.com/dynamo-graph-deployment-name": "both", "nvidia.com/dynamo-component-type": "worker",
        "nvidia.com/dynamo-worker-hash": hash,
    });
    let object = json!({"metadata": {"labels": labels}, "spec": spec});
    fixture.create(&kind, &name, object).await;
    let status = json!({"replicas": replicas, "readyReplicas": replicas});
    fixture.status(&kind, &name, status).await;
}

#[tokio::test]
async fn workers_of_another_generation_do_not_count_while_one_is_missing() {
    let fixture = Fixture::start().await;
    of_generation(&fixture, "aaaaaaaa", 4).await;
    let generation = |hash: &str| json!({"kind": "Deployment", "name": "both", "revision": hash});
    let workers = json!({"old": generation("aaaaaaaa"), "new": generation("bbbbbbbb")});
    fixture.update("up", json!({"workers": workers})).await;
    let controller = fixture.controller(&[]).await;
    counts(&fixture, "0/0").await;
    fixture.keeps(&controller, "up", 0).await;
    of_generation(&fixture, "bbbbbbbb", 4).await;
    fixture.wait_for_split("up", 1, 1).await;
    let kind = resource("apps", "v1", "Deployment", "deployments");
    fixture.delete(&kind, "both-worker-aaaaaaaa").await;
    let object = fixture.wait_for_split("up", 0, 1).await;
    assert_eq!(object["status"]["old"]["workers"], "0/0", "{object}");
}

#[tokio::test]
async fn a_graph_that_is_both_source_and_target_is_distinguished_by_revision_to_the_end() {
    let fixture = Fixture::start().await;
    let kind = resource(
        "nvidia.com",
        "v1alpha1",
        "DynamoGraphDeployment",
        "dynamographdeployments",
    );
    let services = json!({"W": {"componentType": "worker", "replicas": 2}});
    let graph = json!({"spec": {"services": services}});
    fixture.create(&kind, "both", graph).await;
    let worker = async |hash: &str, i: u32| {
        let labels = json!({
            "nvidia.com/dynamo-graph-deployment-name": "both", "nvidia.com/dynamo-component-type": "worker",
            "nvidia.com/dynamo-worker-hash": hash,
        });
        fixture.pod(&format!("{hash}-{i}"), labels, json!([])).await;
        fixture.pod_ready(&format!("{hash}-{i}"), true).await;
    };
    for i in 0..2 {
        worker("aaaaaaaa", i).await;
    }
    let workers = json!({"old": {"revision": "aaaaaaaa"}, "new": {"revision": "bbbbbbbb"}});
    let more = json!({
        "sourceDeployment": "both", "targetDeployment": "both", "workers": workers,
    });
    fixture.update("up", more).await;
    let _controller = fixture.controller(&[]).await;
    counts(&fixture, "0/0").await;
    for i in 0..2 {
        worker("bbbbbbbb", i).await;
    }
    fixture.wait_for_split("up", 1, 1).await;
    for i in 0..2 {
        fixture
            .delete(&super::fixture::pods(), &format!("aaaaaaaa-{i}"))
            .await;
    }
    // With a proxy, it would be complete. The split is written before the status.
    fixture
        .until("up", "all to new", |object| {
            let message = object["status"]["message"].as_str().unwrap_or_default();
            object["spec"]["trafficSplitPercent"] == 100
                && object["status"]["old"]["workers"] == "0/0"
                && message.contains("no frontend of old was found")
        })
        .await;
}

#[tokio::test]
async fn a_filter_that_a_kind_does_not_support_is_rejected_and_not_ignored() {
    let (fixture, controller) =
        counting(json!({"kind": "PodCliqueScalingGroup", "name": "new", "revision": "abc"})).await;
    let kind = resource(
        "grove.io",
        "v1alpha1",
        "PodCliqueScalingGroup",
        "podcliquescalinggroups",
    );
    fixture
        .create(&kind, "new", json!({"spec": {"replicas": 2}}))
        .await;
    let status = json!({"replicas": 2, "availableReplicas": 2});
    fixture.status(&kind, "new", status).await;
    let rejected_with = async |what: &str| {
        fixture
            .until("up", what, |object| {
                let message = object["status"]["message"].as_str().unwrap_or_default();
                object["status"]["phase"] == "Degraded" && message.contains(what)
            })
            .await
    };
    let object = rejected_with("the workers of revision abc of the").await;
    assert_eq!(object["spec"]["trafficSplitPercent"], 0);
    let workers = json!({"revision": null, "selector": {"app": "any"}});
    fixture
        .edit("up", json!({"workers": {"new": workers}}))
        .await;
    rejected_with("a selector selects pods").await;
    let workers = json!({"kind": "DynamoWorkerMetadata", "selector": null, "revision": "abc"});
    fixture
        .edit("up", json!({"workers": {"new": workers}}))
        .await;
    rejected_with("DynamoWorkerMetadata has no revision").await;
    drop(controller);
}

#[tokio::test]
async fn pods_of_another_dynamo_namespace_are_not_new() {
    let more = json!({"newDynamoNamespace": "ns-new-bbbbbbbb"});
    let fixture = Fixture::with_update(more).await;
    let _controller = fixture.controller(&[]).await;
    for (name, namespace) in [("a", "ns-new"), ("b", "ns-new-bbbbbbbb"), ("c", "ns-other")] {
        let mut metadata = labels("worker")["labels"].clone();
        metadata["nvidia.com/dynamo-namespace"] = namespace.into();
        fixture
            .pod(&format!("new-{name}"), metadata, json!([]))
            .await;
        fixture.pod_ready(&format!("new-{name}"), true).await;
    }
    counts(&fixture, "2/2").await;
}

#[tokio::test]
async fn a_deployment_of_one_revision_by_its_pods_and_a_stateful_set_without_one() {
    let workers = json!({"kind": "Deployment", "name": "both", "revision": "6d9f"});
    let (fixture, _controller) = counting(workers).await;
    let template = json!({
        "metadata": {"labels": {"app": "both"}}, "spec": {"containers": [{"name": "main", "image": "any"}]},
    });
    let mut spec = json!({
        "replicas": 3, "selector": {"matchLabels": {"app": "both"}}, "template": template,
    });
    let deployment = resource("apps", "v1", "Deployment", "deployments");
    fixture
        .create(&deployment, "both", json!({"spec": spec}))
        .await;
    let status = json!({"replicas": 3, "readyReplicas": 3});
    fixture.status(&deployment, "both", status.clone()).await;
    for (i, revision) in ["5c8e", "6d9f", "6d9f"].into_iter().enumerate() {
        let labels = json!({"app": "both", "pod-template-hash": revision});
        fixture.pod(&format!("both-{i}"), labels, json!([])).await;
        fixture.pod_ready(&format!("both-{i}"), i < 2).await;
    }
    counts(&fixture, "1/2").await;
    let whole = json!({"kind": "StatefulSet", "revision": null});
    fixture.edit("up", json!({"workers": {"new": whole}})).await;
    let set = resource("apps", "v1", "StatefulSet", "statefulsets");
    spec["serviceName"] = "both".into();
    fixture.create(&set, "both", json!({"spec": spec})).await;
    fixture.status(&set, "both", status).await;
    counts(&fixture, "3/3").await;
}

#[tokio::test]
async fn pods_of_the_alpha_version_have_their_role_in_the_sub_component_type() {
    let fixture = Fixture::with_update(json!({})).await;
    let _controller = fixture.controller(&[]).await;
    for half in ["prefill", "decode"] {
        let mut metadata = labels("worker")["labels"].clone();
        metadata["nvidia.com/dynamo-sub-component-type"] = half.into();
        fixture
            .pod(&format!("new-{half}"), metadata, json!([]))
            .await;
        fixture.pod_ready(&format!("new-{half}"), true).await;
    }
    let object = counts(&fixture, "2/2").await;
    let roles = &object["status"]["new"]["roles"];
    assert_eq!(roles["prefill"]["ready"], 1, "{object}");
    assert_eq!(roles["decode"]["ready"], 1, "{object}");
}

#[tokio::test]
async fn an_endpoint_of_two_address_families_is_one() {
    let fixture = Fixture::with_update(json!({"newFrontendService": "new-frontend:8000"})).await;
    let name = format!("new-frontend.{}.svc.cluster.local:8000", fixture.namespace);
    let place = format!("{name}={}", fixture.new.address);
    let args = ["--namespace", &fixture.namespace, "--resolve", &place];
    let controller = Controller::start(&fixture.kubeconfig, &args).await;
    let slices = resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
    for (family, address) in [("IPv4", "10.9.0.1"), ("IPv6", "fd00::1")] {
        let endpoint = json!({
            "addresses": [address], "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "name": "new-frontend-0"},
        });
        let slice = json!({
            "metadata": {"labels": {"kubernetes.io/service-name": "new-frontend"}},
            "addressType": family, "endpoints": [endpoint],
        });
        let name = format!("new-frontend-{}", family.to_lowercase());
        fixture.create(&slices, &name, slice).await;
    }
    let one = |object: &Value| object["status"]["new"]["readyFrontends"] == 1;
    fixture.until("up", "ready", one).await;
    // By now, the controller has seen both slices.
    fixture.keeps(&controller, "up", 0).await;
    let object = fixture.get("up").await;
    assert!(one(&object), "{object}");
}

#[tokio::test]
async fn wanted_workers_that_cannot_be_created_do_not_end_the_update() {
    let kind = resource("apps", "v1", "Deployment", "deployments");
    let labels = json!({"app": "mine"});
    let template = json!({
        "metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "any"}]},
    });
    let spec = json!({"replicas": 4, "selector": {"matchLabels": labels}, "template": template});
    let workers = json!({"old": {"selector": labels}});
    let fixture = Fixture::with_update(json!({"workers": workers})).await;
    fixture
        .create(&kind, "workers", json!({"spec": spec}))
        .await;
    for i in 0..4 {
        fixture
            .pod(&format!("mine-{i}"), labels.clone(), json!([]))
            .await;
        fixture.pod_ready(&format!("mine-{i}"), true).await;
        fixture.worker("new", i, "worker").await;
    }
    let controller = fixture.controller(&[]).await;
    fixture.wait_for_split("up", 1, 1).await;
    // All workers are evicted, and a quota or a webhook denies new ones.
    for i in 0..4 {
        fixture.delete(&pods(), &format!("mine-{i}")).await;
    }
    fixture.wait_for_split("up", 0, 1).await;
    fixture
        .until("up", "an outage", |object| {
            object["status"]["old"]["workers"] == "0/4"
        })
        .await;
    fixture.keeps(&controller, "up", 100).await;
    let object = fixture.get("up").await;
    assert_eq!(object["status"]["phase"], "Degraded", "{object}");
    assert_ne!(object["spec"]["oldDraining"], true, "{object}");
    // No workers are wanted any more, so the update completes.
    let none = json!({"spec": {"replicas": 0}});
    let params = kube::api::PatchParams::default();
    let merge = kube::api::Patch::Merge(none);
    let patched = fixture.api(&kind).patch("workers", &params, &merge).await;
    patched.unwrap();
    fixture
        .until("up", "complete", |object| {
            object["status"]["phase"] == "Complete"
        })
        .await;
}
