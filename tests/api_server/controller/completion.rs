//! The completion of an update, several updates of one deployment, and invalid updates.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::fixture::{Fixture, resource, server, updates};
use super::safe_to_delete::{clients, services};
use crate::rig::*;

#[tokio::test]
async fn an_update_completes_in_order_and_old_is_safe_to_delete_once_clients_no_longer_reach_it() {
    let fixture = Fixture::with_update(json!({"clientService": "clients"})).await;
    let slices = resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
    let slice = |pod: &str| {
        json!({
            "metadata": {"labels": {"kubernetes.io/service-name": "clients"}}, "addressType": "IPv4",
            "endpoints": [{
                "addresses": ["10.9.0.1"], "conditions": {"ready": true}, "targetRef": {"kind": "Pod", "name": pod},
            }],
        })
    };
    fixture.create(&services(), "clients", clients()).await;
    fixture
        .create(&slices, "clients-1", slice("old-frontend-0"))
        .await;
    let _controller = fixture.controller(&[]).await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    fixture.wait_for_split("up", 1, 1).await;
    fixture.delete_old_workers().await;
    let object = fixture
        .until("up", "complete", |object| {
            object["status"]["phase"] == "Complete"
        })
        .await;
    assert_eq!(object["spec"]["oldDraining"], true);
    assert_eq!(object["status"]["safeToDeleteOld"], false, "{object}");
    let missing = object["status"]["missingForDeletion"].to_string();
    assert!(missing.contains("spec.clientService"), "{missing}");
    assert_eq!(
        object["status"]["frontends"],
        json!({"total": 1, "applied": 1})
    );
    for reason in ["Draining", "Complete"] {
        fixture.wait_for_event(reason).await;
    }
    fixture.delete(&slices, "clients-1").await;
    // An endpoint that may or may not belong to new.
    fixture
        .create(&slices, "clients-2", slice("new-frontend-0"))
        .await;
    fixture
        .until("up", "waiting for a frontend of new", |object| {
            let missing = object["status"]["missingForDeletion"].to_string();
            missing.contains("ready frontend of new") && missing.contains("no longer routes")
        })
        .await;
    let is_safe = |object: &Value| object["status"]["safeToDeleteOld"] == true;
    fixture.frontend_of_new("new-frontend-0").await;
    let object = fixture.until("up", "safe", is_safe).await;
    let time = |field: &str| -> Timestamp {
        let time = object["status"][field].as_str();
        time.unwrap_or_else(|| panic!("{object}")).parse().unwrap()
    };
    let lasts = time("validUntil").duration_since(time("observedAt"));
    assert_eq!(lasts.as_secs(), 90);
    // Another Service that routes to old prevents its deletion, but not that of its last worker.
    let other = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "legacy"}}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.0.2"], "targetRef": {"kind": "Pod", "name": "old-frontend-0"}}],
    });
    fixture.create(&slices, "legacy-1", other).await;
    let is_not = |object: &Value| {
        let status = &object["status"];
        let missing = status["missingForDeletion"].to_string();
        missing.contains("Service legacy")
            && status["safeToDeleteOld"] == false
            && status["lastOldWorkerDispensable"] == true
    };
    fixture.until("up", "not safe any more", is_not).await;
    fixture.delete(&slices, "legacy-1").await;
    fixture.until("up", "safe again", is_safe).await;
    // An invalid update is not reconciled, and sets no flag.
    fixture
        .edit(
            "up",
            json!({"newFrontendService": "https://a:1,http://b:2"}),
        )
        .await;
    let object = fixture
        .until("up", "refused", |object| {
            object["status"]["phase"] == "Degraded"
        })
        .await;
    assert_eq!(object["status"]["safeToDeleteOld"], false, "{object}");
    assert_eq!(
        object["status"]["lastOldWorkerDispensable"], false,
        "{object}"
    );
    // Its proxies end with this test, and controllers of all namespaces would wait for their reports.
    fixture.delete(&updates(), "up").await;
}

