//! `safeToDeleteOld` stays false while something in another namespace may still lead to old. Each test has a server of its own:
//! for its controller, objects of all namespaces count.

use serde_json::{Value, json};

use super::fixture::{Controller, Fixture, pods, updates};
use super::safe_to_delete::{is_safe, lacks, slice, slices};
use super::safe_to_delete_hidden_clients::left;
use crate::cluster::Cluster;
use crate::rig::*;

fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// The spec of an update that sends every second request to `old`.
fn leading_to(old: &Upstream) -> Value {
    json!({"newFrontendService": old.url(), "trafficSplitPercent": 50, "paused": true, "strict": true})
}

async fn all_namespaces(fixture: &Fixture) -> Controller {
    let args = [
        "--all-namespaces",
        "--allow-any-target",
        "--quiet-period",
        "1",
        "--lease-namespace",
        &fixture.namespace,
    ];
    Controller::start(&fixture.kubeconfig, &args).await
}

/// A complete update whose old is safe to delete, another namespace, and the controller of both.
async fn safe_beside_another() -> (Cluster, Fixture, Fixture, Controller) {
    let clients = json!({"clientService": "clients"});
    let (server, fixture) = Fixture::alone_with_update(clients).await;
    let other = Fixture::start_on(&server).await;
    let controller = all_namespaces(&fixture).await;
    left(&fixture).await;
    fixture.until("up", "safe", is_safe).await;
    (server, fixture, other, controller)
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_an_update_of_another_namespace_leads_to_it() {
    let (_server, fixture, mut other, _controller) = safe_beside_another().await;
    let invalid = "https://a:1,http://b:2";
    // Its proxy may run where no controller finds it: in a pod without labels, or outside the cluster.
    other.update("there", leading_to(&fixture.old)).await;
    let reason = leak(format!("{}/there", other.namespace));
    fixture
        .until("up", "led to, perhaps by nobody", lacks(false, reason))
        .await;
    other.proxy("there").await;
    fixture.until("up", "led to", lacks(false, reason)).await;
    // An update that names nothing in this namespace has no effect, whether it is valid or not.
    other
        .edit("there", json!({"newFrontendService": invalid}))
        .await;
    other
        .until("there", "refused", |object| {
            object["status"]["phase"] == "Degraded"
        })
        .await;
    // The last valid spec, which its proxies still follow, leads to old.
    fixture
        .until("up", "still led to", lacks(false, reason))
        .await;
    other.delete(&updates(), "there").await;
    fixture.until("up", "safe again", is_safe).await;
    other
        .update("bad", json!({"newFrontendService": invalid}))
        .await;
    other
        .until("bad", "refused", |object| {
            object["status"]["phase"] == "Degraded"
        })
        .await;
    fixture.until("up", "safe after all", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_proxy_elsewhere_keeps_the_plan_of_an_update_that_became_invalid_without_a_controller()
 {
    let (_server, fixture, mut other, mut controller) = safe_beside_another().await;
    other.update("there", leading_to(&fixture.old)).await;
    other.proxy("there").await;
    let reason = leak(format!("{}/there", other.namespace));
    fixture.until("up", "led to", lacks(false, reason)).await;
    // Nobody records the last valid spec.
    controller.kill();
    other
        .edit(
            "there",
            json!({"newFrontendService": "https://a:1,http://b:2"}),
        )
        .await;
    let _controller = all_namespaces(&fixture).await;
    let leads = format!("of old: the proxy of {}/old-frontend-0", other.namespace);
    let leads = leak(leads);
    fixture
        .until("up", "its proxy leads to old", lacks(false, leads))
        .await;
    // A proxy that does not respond may send requests anywhere.
    drop(other.proxies.pop());
    let silent = format!(
        "{}/old-frontend-0, whose proxy does not report where it routes",
        other.namespace
    );
    let silent = leak(silent);
    fixture.until("up", "unknown", lacks(false, silent)).await;
    other.delete(&pods(), "old-frontend-0").await;
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn a_silent_proxy_of_an_invalid_update_elsewhere_counts_unless_the_namespace_is_said_to_be_isolated()
 {
    let clients = json!({"clientService": "clients"});
    let (server, fixture) = Fixture::alone_with_update(clients).await;
    let other = Fixture::start_on(&server).await;
    let invalid = json!({"newFrontendService": "https://a:1,http://b:2"});
    other.update("bad", invalid).await;
    let labels = json!({
        "nvidia.com/dynamo-graph-deployment-name": "old", "nvidia.com/dynamo-component-type": "frontend",
    });
    other.pod("old-frontend-0", labels, json!([])).await;
    other.pod_ready("old-frontend-0", true).await;
    let wary = fixture.wary_controller(&["--quiet-period", "1"]).await;
    left(&fixture).await;
    let silent = format!(
        "{}/old-frontend-0, whose proxy does not report where it routes",
        other.namespace
    );
    let silent = leak(silent);
    fixture.until("up", "unknown", lacks(false, silent)).await;
    drop(wary);
    let _controller = fixture.controller(&[]).await;
    fixture.until("up", "safe", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_an_update_elsewhere_leads_to_it_that_this_controller_rejects()
 {
    let by_name = json!({"clientService": "clients", "newFrontendService": "new-frontend:8000"});
    let (server, fixture) = Fixture::alone_with_update(by_name).await;
    let mut other = Fixture::start_on(&server).await;
    let mut of_new = slice("new-frontend-0");
    of_new["metadata"]["labels"]["kubernetes.io/service-name"] = "new-frontend".into();
    fixture.create(&slices(), "new-frontend-1", of_new).await;
    let name = format!("new-frontend.{}.svc.cluster.local:8000", fixture.namespace);
    let place = format!("{name}={}", fixture.new.address);
    // The updates of this controller may only target Services in their namespace.
    let args = [
        "--all-namespaces",
        "--resolve",
        &place,
        "--quiet-period",
        "1",
        "--lease-namespace",
        &fixture.namespace,
    ];
    let _controller = Controller::start(&fixture.kubeconfig, &args).await;
    left(&fixture).await;
    fixture.until("up", "safe", is_safe).await;
    // The proxies of the other namespace allow any target.
    other.update("there", leading_to(&fixture.old)).await;
    other.proxy("there").await;
    let reason = leak(format!("{}/there", other.namespace));
    fixture.until("up", "led to", lacks(false, reason)).await;
    other.delete(&updates(), "there").await;
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_proxy_elsewhere_cannot_use_a_valid_edit_of_its_update() {
    let (_server, fixture, mut other, _controller) = safe_beside_another().await;
    other.update("there", leading_to(&fixture.old)).await;
    other.proxy("there").await;
    let update = leak(format!("{}/there", other.namespace));
    fixture.until("up", "led to", lacks(false, update)).await;
    // The controller considers this valid, but the proxy has no such file.
    let unusable = json!({"newFrontendService": "https://elsewhere.example:443", "tls": {"caFile": "/nonexistent/ca.pem"}});
    other.edit("there", unusable).await;
    let pod = format!("{}/old-frontend-0", other.namespace);
    let leads = leak(format!("of old: the proxy of {pod}"));
    fixture.until("up", "its plan", lacks(false, leads)).await;
    let before = fixture.old.requests().len();
    for _ in 0..4 {
        client::post(other.proxies[0].address, CHAT, &[], STREAMING).await;
    }
    assert_eq!(fixture.old.requests().len(), before + 2);
    // One that does not respond may keep any plan.
    drop(other.proxies.pop());
    let silent = leak(format!(
        "{pod}, whose proxy does not report where it routes"
    ));
    fixture.until("up", "unknown", lacks(false, silent)).await;
    let usable = json!({"newFrontendService": other.new.url(), "tls": null});
    other.edit("there", usable).await;
    fixture
        .until("up", "still unknown", lacks(false, silent))
        .await;
    other.delete(&pods(), "old-frontend-0").await;
    other.proxy("there").await;
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_proxy_elsewhere_keeps_a_plan_of_frontends_that_its_update_no_longer_names()
 {
    let (_server, fixture, mut other, _controller) = safe_beside_another().await;
    other.update("there", leading_to(&fixture.old)).await;
    other.proxy("there").await;
    let update = leak(format!("{}/there", other.namespace));
    fixture.until("up", "led to", lacks(false, update)).await;
    // The proxy of `old` has a plan of this update until it learns that the update is not for its frontends any more.
    drop(other.proxies.pop());
    let elsewhere = json!({"newFrontendService": other.new.url(), "sourceDeployment": "third"});
    other.edit("there", elsewhere).await;
    let silent = leak(format!(
        "{}/old-frontend-0, whose proxy does not report where it routes",
        other.namespace
    ));
    fixture.until("up", "unknown", lacks(false, silent)).await;
    other.delete(&pods(), "old-frontend-0").await;
    fixture.until("up", "safe again", is_safe).await;
    // A frontend that the update names, whose proxy cannot be asked.
    let labels = json!({
        "nvidia.com/dynamo-graph-deployment-name": "third", "nvidia.com/dynamo-component-type": "frontend",
    });
    other.pod("third-frontend-0", labels, json!([])).await;
    other.pod_ready("third-frontend-0", true).await;
    let unknown = leak(format!(
        "{}/third-frontend-0, whose proxy does not report where it routes",
        other.namespace
    ));
    fixture.until("up", "no port", lacks(false, unknown)).await;
    other.delete(&pods(), "third-frontend-0").await;
    fixture.until("up", "safe at the end", is_safe).await;
}
