//! Evaluates `deploy/monitoring`: the alerts with promtool's unit tests, and every panel of the dashboard with a real Prometheus that
//! scrapes the demo's proxy and a controller.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::rig::proxy::program;
use crate::rig::*;
use serde_json::Value;

fn file(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.join("deploy/monitoring").join(name)
}

#[test]
fn each_alert_fires_when_it_should_and_not_before() {
    for args in [
        ["check", "rules", "alerts.yaml"],
        ["test", "rules", "rules.test.yaml"],
    ] {
        let mut promtool = Command::new("promtool");
        // As on the documentation page.
        let output = promtool.args(args).current_dir(file("")).output();
        let output = output.expect("promtool, of Debian's package prometheus");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(output.status.success(), "{text}");
    }

    let rules = fs::read_to_string(file("alerts.yaml")).unwrap();
    let alerts = rules
        .lines()
        .filter_map(|line| line.split_once("- alert: "));
    let tests = fs::read_to_string(file("rules.test.yaml")).unwrap();
    for (_, alert) in alerts {
        let tested = format!("alertname: {alert}\n");
        assert!(tests.contains(&tested), "{alert} has no test");
    }
}

/// A process that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The demo, and its admin port.
fn demo() -> (Running, SocketAddr) {
    let mut child = program()
        .args(["demo", "--plain", "--seconds", "45", "--streams", "16"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let demo = Running(child);
    let first = lines.next().unwrap().unwrap();
    let (_, page) = first.split_once("live page http://").expect(&first);
    let admin = page.trim_end_matches('/').parse().expect(page);
    // Read to the end, so that the demo does not block on a full pipe.
    std::thread::spawn(move || lines.for_each(drop));
    (demo, admin)
}

/// An update. The controller reverts edits of its split, which keeps the controller busy.
const UPDATE: &str = r#"
apiVersion: nvidia.com/v1alpha1
kind: DynamoUpdateConfig
metadata: {name: good}
spec: {sourceDeployment: dgd-old, newFrontendService: "new:8000", trafficSplitPercent: 0, analysis: {}}
---
apiVersion: nvidia.com/v1alpha1
kind: DynamoUpdateConfig
metadata: {name: bad}
spec: {sourceDeployment: dgd-bad, newFrontendService: "new.elsewhere.svc:8000", trafficSplitPercent: 0}
---
apiVersion: nvidia.com/v1alpha1
kind: DynamoRollout
metadata: {name: refused}
spec:
  source: {kind: Deployment, name: v1}
  target: {kind: Deployment, name: v2}
  frontends: {source: v1-frontend, target: v2-frontend, service: v2-frontend}
  clientService: chat
"#;

/// A controller for two updates and a rollout, and its admin port.
fn controller(cluster: &Cluster) -> (Running, SocketAddr) {
    let kinds = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes/kinds.yaml");
    let crd = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/crd/crd.yaml");
    cluster.kubectl(&["apply", "-f", crd, "-f", kinds]);
    let established = "--for=condition=Established";
    cluster.kubectl(&["wait", established, "crd", "--all", "--timeout=60s"]);
    cluster.apply(UPDATE);
    let mut child = program()
        .args([
            "controller",
            "--rollouts",
            "--admin",
            "127.0.0.1:0",
            "--namespace",
            "default",
            "--log-format",
            "json",
        ])
        .env("KUBECONFIG", cluster.kubeconfig().unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let controller = Running(child);
    let admin = lines.by_ref().map_while(Result::ok).find_map(|line| {
        let line: Value = serde_json::from_str(&line).ok()?;
        (line["message"] == "controls").then(|| line["admin"].as_str()?.parse().ok())?
    });
    std::thread::spawn(move || lines.for_each(drop));
    (controller, admin.expect("it logs its admin address"))
}

/// A Prometheus that scrapes the proxy, the controller, and itself as an unrelated target.
fn prometheus(proxy: SocketAddr, controller: SocketAddr, folder: &Path) -> (Running, SocketAddr) {
    let config = folder.join("prometheus.yaml");
    let free = Port::for_good();
    let mut scrape = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{:?}]\nscrape_configs:\n",
        file("alerts.yaml")
    );
    for (job, target) in [
        ("crossfade", proxy),
        ("controller", controller),
        ("other", free),
    ] {
        scrape += &format!(
            "- job_name: {job}\n  static_configs:\n  - targets: [\"{target}\"]\n    labels: {{namespace: a, pod: p}}\n"
        );
    }
    fs::write(&config, scrape).unwrap();
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            folder.join("data").display()
        ))
        .arg(format!("--web.listen-address={free}"))
        .args(["--log.level=error"])
        .spawn();
    let child = child.expect("prometheus, of Debian's package of that name");
    (Running(child), free)
}

