//! The controller does not act on incomplete or outdated information about clients, proxies and models.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::faults::leads;
use super::fixture::{Fixture, pods, resource};
use super::live_page::{reader, wait_for_page_event};
use super::safe_to_delete::{clients, services};
use crate::rig::*;

fn message(object: &Value) -> &str {
    object["status"]["message"].as_str().unwrap_or_default()
}

fn frontend_of_old() -> Value {
    json!({
        "nvidia.com/dynamo-graph-deployment-name": "old", "nvidia.com/dynamo-component-type": "frontend",
    })
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_one_of_its_frontends_has_no_proxy() {
    let fixture =
        Fixture::with_update(json!({"clientService": "clients", "ackTimeoutSeconds": 1})).await;
    // Clients reach it through the Service, and it cannot be queried.
    let ports = json!([{"name": "admin", "containerPort": 9464}]);
    fixture
        .pod("old-frontend-bare", frontend_of_old(), ports)
        .await;
    fixture.pod_ready("old-frontend-bare", true).await;
    let slices = resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
    let endpoint = json!({
        "addresses": ["10.9.0.1"], "conditions": {"ready": true},
        "targetRef": {"kind": "Pod", "name": "old-frontend-bare"},
    });
    let slice = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "clients"}}, "addressType": "IPv4",
        "endpoints": [endpoint],
    });
    fixture.create(&services(), "clients", clients()).await;
    fixture.create(&slices, "clients-1", slice).await;
    let controller = fixture.controller(&[]).await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    fixture.wait_for_split("up", 1, 1).await;
    fixture.delete_old_workers().await;
    let is_waiting = |object: &Value| {
        let status = &object["status"];
        // The page shows what the controller waits for, with its time.
        let waits = status["waitingFor"].as_array().into_iter().flatten();
        let mut waits = waits.filter(|wait| wait["since"].is_string());
        let what = |wait: &Value| wait["what"].as_str().unwrap_or_default().to_owned();
        object["spec"]["trafficSplitPercent"] == 100
            && status["wanted"]["percent"] == 100
            && status["frontends"]["total"] == 2
            && message(object).contains("old-frontend-bare (no port crossfade)")
            && waits.any(|wait| what(wait).contains("old-frontend-bare"))
    };
    fixture.until("up", "waiting", is_waiting).await;
    let mut condition = reader(&controller).await;
    wait_for_page_event(&mut condition, |page| {
        let mut lines = page["proxies"].as_array().into_iter().flatten();
        lines.any(|line| {
            line["name"] == "old-frontend-bare" && line["silence"] == "it has no port crossfade"
        })
    })
    .await;
    fixture.keeps(&controller, "up", 100).await;
    let object = fixture.until("up", "still waiting", is_waiting).await;
    assert_ne!(object["status"]["phase"], "Draining", "{object}");
    assert_eq!(object["status"]["safeToDeleteOld"], false);
    assert_eq!(object["status"]["lastOldWorkerDispensable"], false);
    fixture.delete(&pods(), "old-frontend-bare").await;
    fixture.delete(&slices, "clients-1").await;
    fixture.frontend_of_new("new-frontend-0").await;
    let slice = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "clients"}}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.0.1"], "targetRef": {"kind": "Pod", "name": "new-frontend-0"}}],
    });
    fixture.create(&slices, "clients-2", slice).await;
    let object = fixture
        .until("up", "safe", |object| {
            object["status"]["safeToDeleteOld"] == true
        })
        .await;
    assert_eq!(object["status"]["phase"], "Complete");
    assert_eq!(object["status"]["lastOldWorkerDispensable"], true);
}

