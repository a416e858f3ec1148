//! What each kind says of its workers, and how their size is written.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::k8s::object;

fn pod(name: &str, labels: Json, ready: bool, ends: bool) -> Object {
    let status = if ready { "True" } else { "False" };
    let mut metadata = json!({"name": name, "labels": labels});
    if ends {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    object(json!({"metadata": metadata, "status": {"conditions": [
        {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]}}))
}

fn of(kind: &str, given: Json, pods: &[Object]) -> Vec<Scaled> {
    let scaling = of_kind(kind).unwrap();
    let object = object(given);
    let parts = scaling.parts(&object).into_iter();
    parts
        .map(|part| scaled(scaling, (&object, None), part, pods))
        .collect()
}

fn template(gpus: u32) -> Json {
    json!({"metadata": {"labels": {"app": "w"}}, "spec": {
        "terminationGracePeriodSeconds": 600,
        "containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}, {}],
    }})
}

fn deployment() -> Json {
    json!({
        "metadata": {"name": "w", "generation": 2},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "w"}}, "template": template(8)},
        "status": {"observedGeneration": 2, "replicas": 3, "readyReplicas": 3},
    })
}

#[test]
fn a_deployment_is_counted_by_its_pods_and_its_status() {
    let labels = || json!({"app": "w"});
    let pods = [
        pod("a", labels(), true, false),
        pod("b", labels(), true, true),
        pod("c", labels(), false, false),
        pod("d", json!({"app": "other"}), true, false),
    ];
    let found = of("Deployment", deployment(), &pods);
    let one = &found[0];
    assert_eq!((one.part.role, one.part.desired), (Role::Worker, 3));
    // The status says more than the pods of which two are left.
    assert_eq!((one.present, one.terminating, one.ready), (2, 1, 1));
    assert_eq!((one.gpus, one.grace), (8, Some(Duration::from_secs(600))));
    assert!(one.observed && one.removes == ScaleDownOrder::Unready);
    let (resource, resize) = one.resize("Deployment", 4).unwrap();
    assert_eq!((&*resource.kind, resize), ("Deployment", Resize::Scale(4)));
    let mut edited = deployment();
    edited["metadata"]["generation"] = json!(3);
    assert!(!of("Deployment", edited, &pods)[0].observed);
}

