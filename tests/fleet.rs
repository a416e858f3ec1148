//! Many proxies that follow one resource of a real API server, each as the sidecar's own service account.

#[path = "support/cluster.rs"]
mod cluster;
#[path = "support/rig.rs"]
mod rig;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cluster::Cluster;
use rig::*;
use serde_json::Value;

const PROXIES: usize = 50;
const EDITS: usize = 100;

/// A kubeconfig of the sidecar's service account, whose role `deploy/` makes.
fn sidecar_kubeconfig(cluster: &Cluster, directory: &Path) -> PathBuf {
    let base = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/base");
    cluster.apply(&cluster.kubectl(&["kustomize", base]));
    cluster.kubectl(&[
        "wait",
        "--for=condition=Established",
        "crd",
        "--all",
        "--timeout=30s",
    ]);
    let token = cluster.kubectl(&["create", "token", "crossfade-sidecar"]);
    let view = ["config", "view", "--raw", "-o", "json"];
    let mut config: Value = serde_json::from_str(&cluster.kubectl(&view)).expect("JSON");
    config["users"][0]["user"] = serde_json::json!({"token": token.trim()});
    let path = directory.join("sidecar.kubeconfig");
    std::fs::write(&path, config.to_string()).expect("it is ours");
    path
}

/// What this share of all observations is within: linear between the bounds of its bucket, as Prometheus reckons.
fn quantile(buckets: &BTreeMap<String, f64>, share: f64) -> f64 {
    let bound = |le: &str| le.parse().unwrap_or(f64::INFINITY);
    let mut steps: Vec<(f64, f64)> = buckets.iter().map(|(le, n)| (bound(le), *n)).collect();
    steps.sort_by(|one, other| one.0.total_cmp(&other.0));
    let rank = share * steps.last().map_or(0.0, |(_, all)| *all);
    let (mut lower, mut before) = (0.0, 0.0);
    for (upper, count) in steps {
        if count >= rank && upper.is_finite() && count > before {
            return lower + (upper - lower) * (rank - before) / (count - before);
        }
        (lower, before) = (upper, count);
    }
    f64::INFINITY
}

#[tokio::test]
async fn fifty_proxies_follow_a_hundred_edits_and_all_come_to_the_last() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::api_server();
    let kubeconfig = sidecar_kubeconfig(&cluster, directory.path());
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let edit = |number: usize| {
        let manifest = format!(
            "apiVersion: nvidia.com/v1alpha1
kind: DynamoUpdateConfig
metadata: {{name: my-dgd-update, namespace: default}}
spec:
  newFrontendService: \"{}\"
  trafficSplitPercent: {}
  sourceDeployment: dgd-old
",
            new.url(),
            number % 101
        );
        cluster.apply(&manifest);
    };
    edit(0);
    let environment = [("KUBECONFIG", kubeconfig.to_str().unwrap())];
    let url = old.url();
    let args = [
        "--old",
        &url,
        "--kube",
        "--kube-deployment",
        "dgd-old",
        "--kube-namespace",
        "default",
        "--kube-allow-any-target",
    ];
    // `make test` names the release build.
    let release = std::env::var_os("CROSSFADE_BIN").map(PathBuf::from);
    let built = Path::new(env!("CARGO_BIN_EXE_crossfade"));
    let program = release.as_deref().unwrap_or(built);
    let mut proxies = Vec::new();
    for _ in 0..PROXIES {
        proxies.push(Proxy::start_of(program, &args, &environment).await);
    }
    for number in 1..=EDITS {
        edit(number);
    }
    let mut buckets = BTreeMap::new();
    for proxy in &proxies {
        let last = format!("\"trafficSplitPercent\": {}", EDITS % 101);
        eventually("the last edit", async || proxy.plan().await.contains(&last)).await;
        let metrics = proxy.metrics().await;
        for (labels, count) in metrics.of("crossfade_plan_apply_seconds_bucket") {
            *buckets.entry(labels["le"].clone()).or_insert(0.0) += count;
        }
    }
    let (half, nearly_all) = (quantile(&buckets, 0.5), quantile(&buckets, 0.99));
    println!(
        "{PROXIES} proxies, {EDITS} edits: in force within {:.1} ms (p50), {:.1} ms (p99)",
        half * 1e3,
        nearly_all * 1e3
    );
    // Unoptimized, fifty processes have more to do than a few cores can at once.
    let within = if release.is_some() { 0.03 } else { 0.1 };
    assert!(half <= within, "p50 {half}: {buckets:?}");
    assert!(nearly_all <= 1.0, "p99 {nearly_all}: {buckets:?}");
}