#[tokio::test]
async fn a_missing_port_is_not_a_missing_client() {
    let fixture = Fixture::with_update(json!({"ackTimeoutSeconds": 1})).await;
    let _controller = fixture.controller(&["--proxy-port", "another"]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.wait_for_split("up", 4, 1).await;
    fixture.delete_old_workers().await;
    let object = fixture
        .until("up", "all to new, and waiting", |object| {
            object["spec"]["trafficSplitPercent"] == 100
                && message(object).contains("old-frontend-0 (no port another)")
        })
        .await;
    assert_eq!(object["spec"]["oldDraining"], json!(false), "{object}");
    assert_eq!(object["status"]["safeToDeleteOld"], false);
}

#[tokio::test]
async fn no_proxy_has_applied_an_edit_that_was_just_written() {
    let fixture = Fixture::with_update(json!({"ackTimeoutSeconds": 3600})).await;
    let _controller = fixture.controller(&[]).await;
    fixture
        .until("up", "heard", |object| {
            object["status"]["frontends"]["applied"] == 1
        })
        .await;
    // It has applied the current plan, and gets no more events.
    fixture.proxies[0].signal(libc::SIGSTOP);
    fixture.worker("new", 0, "worker").await;
    let deadline = Instant::now() + super::fixture::PATIENCE;
    let mut seen = 0;
    while seen < 20 {
        assert!(Instant::now() < deadline, "never written");
        let object = fixture.get("up").await;
        let status = &object["status"];
        let is_of_split = object["spec"]["trafficSplitPercent"] == 20
            && status["observedGeneration"] == object["metadata"]["generation"];
        if is_of_split {
            assert_eq!(status["frontends"]["applied"], 0, "{object}");
            seen += 1;
        }
        // A poll interval.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fixture.proxies[0].signal(libc::SIGCONT);
    fixture
        .until("up", "applied", |object| {
            object["status"]["frontends"]["applied"] == 1
        })
        .await;
}

#[tokio::test]
async fn without_a_known_model_of_old_new_gets_nothing() {
    let fixture = Fixture::start().await;
    for i in 0..4 {
        fixture.worker("old", i, "worker").await;
        fixture.worker("new", i, "worker").await;
    }
    let nobody = Upstream::nobody();
    let ports = json!([{"name": "crossfade", "containerPort": nobody.port()}]);
    fixture
        .pod("old-frontend-0", frontend_of_old(), ports)
        .await;
    fixture.pod_ready("old-frontend-0", true).await;
    fixture.update("up", json!({"ackTimeoutSeconds": 1})).await;
    let controller = fixture.controller(&[]).await;
    fixture
        .until("up", "the status reports it", |object| {
            object["status"]["phase"] == "Degraded"
                && message(object).contains("no frontend of old has listed its models")
        })
        .await;
    fixture.keeps(&controller, "up", 0).await;
    fixture.edit("up", json!({"models": ["tiny"]})).await;
    fixture.wait_for_split("up", 1, 1).await;
}

#[tokio::test]
async fn the_split_follows_a_crash_while_a_new_leader_still_probes_the_models() {
    let answers = Arc::new(AtomicBool::new(true));
    let frontend = Upstream::start({
        let answers = Arc::clone(&answers);
        move |received| match received.target.as_str() {
            "/v1/models" => models(&["tiny"]),
            "/v1/chat/completions" if answers.load(Ordering::Relaxed) => {
                Script::new().json(200, "{}")
            }
            "/v1/chat/completions" | "/v1/completions" => Script::new().pause(600_000),
            _ => empty_404(),
        }
    })
    .await;
    let fixture = Fixture::with_update(json!({"newFrontendService": frontend.url()})).await;
    let mut first = fixture.controller(&[]).await;
    for i in 0..2 {
        fixture.worker("new", i, "worker").await;
    }
    // The frontend has no readiness path for models, so the model is tried with a request.
    fixture.wait_for_split("up", 2, 1).await;
    first.kill();
    answers.store(false, Ordering::Relaxed);
    let second = fixture.controller(&[]).await;
    // Until the new leader has probed the models, it keeps the share.
    leads(&second).await;
    fixture.keeps(&second, "up", 33).await;
    let crashed = Instant::now();
    fixture.pod_ready("new-worker-0", false).await;
    fixture.wait_for_split("up", 4, 1).await;
    fixture.pod_ready("new-worker-1", false).await;
    fixture.wait_for_split("up", 1, 0).await;
    // A probe takes up to a minute: two requests of 30 s each.
    let took = crashed.elapsed();
    assert!(took < Duration::from_secs(40), "{took:?}");
}

#[tokio::test]
async fn a_cap_that_an_outage_lifts_stays_lifted_after_other_edits() {
    let fixture = Fixture::with_update(json!({"maxTrafficSplitPercent": 10})).await;
    let mut controller = fixture.controller(&[]).await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    fixture.wait_for_split("up", 9, 1).await;
    for i in 0..4 {
        fixture.pod_ready(&format!("old-worker-{i}"), false).await;
    }
    let object = fixture
        .until("up", "lifted", |object| {
            object["status"]["liftedCapPercent"] == 10
        })
        .await;
    assert_eq!(object["spec"]["trafficSplitPercent"], 100);
    let is_all_new = async || {
        let plan: Value = serde_json::from_str(&fixture.proxies[0].plan().await).unwrap();
        let generation = fixture.get("up").await["metadata"]["generation"].clone();
        (
            plan["identity"]["generation"] == generation,
            plan["weights"].clone(),
        )
    };
    // The status is no longer written.
    controller.kill();
    fixture
        .edit("up", json!({"drainDeadlineSeconds": 60}))
        .await;
    let mut weights = Value::Null;
    eventually("the proxy has the edit", async || {
        let (is_applied, now) = is_all_new().await;
        weights = now;
        is_applied
    })
    .await;
    assert_eq!(weights["old"], 0, "{weights}");
    // Another cap has not been lifted.
    fixture
        .edit("up", json!({"maxTrafficSplitPercent": 20}))
        .await;
    eventually("the new cap holds", async || {
        let (_, now) = is_all_new().await;
        now["old"] != 0
    })
    .await;
}

#[tokio::test]
async fn an_edit_of_only_the_percentage_does_not_prevent_completion() {
    let fixture = Fixture::with_update(json!({})).await;
    let _controller = fixture.controller(&[]).await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    fixture.wait_for_split("up", 1, 1).await;
    // The user now owns the percentage, and removes the weights that the controller owned.
    let edit = json!({"paused": true, "trafficSplitPercent": 100, "weights": null});
    fixture.edit("up", edit).await;
    let object = fixture
        .until("up", "complete", |object| {
            object["status"]["phase"] == "Complete"
        })
        .await;
    assert_eq!(object["spec"]["trafficSplitPercent"], 100);
    assert_eq!(object["spec"]["oldDraining"], true);
    assert_eq!(fixture.events().await.get("SplitContested"), None);
}

#[tokio::test]
async fn the_controller_owns_three_fields_of_the_spec_and_the_first_manifest_says_how_to_edit_them()
{
    let fixture = Fixture::with_update(json!({})).await;
    let _controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    let object = fixture.wait_for_split("up", 4, 1).await;
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let own: Vec<_> = entries
        .iter()
        .filter(|entry| {
            entry["manager"] == "crossfade-controller" && entry["subresource"].is_null()
        })
        .collect();
    assert_eq!(own.len(), 1, "{entries:?}");
    assert_eq!(own[0]["operation"], "Apply");
    let spec = own[0]["fieldsV1"]["f:spec"].as_object().unwrap();
    let mut fields: Vec<_> = spec.keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        ["f:oldDraining", "f:trafficSplitPercent", "f:weights"]
    );
    // A percentage that contradicts the weights is rejected with advice.
    let patch =
        kube::api::Patch::Merge(json!({"spec": {"paused": true, "trafficSplitPercent": 0}}));
    let api = fixture.api(&super::fixture::updates());
    let refused = api.patch("up", &Default::default(), &patch).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("weights: null"), "{refused}");
    let edit = json!({"paused": true, "trafficSplitPercent": 0, "weights": null});
    fixture.edit("up", edit).await;
    let object = fixture
        .until("up", "held", |object| object["status"]["phase"] == "Paused")
        .await;
    assert_eq!(object["spec"]["trafficSplitPercent"], 0);
}

