//! The controller judges new by what the proxies count, and acts on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::faults::leads;
use super::fixture::{Controller, Fixture, resource};
use crate::browser::Browser;
use crate::rig::proxy::{run_with_env, said};
use crate::rig::*;

/// Clients that never pause. New refuses what they ask while `fails` says so, and old recovers it.
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

/// An update with four workers on both sides.
async fn begun(spec: Value) -> (Fixture, Controller) {
    let fixture = Fixture::begun(spec).await;
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
    let told = conditions.find(|told| told["type"] == "AnalysisFailed")?;
    let text = |field: &str| told[field].as_str().unwrap_or_default().to_owned();
    Some((told["status"] == "True", text("reason"), text("message")))
}

fn retry(fixture: &Fixture) -> (Option<i32>, String) {
    let args = ["retry", "up", "-n", &fixture.namespace, "--yes"];
    let done = run_with_env(&args, &[("KUBECONFIG", &fixture.kubeconfig)]);
    (done.status.code(), said(&done))
}

/// The page of the controller, and `crossfade status`.
async fn leads_with_the_verdict(fixture: &Fixture, controller: &Controller) {
    let verdict = "New has failed and was rolled back: New fails ";
    let done = run_with_env(
        &["status", "up", "-n", &fixture.namespace],
        &[("KUBECONFIG", &fixture.kubeconfig)],
    );
    let shown = said(&done);
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
        .until("#standing", |text| text.starts_with(verdict))
        .await;
    browser.picture("verdict-controller").await;
}

const REASON: &str = "crossfade_controller_analysis_reason";

#[tokio::test]
async fn a_new_generation_that_fails_gets_nothing_until_a_user_tries_it_again() {
    let (fixture, mut controller) = begun(json!({"analysis": {"onFailure": "RollBack"}})).await;
    fixture.splits("up", 1, 1).await;
    let (code, told) = retry(&fixture);
    assert_eq!(code, Some(0));
    assert!(told.contains("nothing to change"), "{told}");
    let clients = Clients::of(&fixture);
    clients.fails.store(true, Ordering::Relaxed);
    let object = fixture.splits("up", 1, 0).await;
    let (holds, reason, message) = condition(&object).unwrap();
    assert_eq!((holds, &*reason), (true, "RolledBack"), "{message}");
    assert!(message.starts_with("new fails "), "{message}");
    let analysis = &object["status"]["analysis"];
    assert_eq!(analysis["verdict"], "Fail", "{analysis}");
    assert_eq!(analysis["rolledBack"], true, "{analysis}");
    assert_eq!(object["status"]["rule"], "AnalysisFailed");
    let told = fixture.happens("AnalysisFailed").await;
    assert!(
        told.starts_with(&message)
            && told.ends_with("all requests go to old until `crossfade retry`"),
        "{told}"
    );
    clients.fails.store(false, Ordering::Relaxed);
    fixture.keeps(&controller, "up", 0).await;
    leads_with_the_verdict(&fixture, &controller).await;
    // Another controller has not forgotten it.
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
    let (code, told) = retry(&fixture);
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.contains("annotation crossfade/retried-at: none -> "),
        "{told}"
    );
    let object = fixture.splits("up", 1, 1).await;
    // What failed before does not count again, and the spec was not edited but for the split.
    assert_eq!(condition(&object).map(|(holds, ..)| holds), Some(false));
    assert!(object["metadata"]["generation"].as_i64() <= generation.as_i64().map(|n| n + 1));
    fixture.keeps(&controller, "up", 50).await;
    assert_eq!(controller.metrics().await.sum(REASON, &reason), 0.0);
    // Another new generation is judged anew, too.
    clients.fails.store(true, Ordering::Relaxed);
    fixture.splits("up", 1, 0).await;
    clients.fails.store(false, Ordering::Relaxed);
    let other = format!("http://{}", fixture.new.url());
    fixture
        .edit("up", json!({"newFrontendService": other}))
        .await;
    fixture.splits("up", 1, 1).await;
}

#[tokio::test]
async fn with_hold_new_keeps_what_it_has_and_losses_are_followed() {
    let (fixture, controller) = begun(json!({"analysis": {}, "maxTrafficSplitPercent": 30})).await;
    fixture.splits("up", 7, 3).await;
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
    fixture.splits("up", 4, 1).await;
}

#[tokio::test]
async fn a_step_is_passed_by_a_pass_and_its_hold_and_never_by_proxies_that_report_nothing() {
    let steps = json!([{"percent": 10, "holdSeconds": 3}, {"percent": 100}]);
    // Latencies of scripted servers say nothing.
    let analysis = json!({
        "warmupSeconds": 0, "minSamples": 20, "ttftP95Ratio": 100, "gapP99Ratio": 100, "onFailure": "RollBack",
    });
    let (fixture, controller) = begun(json!({"steps": steps, "analysis": analysis})).await;
    let object = fixture.splits("up", 9, 1).await;
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
    eventually("the hold is over", async || {
        jiff::Timestamp::now() > hold_until
    })
    .await;
    fixture.keeps(&controller, "up", 10).await;
    // A proxy that nobody can ask, in a pod that gets clients.
    let nobody = Upstream::nobody();
    let labels = json!({
        "nvidia.com/dynamo-graph-deployment-name": "old", "nvidia.com/dynamo-component-type": "frontend",
    });
    let ports = json!([{"name": "crossfade", "containerPort": nobody.port()}]);
    fixture.pod("old-frontend-mute", labels, ports).await;
    fixture.pod_ready("old-frontend-mute", true).await;
    let _clients = Clients::of(&fixture);
    fixture
        .until("up", "said to be silent", |object| {
            let told = object["status"]["analysis"]["message"].as_str();
            told.is_some_and(|told| told.contains("cannot be compared: old-frontend-mute"))
        })
        .await;
    fixture.keeps(&controller, "up", 10).await;
    fixture
        .delete(&super::fixture::pods(), "old-frontend-mute")
        .await;
    let object = fixture.splits("up", 1, 1).await;
    assert_eq!(object["status"]["step"], Value::Null);
}

#[tokio::test]
async fn steps_without_an_analysis_are_passed_by_their_holds() {
    let steps = json!([{"percent": 20, "holdSeconds": 2}, {"percent": 40, "holdSeconds": 1}]);
    let (fixture, _controller) = begun(json!({"steps": steps})).await;
    fixture.splits("up", 4, 1).await;
    fixture.splits("up", 3, 2).await;
    fixture.splits("up", 1, 1).await;
}

#[tokio::test]
async fn a_controller_that_is_killed_between_the_verdict_and_the_split_is_followed_by_one_that_continues()
 {
    let (fixture, mut controller) = begun(json!({"analysis": {"onFailure": "RollBack"}})).await;
    fixture.splits("up", 1, 1).await;
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
    let object = fixture.splits("up", 1, 0).await;
    assert_eq!(object["status"]["analysis"]["verdict"], "Fail");
    fixture.happens("AnalysisFailed").await;
}

/// Makes the API server refuse every write of a split of 0, and waits until it does.
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