#[tokio::test]
async fn kubectl_wait_waits_until_an_update_is_ready() {
    let fixture = Fixture::with_update(json!({})).await;
    let _controller = fixture.controller(&[]).await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    fixture.wait_for_split("up", 1, 1).await;
    let wait = |seconds: u32| {
        let namespace = fixture.namespace.clone();
        tokio::task::spawn_blocking(move || {
            let timeout = format!("--timeout={seconds}s");
            let wait = ["wait", "--for=condition=Ready", "duc/up", "-n", &namespace];
            server().try_kubectl(&[&wait[..], &[&timeout]].concat(), "")
        })
    };
    let early = wait(2).await.unwrap();
    let text = String::from_utf8_lossy(&early.stderr);
    assert!(
        !early.status.success() && text.contains("timed out"),
        "{text}"
    );
    let waiting = wait(60);
    fixture.delete_old_workers().await;
    let output = waiting.await.unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fixture.get("up").await["status"]["phase"], "Complete");
}

#[tokio::test]
async fn an_update_without_proxies_does_not_complete_and_says_so() {
    let mut fixture = Fixture::start().await;
    for i in 0..4 {
        fixture.worker("old", i, "worker").await;
        fixture.worker("new", i, "worker").await;
    }
    // A Deployment whose pods have no labels of frontends or workers.
    for name in ["any-frontend-0", "any-frontend-1"] {
        let labels = json!({"nvidia.com/dynamo-graph-deployment-name": "old"});
        fixture.pod(name, labels, json!([])).await;
        fixture.pod_ready(name, true).await;
    }
    fixture
        .update(
            "up",
            json!({"clientService": "clients", "models": ["tiny"]}),
        )
        .await;
    let slices = resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
    fixture.frontend_of_new("new-frontend-0").await;
    let slice = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "clients"}}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.0.1"], "targetRef": {"kind": "Pod", "name": "new-frontend-0"}}],
    });
    fixture.create(&services(), "clients", clients()).await;
    fixture.create(&slices, "clients-1", slice).await;
    let controller = fixture.controller(&[]).await;
    fixture
        .edit(
            "up",
            json!({"trafficSplitPercent": 100, "weights": null, "paused": true}),
        )
        .await;
    let is_reported = |object: &Value| {
        let conditions = object["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|is| {
            is["type"] == "Degraded" && is["reason"] == "NoProxy" && is["status"] == "True"
        })
    };
    let is_held = |object: &Value| {
        let status = &object["status"];
        status["wanted"]["percent"] == 100
            && status["old"]["workers"] == "4/4"
            && is_reported(object)
    };
    fixture.until("up", "the status reports it", is_held).await;
    fixture.keeps(&controller, "up", 100).await;
    let object = fixture
        .until("up", "the status still reports it", is_held)
        .await;
    assert_eq!(object["spec"]["oldDraining"], false, "{object}");
    assert_eq!(object["status"]["phase"], "Degraded", "{object}");
    assert_eq!(object["status"]["safeToDeleteOld"], false, "{object}");
    assert_eq!(
        object["status"]["lastOldWorkerDispensable"], false,
        "{object}"
    );
    // With a proxy it completes.
    fixture.proxy("up").await;
    let object = fixture
        .until("up", "complete", |object| {
            object["status"]["phase"] == "Complete"
        })
        .await;
    assert!(!is_reported(&object), "{object}");
}