/// The response of its API; `None` while it does not listen yet.
async fn api(prometheus: SocketAddr, path: &str) -> Option<Value> {
    tokio::net::TcpStream::connect(prometheus).await.ok()?;
    let response = client::get(prometheus, path).await;
    (response.status == 200 || response.status == 400).then(|| response.json())
}

fn encoded(query: &str) -> String {
    query.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Every query of the dashboard, with the variables substituted as in Grafana.
fn queries(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(query) if name == "expr" => found.push(
                        query
                            .replace("$namespace", ".*")
                            .replace("$pod", ".*")
                            .replace("$__rate_interval", "10s"),
                    ),
                    value => queries(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| queries(item, found)),
        _ => {}
    }
}

/// Checks the panels against Grafana's dashboard schema, because Grafana itself ignores unknown fields.
#[test]
fn the_dashboard_starts_with_the_verdict_and_matches_grafanas_schema() {
    const PANEL: [&str; 9] = [
        "id",
        "type",
        "title",
        "description",
        "datasource",
        "gridPos",
        "fieldConfig",
        "options",
        "targets",
    ];
    let dashboard = fs::read_to_string(file("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    let mut cells = BTreeMap::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        let fields: Vec<_> = panel.as_object().unwrap().keys().collect();
        assert!(
            fields.iter().all(|field| PANEL.contains(&field.as_str())),
            "{title}: {fields:?}"
        );
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        let [x, y, width, height] =
            ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(width > 0 && height > 0 && x + width <= 24, "{title}");
        for row in y..y + height {
            for column in x..x + width {
                let other = cells.insert((row, column), title);
                assert_eq!(other, None, "{title} lies on it");
            }
        }
        let mut names = BTreeSet::new();
        for target in panel["targets"].as_array().unwrap() {
            assert!(names.insert(target["refId"].as_str().unwrap()), "{title}");
        }
    }
    assert_eq!(cells[&(0, 0)], "Is new good enough?");
    let first = panels
        .iter()
        .find(|panel| panel["gridPos"]["y"] == 0)
        .unwrap();
    let texts = &first["fieldConfig"]["defaults"]["mappings"][0]["options"];
    for (value, text) in [
        ("0", "good enough"),
        ("1", "not known yet"),
        ("2", "failed"),
    ] {
        assert_eq!(texts[value]["text"], text, "{first:#}");
    }
}

#[tokio::test]
async fn every_panel_of_the_dashboard_shows_something_of_the_demo() {
    let dashboard = fs::read_to_string(file("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut empty = Vec::new();
    queries(&dashboard, &mut empty);
    assert!(empty.len() > 20, "{empty:#?}");
    assert!(empty.iter().all(|query| !query.contains('$')), "{empty:#?}");

    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::api_server();
    let (_controller, controller) = controller(&cluster);
    let (_demo, admin) = demo();
    let (_prometheus, prometheus) = prometheus(admin, controller, folder.path());
    let mut edits = (0..100).cycle();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !empty.is_empty() {
        assert!(Instant::now() < deadline, "never anything: {empty:#?}");
        let percent = edits.next().unwrap();
        let patch = format!(r#"{{"spec": {{"trafficSplitPercent": {percent}, "weights": null}}}}"#);
        cluster.kubectl(&["patch", "duc", "good", "--type=merge", "-p", &patch]);
        let mut still = Vec::new();
        for query in empty {
            let path = format!("/api/v1/query?query={}", encoded(&query));
            let answer = api(prometheus, &path).await.unwrap_or_default();
            assert_ne!(answer["status"], "error", "{query}: {answer}");
            let series = answer["data"]["result"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            // Queries for process metrics must select crossfade's own processes.
            let is_strange = |series: &Value| series["metric"]["job"] == "other";
            assert!(!series.iter().any(is_strange), "{query}: {answer}");
            let is_something = |series: &Value| series["value"][1] != "NaN";
            if !series.iter().any(is_something) {
                still.push(query);
            }
        }
        empty = still;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let rules = api(prometheus, "/api/v1/rules").await.unwrap();
    let groups = rules["data"]["groups"].as_array().unwrap().iter();
    let rules: Vec<_> = groups
        .flat_map(|group| group["rules"].as_array().unwrap())
        .collect();
    assert!(rules.len() >= 10);
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule:#}");
    }
}