#[tokio::test]
async fn a_source_that_matches_no_pods_is_reported_and_old_stays_a_failover_target() {
    let fixture = Fixture::start().await;
    fixture.worker("old", 0, "worker").await;
    fixture.worker("new", 0, "worker").await;
    let workers = json!({"workers": {"old": {"selector": {"app": "mistyped"}}}});
    fixture.update("up", workers).await;
    let _controller = fixture.controller(&[]).await;
    fixture.wait_for_split("up", 0, 1).await;
    let object = fixture
        .until("up", "the status reports it", |object| {
            object["status"]["phase"] == "Degraded"
                && object["status"]["rule"] == "OldCannotServe"
                && message(object).contains("spec.workers.old")
        })
        .await;
    assert_ne!(object["spec"]["oldDraining"], true, "{object}");
    fixture.edit("up", json!({"workers": null})).await;
    fixture.wait_for_split("up", 1, 1).await;
}

#[tokio::test]
async fn a_controller_that_cannot_query_new_reports_why_and_still_follows_a_loss() {
    let fixture = Fixture::with_update(json!({})).await;
    let _controller = fixture.controller(&[]).await;
    for i in 0..2 {
        fixture.worker("new", i, "worker").await;
    }
    fixture.wait_for_split("up", 2, 1).await;
    // A file that the proxies may have, but the controller does not.
    let secured = format!("https://{}", fixture.new.address);
    let edit = json!({"newFrontendService": secured, "tls": {"caFile": "/nowhere/ca.pem"}});
    fixture.edit("up", edit).await;
    let object = fixture
        .until("up", "the status reports it", |object| {
            let mut conditions = object["status"]["conditions"].as_array().unwrap().iter();
            conditions.any(|condition| {
                let message = condition["message"].as_str().unwrap();
                condition["reason"] == "NoAnswer" && message.contains("/nowhere/ca.pem")
            })
        })
        .await;
    assert_eq!(object["spec"]["trafficSplitPercent"], 33, "{object}");
    fixture.pod_ready("new-worker-0", false).await;
    fixture.wait_for_split("up", 4, 1).await;
    fixture.pod_ready("new-worker-1", false).await;
    fixture.wait_for_split("up", 1, 0).await;
}