#[tokio::test]
async fn a_user_drains_old_while_it_has_workers_and_then_its_last_worker_may_be_deleted() {
    let fixture = Fixture::with_update(json!({})).await;
    let _controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.wait_for_split("up", 4, 1).await;
    fixture.edit("up", json!({"drainOld": true})).await;
    let object = fixture
        .until("up", "complete", |object| {
            object["status"]["phase"] == "Complete"
        })
        .await;
    assert_eq!(object["spec"]["trafficSplitPercent"], 100, "{object}");
    fixture
        .until("up", "the last worker may go", |object| {
            object["status"]["lastOldWorkerDispensable"] == true
        })
        .await;
    assert_eq!(fixture.get("up").await["status"]["old"]["workers"], "4/4");
    fixture.edit("up", json!({"drainOld": false})).await;
    fixture.wait_for_split("up", 4, 1).await;
    assert_eq!(
        fixture.get("up").await["status"]["lastOldWorkerDispensable"],
        false
    );
}

#[tokio::test]
async fn a_drain_estimates_its_duration_from_past_stream_durations() {
    let fixture = Fixture::with_update(json!({})).await;
    let proxy = &fixture.proxies[0];
    let begin = async |millis: &str| {
        let mut client = Client::connect(proxy.address).await;
        client.post(CHAT, &[("x-ends", millis)], STREAMING).await;
        client.head().await;
        client.until(&content("old", 0)).await;
        client
    };
    for mut past in [begin("2500").await, begin("2500").await] {
        past.body().await;
    }
    let name = "crossfade_stream_duration_seconds_count";
    proxy.counts(name, &[("generation", "old")], 2.0).await;
    let open = begin("600000").await;
    let _controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.wait_for_split("up", 4, 1).await;
    fixture.delete_old_workers().await;
    // Streams lasted for 2 to 5 s, within the precision of the buckets.
    let object = fixture
        .until("up", "estimated", |object| {
            object["status"]["estimatedDrainSeconds"].is_u64()
        })
        .await;
    assert_eq!(object["status"]["phase"], "Draining");
    let seconds = object["status"]["estimatedDrainSeconds"].as_u64();
    assert!((1..=5).contains(&seconds.unwrap()), "{seconds:?}");
    drop(open);
    let object = fixture
        .until("up", "complete", |object| {
            object["status"]["phase"] == "Complete"
        })
        .await;
    assert!(object["status"]["estimatedDrainSeconds"].is_null());
}

#[tokio::test]
async fn a_drain_ends_at_its_deadline_although_a_stream_is_open_and_old_is_not_safe_to_delete() {
    // Long enough that the test sees the phase.
    let fixture =
        Fixture::with_update(json!({"drainDeadlineSeconds": 6, "clientService": "clients"})).await;
    let mut open = Client::connect(fixture.proxies[0].address).await;
    open.post(CHAT, &[("x-ends", "600000")], STREAMING).await;
    open.head().await;
    open.until(&content("old", 0)).await;
    let _controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.wait_for_split("up", 4, 1).await;
    fixture.delete_old_workers().await;
    for phase in ["Draining", "Complete"] {
        let with_a_stream = |object: &Value| {
            let status = &object["status"];
            status["phase"] == phase && status["old"]["openStreams"] == 1
        };
        fixture.until("up", phase, with_a_stream).await;
    }
    let object = fixture.get("up").await;
    assert_eq!(object["status"]["safeToDeleteOld"], false, "{object}");
    assert_eq!(object["status"]["lastOldWorkerDispensable"], false);
}

