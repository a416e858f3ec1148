//! The controller analyzes new with the counts of the proxies, and acts on the verdict.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::faults::leads;
use super::fixture::{Controller, Fixture, resource};
use crate::browser::Browser;
use crate::rig::proxy::{output_text, run_with_env};
use crate::rig::*;

/// Clients that send requests without a pause. While `fails` is set, new fails their requests and old recovers them.
struct Clients {
    fails: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Clients {
    fn of(fixture: &Fixture) -> Self {
        let fails = Arc::new(AtomicBool::new(false));
        let address = fixture.proxies[0].address;
        let refused = Arc::clone(&fails);
        let task = tokio::spawn(async move {
            loop {
                let ends = if refused.load(Ordering::Relaxed) {
                    "refused"
                } else {
                    "well"
                };
                let answer = client::post(address, CHAT, &[("x-ends", ends)], STREAMING).await;
                assert_eq!(answer.status, 200, "clients see no failure");
                // Limits the request rate.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        Self { fails, task }
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An update with four workers in each generation.
async fn start(spec: Value) -> (Fixture, Controller) {
    let fixture = Fixture::with_update(spec).await;
    let controller = fixture.controller(&[]).await;
    leads(&controller).await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    (fixture, controller)
}

fn condition(object: &Value) -> Option<(bool, String, String)> {
    let conditions = object["status"]["conditions"].as_array()?;
    let mut conditions = conditions.iter();
    let message = conditions.find(|message| message["type"] == "AnalysisFailed")?;
    let text = |field: &str| message[field].as_str().unwrap_or_default().to_owned();
    Some((message["status"] == "True", text("reason"), text("message")))
}

fn retry(fixture: &Fixture) -> (Option<i32>, String) {
    let args = ["retry", "up", "-n", &fixture.namespace, "--yes"];
    let done = run_with_env(&args, &[("KUBECONFIG", &fixture.kubeconfig)]);
    (done.status.code(), output_text(&done))
}

/// Asserts that the controller's page and `crossfade status` show the verdict first.
async fn leads_with_the_verdict(fixture: &Fixture, controller: &Controller) {
    let verdict = "New has failed and was rolled back: New fails ";
    let done = run_with_env(
        &["status", "up", "-n", &fixture.namespace],
        &[("KUBECONFIG", &fixture.kubeconfig)],
    );
    let shown = output_text(&done);
    let second = shown.lines().nth(1).unwrap_or_default();
    assert!(
        second.starts_with(&format!("summary     {verdict}")),
        "{shown}"
    );
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    browser.open(&format!("http://{}/", controller.admin)).await;
    browser
        .until("#assessment", |text| text.starts_with(verdict))
        .await;
    browser.picture("verdict-controller").await;
}

const REASON: &str = "crossfade_controller_analysis_reason";

#[tokio::test]
async fn a_new_generation_that_fails_gets_nothing_until_a_user_retries_it() {
    let (fixture, mut controller) = start(json!({"analysis": {"onFailure": "RollBack"}})).await;
    fixture.wait_for_split("up", 1, 1).await;
    let (code, text) = retry(&fixture);
    assert_eq!(code, Some(0));
    assert!(text.contains("nothing to change"), "{text}");
    let clients = Clients::of(&fixture);
    clients.fails.store(true, Ordering::Relaxed);
    let object = fixture.wait_for_split("up", 1, 0).await;
    let (holds, reason, message) = condition(&object).unwrap();
    assert_eq!((holds, &*reason), (true, "RolledBack"), "{message}");
    assert!(message.starts_with("new fails "), "{message}");
    let analysis = &object["status"]["analysis"];
    assert_eq!(analysis["verdict"], "Fail", "{analysis}");
    assert_eq!(analysis["rolledBack"], true, "{analysis}");
    assert_eq!(object["status"]["rule"], "AnalysisFailed");
    let text = fixture.wait_for_event("AnalysisFailed").await;
    assert!(
        text.starts_with(&message)
            && text.ends_with("all requests go to old until `crossfade retry` (for a rollout, `crossfade rollout retry`)"),
        "{text}"
    );
    clients.fails.store(false, Ordering::Relaxed);
    fixture.keeps(&controller, "up", 0).await;
    leads_with_the_verdict(&fixture, &controller).await;
    // Another controller keeps the failure.
    controller.kill();
    let controller = fixture.controller(&[]).await;
    leads(&controller).await;
    fixture.keeps(&controller, "up", 0).await;
    let reason = [("reason", "failure_rate")];
    eventually("its reason is in the metrics", async || {
        let metrics = controller.metrics().await;
        metrics.sum(REASON, &reason) == 1.0 && metrics.sum(REASON, &[]) == 1.0
    })
    .await;
    let generation = fixture.get("up").await["metadata"]["generation"].clone();
    let (code, text) = retry(&fixture);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("annotation crossfade/retried-at: none -> "),
        "{text}"
    );
    let object = fixture.wait_for_split("up", 1, 1).await;
    // Earlier failures do not count again, and only the split in the spec has changed.
    assert_eq!(condition(&object).map(|(holds, ..)| holds), Some(false));
    assert!(object["metadata"]["generation"].as_i64() <= generation.as_i64().map(|n| n + 1));
    fixture.keeps(&controller, "up", 50).await;
    assert_eq!(controller.metrics().await.sum(REASON, &reason), 0.0);
    // Another new generation also starts a new analysis.
    clients.fails.store(true, Ordering::Relaxed);
    fixture.wait_for_split("up", 1, 0).await;
    clients.fails.store(false, Ordering::Relaxed);
    let other = format!("http://{}", fixture.new.url());
    fixture
        .edit("up", json!({"newFrontendService": other}))
        .await;
    fixture.wait_for_split("up", 1, 1).await;
}

#[tokio::test]
async fn with_hold_new_keeps_its_share_and_the_split_follows_losses() {
    let (fixture, controller) = start(json!({"analysis": {}, "maxTrafficSplitPercent": 30})).await;
    fixture.wait_for_split("up", 7, 3).await;
    let clients = Clients::of(&fixture);
    clients.fails.store(true, Ordering::Relaxed);
    let object = fixture
        .until("up", "held", |object| {
            condition(object).is_some_and(|(holds, ..)| holds)
        })
        .await;
    assert_eq!(condition(&object).unwrap().1, "Held");
    clients.fails.store(false, Ordering::Relaxed);
    fixture
        .edit("up", json!({"maxTrafficSplitPercent": null}))
        .await;
    fixture.keeps(&controller, "up", 30).await;
    for i in 1..4 {
        fixture.pod_ready(&format!("new-worker-{i}"), false).await;
    }
    fixture.wait_for_split("up", 4, 1).await;
}

#[tokio::test]
async fn a_step_needs_a_pass_and_its_hold_time_and_the_reports_of_all_proxies() {
    let steps = json!([{"percent": 10, "holdSeconds": 3}, {"percent": 100}]);
    // The latencies of scripted servers are meaningless.
    let analysis = json!({
        "warmupSeconds": 0, "minSamples": 20, "ttftP95Ratio": 100, "gapP99Ratio": 100, "onFailure": "RollBack",
    });
    let (fixture, controller) = start(json!({"steps": steps, "analysis": analysis})).await;
    let object = fixture.wait_for_split("up", 9, 1).await;
    // Without requests there is no verdict.
    assert_eq!(object["status"]["rule"], "Step");
    let object = fixture
        .until("up", "judged", |object| {
            let hold = object["status"]["step"]["holdUntil"].is_string();
            hold && object["status"]["analysis"]["verdict"] == "Inconclusive"
        })
        .await;
    assert_eq!(object["status"]["step"]["percent"], 10, "{object}");
    let hold_until = object["status"]["step"]["holdUntil"].as_str().unwrap();
    let hold_until: jiff::Timestamp = hold_until.parse().unwrap();
    eventually("the hold time is over", async || {
        jiff::Timestamp::now() > hold_until
    })
    .await;
    fixture.keeps(&controller, "up", 10).await;
    // A proxy that cannot be queried, in a pod that gets client requests.
    let nobody = Upstream::nobody();
    let labels = json!({
        "nvidia.com/dynamo-graph-deployment-name": "old", "nvidia.com/dynamo-component-type": "frontend",
    });
    let ports = json!([{"name": "crossfade", "containerPort": nobody.port()}]);
    fixture.pod("old-frontend-mute", labels, ports).await;
    fixture.pod_ready("old-frontend-mute", true).await;
    let _clients = Clients::of(&fixture);
    fixture
        .until("up", "the silent proxy is reported", |object| {
            let condition = object["status"]["analysis"]["message"].as_str();
            condition.is_some_and(|condition| {
                condition.contains("cannot be compared: old-frontend-mute")
            })
        })
        .await;
    fixture.keeps(&controller, "up", 10).await;
    // A pod that is no longer ready may keep the connections of its clients.
    fixture.pod_ready("old-frontend-mute", false).await;
    fixture
        .until("up", "only the silent proxy prevents a pass", |object| {
            let message = object["status"]["analysis"]["message"].as_str();
            message.is_some_and(|message| {
                message.starts_with("1 of 2 proxies cannot be compared: old-frontend-mute")
            })
        })
        .await;
    fixture.keeps(&controller, "up", 10).await;
    fixture
        .delete(&super::fixture::pods(), "old-frontend-mute")
        .await;
    let object = fixture.wait_for_split("up", 1, 1).await;
    assert_eq!(object["status"]["step"], Value::Null);
}

#[tokio::test]
async fn steps_without_an_analysis_need_only_their_hold_times() {
    let steps = json!([{"percent": 20, "holdSeconds": 2}, {"percent": 40, "holdSeconds": 1}]);
    let (fixture, _controller) = start(json!({"steps": steps})).await;
    fixture.wait_for_split("up", 4, 1).await;
    fixture.wait_for_split("up", 3, 2).await;
    fixture.wait_for_split("up", 1, 1).await;
}

#[tokio::test]
async fn if_a_controller_is_killed_between_the_verdict_and_the_split_the_next_one_continues() {
    let (fixture, mut controller) = start(json!({"analysis": {"onFailure": "RollBack"}})).await;
    fixture.wait_for_split("up", 1, 1).await;
    refuse_all_to_old(&fixture).await;
    let clients = Clients::of(&fixture);
    clients.fails.store(true, Ordering::Relaxed);
    let object = fixture
        .until("up", "recorded", |object| {
            object["status"]["memory"]["trial"]["failure"].is_object()
        })
        .await;
    assert_eq!(object["spec"]["trafficSplitPercent"], 50);
    controller.kill();
    drop(clients);
    let policies = ["delete", "validatingadmissionpolicies", &fixture.namespace];
    super::fixture::server().kubectl(&policies);
    let bindings = [
        "delete",
        "validatingadmissionpolicybindings",
        &fixture.namespace,
    ];
    super::fixture::server().kubectl(&bindings);
    let _controller = fixture.controller(&[]).await;
    let object = fixture.wait_for_split("up", 1, 0).await;
    assert_eq!(object["status"]["analysis"]["verdict"], "Fail");
    fixture.wait_for_event("AnalysisFailed").await;
}

/// Makes the API server deny every write of a split of 0, and waits until it does.
async fn refuse_all_to_old(fixture: &Fixture) {
    let name = &fixture.namespace;
    let group = "admissionregistration.k8s.io";
    let policy = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": ["nvidia.com"], "apiVersions": ["*"], "operations": ["UPDATE"],
            "resources": ["dynamoupdateconfigs"],
        }]},
        "matchConditions": [{"name": "here", "expression": format!("request.namespace == '{name}'")}],
        "validations": [{"expression": "object.spec.trafficSplitPercent != 0"}],
    });
    let binding = json!({"policyName": name, "validationActions": ["Deny"]});
    for (kind, plural, spec) in [
        (
            "ValidatingAdmissionPolicy",
            "validatingadmissionpolicies",
            policy,
        ),
        (
            "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
            binding,
        ),
    ] {
        let kind = resource(group, "v1", kind, plural);
        let object = json!({
            "apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec,
        });
        let object = serde_json::from_value(object).unwrap();
        let api: kube::Api<kube::api::DynamicObject> =
            kube::Api::all_with(fixture.client.clone(), &kind);
        api.create(&Default::default(), &object).await.unwrap();
    }
    let api = fixture.api(&super::fixture::updates());
    eventually("the policy is in force", async || {
        let patch =
            kube::api::Patch::Merge(json!({"spec": {"trafficSplitPercent": 0, "weights": null}}));
        let params = kube::api::PatchParams {
            dry_run: true,
            ..Default::default()
        };
        api.patch("up", &params, &patch).await.is_err()
    })
    .await;
}