#[tokio::test]
async fn a_wait_continues_after_a_restart() {
    let fixture = Fixture::with_update(json!({"stableSeconds": 3600})).await;
    let mut first = fixture.controller(&[]).await;
    fixture
        .until("up", "seen", |object| {
            object["status"]["rule"] == "NewCannotServe"
        })
        .await;
    let begun = Instant::now();
    fixture.worker("new", 0, "worker").await;
    let waits_until = |object: &Value| object["status"]["waitingFor"][0]["until"].clone();
    let is_waiting = |object: &Value| {
        let waits = message(object).contains("the workers of new to stay ready");
        waits && waits_until(object).is_string()
    };
    let object = fixture.until("up", "waiting", is_waiting).await;
    let end = waits_until(&object);
    // Another controller takes over some seconds later and does not restart the wait.
    first.kill();
    let second = fixture.controller(&[]).await;
    leads(&second).await;
    fixture.keeps(&second, "up", 0).await;
    assert_eq!(waits_until(&fixture.get("up").await), end);
    // So that the next change is due to the end of that wait.
    fixture.edit("up", json!({"stableSeconds": 20})).await;
    fixture.wait_for_split("up", 4, 1).await;
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(20), "{took:?}");
}

#[tokio::test]
async fn strict_keeps_a_pause_where_new_cannot_serve() {
    let fixture = Fixture::with_update(json!({"paused": true, "strict": true})).await;
    let controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    let edit = json!({"trafficSplitPercent": 50, "weights": null});
    fixture.edit("up", edit).await;
    fixture
        .until("up", "held", |object| {
            object["status"]["wanted"]["percent"] == 50
        })
        .await;
    fixture.pod_ready("new-worker-0", false).await;
    fixture
        .until("up", "counted", |object| {
            object["status"]["new"]["workers"] == "0/1"
        })
        .await;
    fixture.keeps(&controller, "up", 50).await;
    // Without `strict`, a generation that cannot serve gets nothing.
    fixture.edit("up", json!({"strict": false})).await;
    fixture.wait_for_split("up", 1, 0).await;
}
