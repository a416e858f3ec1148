//! Three new frontends get equal shares, both through the address of their Service and through the addresses of their pods.

use crate::fixture::{Fixture, eventually};
use crate::load::{Load, Shape, assert_none_failed};
use crate::rig;

const SHAPE: Shape = Shape {
    words: 5,
    each_ms: 50,
};
const STREAMS: usize = 120;

/// The number of requests that each pod of new has started, from its own metrics.
async fn counts(fixture: &Fixture) -> Vec<f64> {
    let list = fixture.cluster.get(&["pods", "-l", "app=new-frontend"]);
    let pods = list["items"].as_array().expect("a list");
    let mut counts = Vec::new();
    for pod in pods {
        let ip = pod["status"]["podIP"].as_str().expect("an address");
        let address = format!("{ip}:8000").parse().expect("an address");
        let page = rig::client::get(address, "/metrics").await.text();
        let lines = page
            .lines()
            .filter(|line| line.starts_with("dynamo_frontend_requests_started_total"));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        counts.push(values.sum());
    }
    counts
}

/// Starts at least this number of streams and returns the share of each pod, in percent.
async fn shares(fixture: &Fixture, streams: usize) -> Vec<f64> {
    let before = counts(fixture).await;
    let load = Load::start(fixture.address, STREAMS, SHAPE);
    load.wait_for_started(streams).await;
    assert_none_failed(&load.finish());
    let after = counts(fixture).await;
    let new: Vec<f64> = after.iter().zip(before).map(|(b, a)| b - a).collect();
    let all: f64 = new.iter().sum();
    assert!(all >= streams as f64, "{new:?}");
    new.iter().map(|count| count * 100.0 / all).collect()
}

/// Sets an environment variable of the sidecars, and waits until they have restarted.
async fn set(fixture: &Fixture, name: &str, value: &str) {
    let patch = format!(
        r#"{{"spec":{{"template":{{"spec":{{"initContainers":[
            {{"name":"crossfade","env":[{{"name":"{name}","value":"{value}"}}]}}]}}}}}}}}"#
    );
    let args = [
        "patch",
        "deployment",
        "old-frontend",
        "--type=strategic",
        "-p",
        &patch,
    ];
    fixture.cluster.kubectl(&args);
    fixture.rolled_out("old-frontend");
    fixture.settled().await;
}

/// Adds the rule of `deploy/endpoints` to the role of the sidecars.
fn grant_endpoint_slices(fixture: &Fixture) {
    let rule = r#"[{"op": "add", "path": "/rules/-", "value": {"apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}}]"#;
    let args = [
        "patch",
        "role",
        "crossfade-sidecar",
        "--type=json",
        "-p",
        rule,
    ];
    fixture.cluster.kubectl(&args);
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn three_new_frontends_get_equal_shares() {
    let fixture = Fixture::ready().await;
    fixture.scale("new-frontend", 3);
    fixture.update(100).await;
    let by_service = shares(&fixture, 2400).await;
    println!("by the Service's address: {by_service:.1?}%");

    grant_endpoint_slices(&fixture);
    set(&fixture, "CROSSFADE_KUBE_ENDPOINTS", "true").await;
    fixture.in_force(100).await;
    eventually("the three pods are known", async || {
        let page = rig::client::get(fixture.sidecars()[0], "/metrics")
            .await
            .text();
        page.contains(r#"crossfade_pool_endpoints{generation="new",state="healthy"} 3"#)
    })
    .await;
    let by_pods = shares(&fixture, 600).await;
    println!("by the pods' addresses: {by_pods:.1?}%");

    set(&fixture, "CROSSFADE_KUBE_ENDPOINTS", "false").await;
    fixture.scale("new-frontend", 1);
    // The kernel picks a random pod for each of some hundred connections.
    assert!(by_service.iter().all(|share| (share - 33.3).abs() < 12.0));
    // The proxy balances by load: slower pods get fewer requests.
    assert!(by_pods.iter().all(|share| (share - 33.3).abs() < 12.0));
}