#[test]
fn a_replica_of_several_pods_is_ready_when_all_of_them_are() {
    let labels = |group: &str| json!({"leaderworkerset.sigs.k8s.io/name": "w", "leaderworkerset.sigs.k8s.io/group-index": group});
    let pods = [
        pod("a", labels("0"), true, false),
        pod("b", labels("0"), true, false),
        pod("c", labels("1"), true, false),
        pod("d", labels("1"), false, false),
        pod("e", labels("2"), true, false),
        pod("f", labels("2"), true, true),
    ];
    let set = json!({
        "metadata": {"name": "w"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": template(4)}},
        "status": {"replicas": 2, "readyReplicas": 2},
    });
    let one = &of("LeaderWorkerSet", set, &pods)[0];
    assert_eq!((one.present, one.terminating, one.ready), (2, 1, 1));
    assert_eq!((one.gpus, one.removes), (12, ScaleDownOrder::Last));
}

#[test]
fn a_model_serving_is_scaled_by_its_groups() {
    let labels = |group: &str| json!({"modelserving.volcano.sh/name": "w", "modelserving.volcano.sh/group-name": group});
    let pods = [
        pod("a", labels("w-0"), true, false),
        pod("b", labels("w-0"), true, false),
        pod("c", labels("w-1"), true, true),
    ];
    let roles = json!([{"name": "main", "workerReplicas": 1, "entryTemplate": template(4), "workerTemplate": template(8)}]);
    let serving = json!({
        "metadata": {"name": "w"}, "spec": {"replicas": 2, "template": {"roles": roles}},
        "status": {"replicas": 1, "availableReplicas": 1},
    });
    let one = &of("ModelServing", serving, &pods)[0];
    assert_eq!((one.present, one.terminating, one.ready), (1, 1, 1));
    assert_eq!((one.gpus, one.removes), (12, ScaleDownOrder::Last));
    let (resource, resize) = one.resize("ModelServing", 3).unwrap();
    assert_eq!(
        (&*resource.kind, resize),
        ("ModelServing", Resize::Scale(3))
    );
}

/// The cliques specify the pods, and the group only names them.
#[test]
fn the_pods_of_a_scaling_group_say_how_long_they_may_take_to_end() {
    let group = json!({
        "metadata": {"name": "w"}, "spec": {"replicas": 1, "cliqueNames": ["leader", "worker"]},
        "status": {"replicas": 1, "availableReplicas": 1},
    });
    let of_pods = |graces: &[Option<u64>]| {
        let pods = graces.iter().map(|grace| {
            let labels = json!({"grove.io/podcliquescalinggroup": "w", "grove.io/podcliquescalinggroup-replica-index": "0"});
            object(json!({
                "metadata": {"name": "a", "labels": labels}, "spec": {"terminationGracePeriodSeconds": grace},
            }))
        });
        let pods: Vec<_> = pods.collect();
        of("PodCliqueScalingGroup", group.clone(), &pods)[0].grace
    };
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(of_pods(&[Some(600), Some(90)]), seconds(90));
    assert_eq!(of_pods(&[Some(600), None]), seconds(30));
    assert_eq!(of_pods(&[]), None);
}

/// In v1alpha1, a component says itself what its main container needs.
#[test]
fn a_service_of_a_graph_takes_what_its_resources_and_the_rest_of_its_pod_ask_for() {
    let graph = json!({"metadata": {"name": "g"}, "spec": {"services": {"Decode": {
        "componentType": "worker", "replicas": 1, "multinode": {"nodeCount": 2},
        "resources": {
            "requests": {"cpu": "10", "gpu": "4", "custom": {"rdma/ib": "1"}},
            "limits": {"memory": "20Gi", "gpu": "4"},
        },
        "extraPodSpec": {
            "terminationGracePeriodSeconds": 90,
            "mainContainer": {"resources": {"requests": {"cpu": "12"}}},
            "containers": [{"resources": {"requests": {"cpu": "1"}}}],
        },
    }}}});
    let found = of("DynamoGraphDeployment", graph, &[]);
    let one = &found[0];
    assert_eq!((one.gpus, one.grace), (8, Some(Duration::from_secs(90))));
    let takes = |entry: &str| one.resources.get(entry).copied();
    assert_eq!(takes("requests.cpu"), Some(26_000));
    assert_eq!(takes("limits.memory"), Some(40 * 1_073_741_824_000));
    assert_eq!(takes("requests.rdma/ib"), Some(2000));
    let other = json!({"metadata": {"name": "g"}, "spec": {"services": {"Decode": {
        "componentType": "worker", "resources": {"limits": {"gpu": "1", "gpuType": "gpu.intel.com/xe"}},
    }}}});
    let found = of("DynamoGraphDeployment", other, &[]);
    assert_eq!(found[0].gpus, 0);
    assert_eq!(
        found[0].resources.get("requests.gpu.intel.com/xe"),
        Some(&1000)
    );
}

#[test]
fn a_graph_has_a_size_for_each_role() {
    let graph = json!({
        "metadata": {"name": "g"},
        "spec": {"services": {
            "Frontend": {"componentType": "frontend", "replicas": 1},
            "P": {"componentType": "worker", "subComponentType": "prefill", "replicas": 4},
            "D": {"componentType": "worker", "subComponentType": "decode", "replicas": 2},
        }},
        "status": {"components": {"P": {"replicas": 4, "readyReplicas": 3}, "D": {"replicas": 2, "availableReplicas": 2}}},
    });
    let found = of("DynamoGraphDeployment", graph, &[]);
    let reported = found
        .iter()
        .map(|one| (one.part.role, one.part.desired, one.part.ready));
    assert_eq!(
        reported.collect::<Vec<_>>(),
        [(Role::Prefill, 4, 3), (Role::Decode, 2, 2)]
    );
    let resize = found[0].resize("DynamoGraphDeployment", 5);
    let patch = json!({"spec": {"services": {"P": {"replicas": 5}}}});
    assert_eq!(resize.unwrap().1, Resize::Patch(patch));
    let mut components = json!([
        {"name": "Frontend", "type": "frontend"},
        {"name": "W", "type": "worker", "replicas": 2},
        {"name": "A", "type": "prefill", "replicas": 1},
    ]);
    let graph = json!({"metadata": {"name": "g"}, "spec": {"components": components}});
    let found = of("DynamoGraphDeployment", graph, &[]);
    let resize = found[0].resize("DynamoGraphDeployment", 3);
    components[1]["replicas"] = json!(3);
    let patch = json!({"spec": {"components": components}});
    assert_eq!(resize.unwrap().1, Resize::Patch(patch));
}

#[test]
fn the_size_of_a_component_with_a_scaling_adapter_is_in_the_adapter() {
    let scaling = of_kind("DynamoGraphDeployment").unwrap();
    let graph = object(json!({
        "metadata": {"name": "g", "resourceVersion": "7"},
        "spec": {"services": {
            "Decode": {"componentType": "decode", "replicas": 2, "scalingAdapter": {"enabled": true}},
            "Prefill": {"componentType": "prefill", "replicas": 1, "scalingAdapter": {"enabled": false}},
        }},
        "status": {"components": {}},
    }));
    let parts = scaling.parts(&graph);
    let names = parts.iter().map(|part| scaling.adapter(&graph, part));
    assert_eq!(
        names.collect::<Vec<_>>(),
        [Some("g-decode".to_owned()), None]
    );
    let adapter = |replicas: u32| {
        object(json!({
            "metadata": {"name": "g-decode", "resourceVersion": "9", "managedFields": [
                {"manager": "us", "time": "2026-01-01T00:00:09Z", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
            ]},
            "spec": {"replicas": replicas},
        }))
    };
    let of = |replicas| {
        scaled(
            scaling,
            (&graph, Some(adapter(replicas))),
            parts[0].clone(),
            &[],
        )
    };
    let one = of(3);
    // The graph does not follow yet.
    assert_eq!((one.part.desired, one.observed), (3, false));
    assert!(of(2).observed);
    assert_eq!(
        (one.version(), one.sized_kind("DynamoGraphDeployment")),
        ("9", ADAPTER)
    );
    assert!(one.is_set_by("us"));
    let (resource, resize) = one.resize("DynamoGraphDeployment", 4).unwrap();
    assert_eq!((&*resource.kind, resize), (ADAPTER, Resize::Scale(4)));
    let beta = object(json!({"metadata": {"name": "g"}, "spec": {"components": [
        {"name": "W", "type": "worker", "scalingAdapter": {}},
    ]}}));
    let part = &scaling.parts(&beta)[0];
    assert_eq!(scaling.adapter(&beta, part), Some("g-w".to_owned()));
}

#[test]
fn a_component_that_is_missing_is_an_error_that_names_it() {
    let scaling = of_kind("DynamoGraphDeployment").unwrap();
    for spec in [
        json!({"services": {"Other": {"componentType": "worker"}}}),
        json!({"components": [{"name": "Other", "type": "worker"}, {"type": "decode"}]}),
        json!({}),
    ] {
        let graph = object(json!({"metadata": {"name": "g"}, "spec": spec}));
        assert!(
            scaling.parts(&graph).len() < 2,
            "a component without a name is not a part"
        );
        let part = Part {
            role: Role::Decode,
            name: "Decode".to_owned(),
            desired: 2,
            ready: 2,
            present: 2,
        };
        let error = scaling.resize(&graph, &part, 3).unwrap_err().to_string();
        assert_eq!(error, "DynamoGraphDeployment g has no component Decode");
    }
}

#[test]
fn the_frontends_of_a_graph_are_asked_for_no_more() {
    use super::super::{frontends_stay, frontends_to_zero, wants_frontends};
    let services = object(json!({"metadata": {"name": "g"}, "spec": {"services": {
        "Frontend": {"componentType": "frontend", "replicas": 2},
        "W": {"componentType": "worker", "replicas": 4},
    }}}));
    let patch = json!({"spec": {"services": {"Frontend": {"replicas": 0}}}});
    assert_eq!(frontends_to_zero(&services), patch);
    let none = json!({"Frontend": {"componentType": "frontend", "replicas": 0}});
    let none = object(json!({"metadata": {"name": "g"}, "spec": {"services": none}}));
    assert!(wants_frontends(&services) && !wants_frontends(&none));
    assert_eq!(frontends_stay(&services), None);
    let components = object(json!({"metadata": {"name": "g"}, "spec": {"components": [
        {"name": "F", "type": "frontend", "scalingAdapter": {}},
        {"name": "W", "type": "worker", "replicas": 4},
    ]}}));
    let patch = json!({"spec": {"components": [
        {"name": "F", "type": "frontend", "scalingAdapter": {}, "replicas": 0},
        {"name": "W", "type": "worker", "replicas": 4},
    ]}});
    assert_eq!(frontends_to_zero(&components), patch);
    let why = frontends_stay(&components).unwrap();
    assert!(why.contains("component F has a scalingAdapter"), "{why}");
    let none = object(json!({"metadata": {"name": "g"}, "spec": {"services": {}}}));
    assert!(
        frontends_stay(&none)
            .unwrap()
            .contains("no component of type frontend")
    );
}

#[test]
fn the_last_writer_of_a_size_owns_it() {
    let mut given = deployment();
    given["metadata"]["managedFields"] = json!([
        {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:template": {}}}},
        {"manager": "us", "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
    ]);
    let one = &of("Deployment", given, &[])[0];
    assert_eq!(
        (one.is_set_by("us"), one.is_set_by("kubectl")),
        (true, false)
    );
}

#[test]
fn every_kind_that_a_rollout_can_name_can_be_scaled() {
    for kind in crate::resource::SCALED_KINDS {
        assert!(of_kind(kind).is_some(), "{kind}");
    }
    let scaled = super::super::ALL
        .iter()
        .filter(|kind| kind.scaling().is_some());
    assert_eq!(scaled.count(), crate::resource::SCALED_KINDS.len());
    assert!(of_kind("Pod").is_none());
}
