//! What `deploy/monitoring` asks of the metrics, asked: the alerts by promtool's unit tests, and every panel of the dashboard of a
//! real Prometheus that scrapes the real proxy during the demo.

#[path = "support/rig.rs"]
mod rig;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rig::proxy::program;
use rig::*;
use serde_json::Value;

fn file(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.join("deploy/monitoring").join(name)
}

/// What is under `spec` of the PrometheusRule, which is a file of rules.
fn groups() -> String {
    let text = fs::read_to_string(file("rules.yaml")).unwrap();
    let (_, groups) = text.split_once("\nspec:\n").unwrap();
    let lines = groups.lines();
    lines
        .map(|line| format!("{}\n", line.get(2..).unwrap_or("")))
        .collect()
}

#[test]
fn each_alert_fires_when_it_should_and_not_before() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("groups.yaml"), groups()).unwrap();
    let test = folder.path().join("rules.test.yaml");
    fs::copy(file("rules.test.yaml"), &test).unwrap();
    let output = Command::new("promtool")
        .args(["test", "rules"])
        .arg(&test)
        .output();
    let output = output.expect("promtool, of Debian's package prometheus");
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&said)
    );

    let groups = groups();
    let alerts = groups
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
    // Read to the end, so that it can go on writing.
    std::thread::spawn(move || lines.for_each(drop));
    (demo, admin)
}

fn prometheus(admin: SocketAddr, folder: &Path) -> (Running, SocketAddr) {
    let config = folder.join("prometheus.yaml");
    fs::write(folder.join("groups.yaml"), groups()).unwrap();
    let scrape = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [groups.yaml]\nscrape_configs:\n\
         - job_name: crossfade\n  static_configs:\n  - targets: [\"{admin}\"]\n    labels: {{namespace: a, pod: p}}\n"
    );
    fs::write(&config, scrape).unwrap();
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
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

/// The answer of its API; `None` while it does not listen yet.
async fn api(prometheus: SocketAddr, path: &str) -> Option<Value> {
    tokio::net::TcpStream::connect(prometheus).await.ok()?;
    let response = client::get(prometheus, path).await;
    (response.status == 200 || response.status == 400).then(|| response.json())
}

fn encoded(query: &str) -> String {
    query.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Every query of the dashboard, with its variables filled in as Grafana does.
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

#[tokio::test]
async fn every_panel_of_the_dashboard_shows_something_of_the_demo() {
    let dashboard = fs::read_to_string(file("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut empty = Vec::new();
    queries(&dashboard, &mut empty);
    assert!(empty.len() > 20, "{empty:#?}");
    assert!(empty.iter().all(|query| !query.contains('$')), "{empty:#?}");

    let folder = tempfile::tempdir().unwrap();
    let (_demo, admin) = demo();
    let (_prometheus, prometheus) = prometheus(admin, folder.path());
    let deadline = Instant::now() + Duration::from_secs(60);
    while !empty.is_empty() {
        assert!(Instant::now() < deadline, "never anything: {empty:#?}");
        let mut still = Vec::new();
        for query in empty {
            let path = format!("/api/v1/query?query={}", encoded(&query));
            let answer = api(prometheus, &path).await.unwrap_or_default();
            assert_ne!(answer["status"], "error", "{query}: {answer}");
            let series = answer["data"]["result"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let is_something = |series: &Value| series["value"][1] != "NaN";
            if !series.iter().any(is_something) {
                still.push(query);
            }
        }
        empty = still;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let rules = api(prometheus, "/api/v1/rules").await.unwrap();
    let rules = rules["data"]["groups"][0]["rules"]
        .as_array()
        .unwrap()
        .clone();
    assert!(rules.len() >= 7);
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule:#}");
    }
}
