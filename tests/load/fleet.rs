//! Many proxies follow one update on a real API server, with the service account of the sidecar.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::cluster::Cluster;
use crate::rig::*;
use serde_json::Value;

const PROXIES: usize = 50;
const EDITS: usize = 100;

/// A kubeconfig of the sidecar's service account with the role in `deploy/`.
fn sidecar_kubeconfig(cluster: &Cluster, directory: &Path) -> PathBuf {
    for part in ["crd", "base"] {
        let part = format!("{}/deploy/{part}", env!("CARGO_MANIFEST_DIR"));
        cluster.kubectl(&["apply", "-k", &part]);
    }
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
    std::fs::write(&path, config.to_string()).expect("the temporary directory is writable");
    path
}

/// A quantile of a histogram, with linear interpolation within the bucket, as in Prometheus.
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

/// The program to run: `CROSSFADE_BIN`, or the debug build.
fn program() -> PathBuf {
    std::env::var_os("CROSSFADE_BIN").map_or_else(
        || PathBuf::from(env!("CARGO_BIN_EXE_crossfade")),
        PathBuf::from,
    )
}

/// The update that all proxies follow, with this split.
fn update(new: &Upstream, percent: usize) -> String {
    update_of("my-dgd-update", "dgd-old", new, percent)
}

/// An update of the deployment `source`.
fn update_of(name: &str, source: &str, new: &Upstream, percent: usize) -> String {
    format!(
        "apiVersion: nvidia.com/v1alpha1
kind: DynamoUpdateConfig
metadata: {{name: {name}, namespace: default}}
spec:
  newFrontendService: \"{}\"
  trafficSplitPercent: {percent}
  sourceDeployment: {source}
",
        new.url()
    )
}

/// Starts `count` proxies that follow the update.
async fn fleet(count: usize, old: &Upstream, kubeconfig: &Path) -> Vec<Proxy> {
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
    let mut proxies = Vec::new();
    for _ in 0..count {
        proxies.push(Proxy::start_of(&program(), &args, &environment).await);
    }
    proxies
}

#[tokio::test]
async fn fifty_proxies_follow_a_hundred_edits_and_all_apply_the_last() {
    let _machine = crate::alone().await;
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::api_server();
    let kubeconfig = sidecar_kubeconfig(&cluster, directory.path());
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let edit = |number: usize| cluster.apply(&update(&new, number % 101));
    edit(0);
    let proxies = fleet(PROXIES, &old, &kubeconfig).await;
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
    // In a debug build, fifty processes have more work than a few cores can do at once.
    let is_release = std::env::var_os("CROSSFADE_BIN").is_some();
    let within = if is_release { 0.03 } else { 0.1 };
    assert!(half <= within, "p50 {half}: {buckets:?}");
    assert!(nearly_all <= 1.0, "p99 {nearly_all}: {buckets:?}");
}

/// A metric of the API server about requests for updates or the sizes of their watch events.
fn of_api_server(cluster: &Cluster, name: &str) -> f64 {
    let metrics = cluster.kubectl(&["get", "--raw", "/metrics"]);
    let lines = metrics.lines().filter(|line| {
        line.starts_with(name)
            && (line.contains("resource=\"dynamoupdateconfigs\"")
                || line.contains("kind=\"DynamoUpdateConfig\""))
    });
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// A status as large as that of the controller, different for each number.
fn status(number: usize) -> Value {
    let generation = serde_json::json!({
        "workers": "4/4", "roles": {"worker": {"ready": 4, "desired": 4, "fullSize": 4}}, "capacityPercent": 100,
        "readyFrontends": 2, "openStreams": number,
    });
    let kinds = [
        "Accepted",
        "NewFrontendReady",
        "Progressing",
        "Paused",
        "Complete",
        "Degraded",
        "Ready",
        "Reconciling",
        "Stalled",
    ];
    let condition = |kind: &str| {
        serde_json::json!({
            "type": kind, "status": "True", "reason": "WaitingForWorkers", "observedGeneration": 3,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "message": "50% to new (old 1 : new 1): old has 4 of 4 workers ready, and new has 4 of 4",
        })
    };
    let weights = serde_json::json!({"percent": 50, "weights": {"old": 1, "new": 1}});
    serde_json::json!({"status": {
        "observedGeneration": 3, "phase": "Progressing", "message": format!("write {number}"), "rule": "Capacity",
        "wanted": weights, "observed": weights, "old": generation, "new": generation, "frontends": {"total": 2, "applied": 2},
        "safeToDeleteOld": false, "lastOldWorkerDispensable": false, "lastTransitionTime": "2026-01-01T00:00:00Z",
        "conditions": kinds.map(condition),
    }})
}

/// The bytes that the API server sends to all watches for each status write of the update `name`.
async fn bytes_of_status_writes(cluster: &Cluster, name: &str) -> f64 {
    const WRITES: usize = 20;
    const SENT: &str = "apiserver_watch_events_sizes_sum";
    let before = of_api_server(cluster, SENT);
    for number in 0..WRITES {
        let patch = status(number).to_string();
        let what = ["patch", "duc", name, "--subresource=status", "--type=merge"];
        cluster.kubectl(&[&what[..], &["-p", &patch]].concat());
    }
    // Waits until all events have been sent. The API server does not report when this is the case.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    (of_api_server(cluster, SENT) - before) / WRITES as f64
}

/// Measures the load of proxies on the API server without edits, and per status write: `make fleet`.
#[tokio::test]
#[ignore = "takes minutes and measures"]
async fn an_idle_fleet_causes_little_load_on_the_api_server() {
    let _machine = crate::alone().await;
    let number = |name: &str, default: u64| {
        let given = std::env::var(name).ok();
        given.map_or(default, |text| text.parse().expect("a number"))
    };
    let (count, seconds) = (number("FLEET", 50), number("FLEET_SECONDS", 180));
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::api_server();
    let kubeconfig = sidecar_kubeconfig(&cluster, directory.path());
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    cluster.apply(&update(&new, 10));
    cluster.apply(&update_of("another", "dgd-another", &new, 10));
    let size = usize::try_from(count).unwrap();
    let proxies = fleet(size, &old, &kubeconfig).await;
    let before = of_api_server(&cluster, "apiserver_request_total");
    let began = std::time::Instant::now();
    // The fleet must be idle for the whole time of the measurement.
    tokio::time::sleep(std::time::Duration::from_secs(seconds)).await;
    let requests = of_api_server(&cluster, "apiserver_request_total") - before;
    let hours = began.elapsed().as_secs_f64() / 3600.0;
    let own = bytes_of_status_writes(&cluster, "my-dgd-update").await / count as f64;
    let other = bytes_of_status_writes(&cluster, "another").await / count as f64;
    println!(
        "{count} proxies in {seconds} s: {:.0} API requests per proxy and hour; per status write, {own:.0} bytes are sent to \
         each proxy, and {other:.0} if it is another deployment's update",
        requests / count as f64 / hours,
    );
    for proxy in &proxies {
        let lost = |line: &String| line.contains("cannot watch updates");
        let lines = proxy.lines();
        assert!(!lines.iter().any(lost), "{lines:#?}");
    }
}
