//! A proxy that follows updates of a real API server.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::server::{Server, server, spec_with, update};
use crate::rig::*;

async fn plan(proxy: &Proxy) -> Value {
    proxy.admin("/plan").await.json()
}

/// A proxy in front of `old` that follows the updates of the deployment `old-one` by `kubeconfig`.
async fn follow(kubeconfig: &str, old: &Upstream) -> Proxy {
    let old = old.url();
    let args = [
        "--old",
        &old,
        "--kube",
        "--kube-deployment",
        "old-one",
        "--kube-namespace",
        "default",
        "--kube-allow-any-target",
    ];
    Proxy::start_with_env(&args, &[("KUBECONFIG", kubeconfig)]).await
}

async fn lost(proxy: &Proxy) -> f64 {
    proxy
        .metrics()
        .await
        .sum("crossfade_plan_source_lost_seconds", &[])
}

#[tokio::test]
#[expect(clippy::await_holding_lock, reason = "the API server stops")]
async fn a_proxy_with_its_own_role_follows_a_real_api_server() {
    let server = server();
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let to_new = |percent: u8| {
        let change = json!({"newFrontendService": new.url(), "trafficSplitPercent": percent});
        update("followed", spec_with(&change))
    };
    let kubeconfig = with_own_role(&server);
    let kubeconfig = kubeconfig.path().to_str().unwrap();
    assert!(server.apply(&to_new(0)).0);
    let proxy = follow(kubeconfig, &old).await;
    assert_eq!(proxy.chat().await.generation(), "old");
    assert!(server.apply(&to_new(100)).0);
    proxy.serves("new").await;
    // An update that the API server accepts and the proxy rejects.
    let mut bad = to_new(0);
    bad["spec"]["newFrontendService"] = json!("http://a:1,https://b:1");
    assert!(server.apply(&bad).0);
    proxy
        .counts("crossfade_plans_rejected_total", &[], 1.0)
        .await;
    assert_eq!(proxy.chat().await.generation(), "new");
    let events = until("an Event", async || {
        let output = server.good(&["events", "--for", "dynamoupdateconfig/followed"], "");
        output.contains("Invalid").then_some(output)
    })
    .await;
    assert!(events.contains("mixes http and https"), "{events}");
    // The API server hangs, and then it is stopped.
    assert!(server.apply(&to_new(100)).0);
    eventually("it is fixed", async || {
        plan(&proxy).await["lastRejection"].is_null()
    })
    .await;
    // It is suspended with open connections, so the proxy gets no error.
    server.inject_fault("pause");
    let begin = Instant::now();
    while lost(&proxy).await == 0.0 {
        assert!(begin.elapsed() < Duration::from_secs(150), "never noticed");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!(
        "an API server that stands still was noticed after {:?}",
        begin.elapsed()
    );
    assert_eq!(proxy.chat().await.generation(), "new");
    server.inject_fault("resume");
    eventually("it is restored", async || lost(&proxy).await == 0.0).await;
    server.inject_fault("stop");
    eventually("the loss is noticed", async || lost(&proxy).await > 0.0).await;
    assert_eq!(proxy.chat().await.generation(), "new");
    server.inject_fault("start");
    assert!(server.apply(&to_new(0)).0);
    proxy.serves("old").await;
    assert_eq!(lost(&proxy).await, 0.0);
    assert!(server.apply(&to_new(100)).0);
    proxy.serves("new").await;
    server.good(&["delete", "duc", "followed"], "");
    proxy.serves("old").await;
    let events = until("the last Event", async || {
        let output = server.good(&["get", "events.events.k8s.io", "-o", "json"], "");
        output.contains("DeletedAllToOld").then_some(output)
    })
    .await;
    assert!(
        events.contains("\"reportingController\": \"nvidia.com/crossfade\""),
        "{events}"
    );
    for (verb, what, allowed) in [
        ("list", "dynamoupdateconfigs.nvidia.com", "yes"),
        ("watch", "dynamoupdateconfigs.nvidia.com", "yes"),
        ("create", "events.events.k8s.io", "yes"),
        ("update", "dynamoupdateconfigs.nvidia.com", "no"),
        ("patch", "dynamoupdateconfigs.nvidia.com/status", "no"),
        ("list", "pods", "no"),
        ("get", "secrets", "no"),
    ] {
        let (_, output) = server.kubectl(
            &["--kubeconfig", kubeconfig, "auth", "can-i", verb, what],
            "",
        );
        assert!(output.contains(allowed), "{verb} {what}: {output}");
    }
}

#[tokio::test]
#[expect(clippy::await_holding_lock, reason = "the API server stops")]
async fn a_proxy_selects_its_updates_on_the_server_or_watches_all_with_an_older_definition() {
    let server = server();
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let to_new = |percent: u8| {
        let change = json!({"newFrontendService": new.url(), "trafficSplitPercent": percent});
        update("selected", spec_with(&change))
    };
    let kubeconfig = with_own_role(&server);
    let kubeconfig = kubeconfig.path().to_str().unwrap();
    assert!(server.apply(&to_new(0)).0);
    let proxy = follow(kubeconfig, &old).await;
    assert!(server.apply(&to_new(100)).0);
    proxy.serves("new").await;
    let without = |proxy: &Proxy| {
        let lines = proxy.lines();
        let found = lines
            .iter()
            .filter(|line| line.contains("cannot select updates"));
        found.count()
    };
    assert_eq!(without(&proxy), 0);
    // An update that is edited to another deployment disappears for this one, and returns when it is edited back.
    let mut away = to_new(100);
    away["spec"]["sourceDeployment"] = json!("another");
    assert!(server.apply(&away).0);
    proxy.serves("old").await;
    assert!(server.apply(&to_new(100)).0);
    proxy.serves("new").await;
    // An earlier definition, and an API server that does not know the field.
    let path = "/spec/versions/0/selectableFields";
    let patch = json!([{"op": "remove", "path": path}]).to_string();
    let crd = "crd/dynamoupdateconfigs.nvidia.com";
    server.good(&["patch", crd, "--type=json", "-p", &patch], "");
    eventually("it works without it", async || without(&proxy) == 1).await;
    assert!(server.apply(&to_new(0)).0);
    proxy.serves("old").await;
    let late = follow(kubeconfig, &old).await;
    assert!(server.apply(&to_new(100)).0);
    late.serves("new").await;
    assert_eq!((without(&late), lost(&late).await), (1, 0.0));
    let definition = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/crd/crd.yaml");
    server.good(&["apply", "-f", definition], "");
    server.good(&["delete", "duc", "selected"], "");
}

/// A kubeconfig of a service account that has only the role of a proxy.
fn with_own_role(server: &Server) -> tempfile::NamedTempFile {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/base/rbac.yaml");
    server.good(&["apply", "-f", rules], "");
    let token = server.good(&["create", "token", "crossfade-sidecar"], "");
    let whole = server.good(&["config", "view", "--raw", "-o", "json"], "");
    let mut config: Value = serde_json::from_str(&whole).unwrap();
    config["users"] =
        json!([{"name": config["users"][0]["name"], "user": {"token": token.trim()}}]);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(file, "{config}").unwrap();
    file
}