#[tokio::test]
async fn of_two_updates_of_a_deployment_the_successor_controls_and_the_other_does_nothing() {
    let fixture = Fixture::with_update(json!({"ackTimeoutSeconds": 1})).await;
    fixture.worker("new", 0, "worker").await;
    let controller = fixture.controller(&[]).await;
    fixture.wait_for_split("up", 4, 1).await;
    // Among updates of the same second, the name decides which is older.
    fixture
        .update(
            "up-next",
            json!({"supersedes": "up", "targetDeployment": "newer", "ackTimeoutSeconds": 1}),
        )
        .await;
    fixture
        .until("up", "superseded", |object| {
            let message = object["status"]["message"].as_str().unwrap_or_default();
            object["status"]["phase"] == "Superseded"
                && message.contains("the update up-next controls this deployment")
        })
        .await;
    fixture.worker("newer", 0, "worker").await;
    fixture.worker("newer", 1, "worker").await;
    fixture.wait_for_split("up-next", 2, 1).await;
    assert_eq!(
        fixture.get("up").await["spec"]["weights"],
        json!({"old": 4, "new": 1})
    );
    // The proxies correctly follow the other update and are not reported as lagging, even after the timeout. A third update, whose
    // proxy never responds and has twice the timeout, shows that the time has passed.
    let labels = json!({
        "nvidia.com/dynamo-graph-deployment-name": "elsewhere", "nvidia.com/dynamo-component-type": "frontend",
    });
    let ports = json!([
        {"name": "crossfade", "containerPort": Upstream::nobody().port()},
        {"name": "frontend", "containerPort": fixture.old.address.port()},
    ]);
    fixture.pod("elsewhere-frontend-mute", labels, ports).await;
    fixture.pod_ready("elsewhere-frontend-mute", true).await;
    for graph in ["elsewhere", "beyond"] {
        fixture.worker(graph, 0, "worker").await;
    }
    fixture
        .update(
            "witness",
            json!({"sourceDeployment": "elsewhere", "targetDeployment": "beyond", "ackTimeoutSeconds": 2}),
        )
        .await;
    let message = fixture.wait_for_event("ProxiesLag").await;
    assert!(message.contains("elsewhere-frontend-mute"), "{message}");
    fixture.keeps(&controller, "up", 20).await;
    let object = fixture.get("up").await;
    assert_eq!(object["status"]["phase"], "Superseded", "{object}");
    let lags = fixture.events().await.remove("ProxiesLag").unwrap();
    assert!(
        lags.iter()
            .all(|note| note.contains("elsewhere-frontend-mute")),
        "{lags:?}"
    );
}

#[tokio::test]
async fn an_update_whose_source_is_edited_triggers_a_reconcile_of_the_one_that_then_controls() {
    let fixture = Fixture::with_update(json!({})).await;
    let _controller = fixture.controller(&[]).await;
    fixture.update("waits", json!({})).await;
    let is_superseded = |object: &Value| object["status"]["phase"] == "Superseded";
    fixture.until("waits", "superseded", is_superseded).await;
    // Without the trigger, the reconcile takes up to 30 s. Several fast ones cannot be a coincidence.
    for _ in 0..3 {
        for (source, rules) in [("elsewhere", true), ("old", false)] {
            let edited = Instant::now();
            fixture
                .edit("up", json!({"sourceDeployment": source}))
                .await;
            let follows = |object: &Value| {
                !object["status"]["phase"].is_null() && is_superseded(object) != rules
            };
            fixture.until("waits", source, follows).await;
            let after = edited.elapsed();
            assert!(after < Duration::from_secs(10), "{source}: {after:?}");
        }
    }
}

#[tokio::test]
async fn an_invalid_update_is_reported_and_does_not_affect_others() {
    let fixture = Fixture::with_update(json!({})).await;
    fixture.create(&updates(), "bad", json!({"spec": {
        "newFrontendService": "new:8000", "trafficSplitPercent": 0, "sourceDeployment": "elsewhere",
        "workers": {"new": {"selector": {"app": "any"}}, "old": {"selector": {"app": "any"}}}, "targetDeployment": "elsewhere",
    }}))
    .await;
    fixture.worker("new", 0, "worker").await;
    let _controller = fixture.controller(&[]).await;
    fixture.wait_for_split("up", 4, 1).await;
    let object = fixture
        .until("bad", "the status reports it", |object| {
            object["status"]["phase"] == "Degraded"
        })
        .await;
    let message = object["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("is the same object as sourceDeployment"),
        "{message}"
    );
    assert_eq!(object["spec"]["trafficSplitPercent"], 0);
}
