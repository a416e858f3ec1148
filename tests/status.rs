//! `crossfade status` and the verbs beside it, through the program: from addresses, and on a real API server.

#[path = "support/cluster.rs"]
mod cluster;
#[path = "support/rig.rs"]
mod rig;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Output, Stdio};

use cluster::Cluster;
use rig::proxy::{program, run};
use rig::*;
use serde_json::{Value, json};

fn said(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8(all).unwrap()
}

#[tokio::test]
async fn from_addresses_it_adds_up_the_proxies_and_names_those_that_say_nothing() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let one = Proxy::split(&old, &new, 50).await;
    let other = Proxy::split(&old, &new, 50).await;
    for proxy in [&one, &other] {
        for _ in 0..4 {
            proxy.chat().await;
        }
        proxy.outcomes("completed", 4).await;
    }
    // Nobody listens at the discard port.
    let addresses = format!("{},{},127.0.0.1:9", one.admin, other.admin);
    let output = run(&["status", "--proxy", &addresses, "--output", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let look: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(look["total"]["split"]["wanted"], 0.5);
    assert_eq!(
        look["total"]["assignedLastMinute"],
        json!({"old": 4, "new": 4})
    );
    for side in ["old", "new"] {
        let mut count = 0.0;
        for proxy in [&one, &other] {
            let name = "crossfade_time_to_first_event_seconds_count";
            count += proxy.metrics().await.sum(name, &[("generation", side)]);
        }
        assert_eq!(
            look["total"][side]["firstEvent"]["count"].as_f64(),
            Some(count)
        );
        assert_eq!(look["total"][side]["outcomes"]["completed"], 4);
    }
    assert_eq!(look["proxies"].as_array().unwrap().len(), 3);
    assert!(
        look["proxies"][2]["error"]
            .as_str()
            .unwrap()
            .contains("refused")
    );

    let text = said(&run(&["status", "--proxy", &addresses]));
    for part in [
        "wanted     50.0 %",
        "4 of 8 requests in 60 s",
        "127.0.0.1:9 ",
        "p99",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
    let yaml = said(&run(&["status", "--proxy", &addresses, "-o", "yaml"]));
    assert!(
        yaml.starts_with("---\n") && yaml.contains("wanted: 0.5"),
        "{yaml}"
    );
}

#[test]
fn where_no_proxy_answers_it_says_so_and_fails() {
    let output = run(&["status", "--proxy", "127.0.0.1:9"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("cannot be reached"),
        "{}",
        said(&output)
    );
    for wrong in [
        &["status", "--proxy", "127.0.0.1:9", "name"][..],
        &["status", "--interval", "0"],
        &["set", "name"],
        &["set", "name", "--split", "101"],
        &["completions", "dos"],
    ] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[tokio::test]
async fn a_watch_tells_what_changes_until_nobody_reads() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let admin = proxy.admin.to_string();
    let args = [
        "status",
        "--proxy",
        &admin,
        "--watch",
        "--interval",
        "0.05",
        "-o",
        "json",
    ];
    let mut child = program().args(args).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (began, begins) = tokio::sync::oneshot::channel();
    let seen = std::thread::spawn(move || {
        // The reader goes away with the iterator.
        let mut counts = lines.map_while(Result::ok).map(|line| {
            let look: Value = serde_json::from_str(&line).unwrap();
            look["total"]["old"]["outcomes"]["completed"]
                .as_u64()
                .unwrap()
        });
        began.send(counts.next()).unwrap();
        counts.any(|count| count == 1)
    });
    assert_eq!(begins.await, Ok(Some(0)));
    proxy.chat().await;
    proxy.outcomes("completed", 1).await;
    eventually("the watch ends", async || {
        child.try_wait().unwrap().is_some()
    })
    .await;
    assert!(seen.join().unwrap());
}

#[test]
fn it_tells_of_itself_in_every_shell_and_under_the_name_of_kubectls_plugin() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let completions = said(&run(&["completions", shell]));
        assert!(
            completions.contains("status") && completions.contains("resume"),
            "{shell}"
        );
    }
    assert!(said(&run(&["man"])).contains(".TH crossfade 1"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    assert!(run(&["man", path]).status.success());
    assert!(directory.path().join("crossfade-status.1").is_file());

    let mut plugin = program();
    let output = plugin
        .arg0("kubectl-crossfade")
        .args(["status", "--help"])
        .output();
    let help = said(&output.unwrap());
    assert!(help.contains("kubectl crossfade status"), "{help}");
}

/// A real API server that knows the resource.
struct Server(Cluster);

impl Server {
    async fn start() -> Self {
        let server = Self(Cluster::api_server());
        server.0.apply(&crossfade::resource::crd_yaml());
        let crd = "crd/dynamoupdateconfigs.nvidia.com";
        server
            .0
            .kubectl(&["wait", "--for=condition=Established", crd]);
        // Then it may still be about to make room for the first of them.
        eventually("the resource can be listed", async || {
            server.0.try_kubectl(&["get", "duc"], "").status.success()
        })
        .await;
        server
    }

    fn crossfade(&self, args: &[&str]) -> (Option<i32>, String) {
        let kubeconfig = self.0.kubeconfig().unwrap();
        let mut command = program();
        let command = command.args(args).env("KUBECONFIG", kubeconfig);
        let output = command.stdin(Stdio::null()).output().unwrap();
        (output.status.code(), said(&output))
    }

    /// The same at a terminal, where a person says yes after `meanwhile`.
    fn confirmed(&self, args: &[&str], meanwhile: impl FnOnce()) -> (Option<i32>, String) {
        let program = program().get_program().to_string_lossy().into_owned();
        let mut terminal = std::process::Command::new("script")
            .args([
                "-qec",
                &format!("'{program}' {}", args.join(" ")),
                "/dev/null",
            ])
            .env("KUBECONFIG", self.0.kubeconfig().unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = terminal.stdout.take().unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"[y/N] ") {
            let mut byte = [0];
            assert_eq!(out.read(&mut byte).unwrap(), 1, "it never asks");
            text.extend(byte);
        }
        meanwhile();
        terminal.stdin.take().unwrap().write_all(b"y\n").unwrap();
        out.read_to_end(&mut text).unwrap();
        let code = terminal.wait().unwrap().code();
        (code, String::from_utf8(text).unwrap())
    }

    fn spec(&self, name: &str) -> Value {
        self.0.get(&["duc", name])["spec"].take()
    }
}

const UPDATE: &str = r#"
apiVersion: nvidia.com/v1alpha1
kind: DynamoUpdateConfig
metadata: {name: first}
spec:
  newFrontendService: "frontend-new.default.svc.cluster.local:8000"
  weights: {old: 3, new: 1}
  trafficSplitPercent: 25
  maxTrafficSplitPercent: 60
  sourceDeployment: dgd-old
"#;

const STATUS: &str = r#"{"status": {"phase": "Progressing", "message": "waits for a worker of new",
  "observed": {"percent": 24}, "estimatedDrainSeconds": 40,
  "old": {"workers": "3/4", "openStreams": 12, "roles": {"decode": {"ready": 2, "desired": 3}}},
  "new": {"workers": "1/4", "openStreams": 5}}}"#;

const EVENT: &str = r#"
apiVersion: v1
kind: Event
metadata: {name: first.1}
involvedObject: {apiVersion: nvidia.com/v1alpha1, kind: DynamoUpdateConfig, name: first, namespace: default}
type: Warning
reason: Invalid
message: the targets cannot be reached
lastTimestamp: "2026-01-02T03:04:05Z"
"#;

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: frontend-0}
spec:
  automountServiceAccountToken: false
  containers:
  - {name: crossfade, image: none, ports: [{name: crossfade, containerPort: 9464}]}
"#;

#[tokio::test]
async fn on_a_real_api_server_it_tells_the_status_and_the_verbs_show_what_they_change() {
    let server = Server::start().await;
    let (code, text) = server.crossfade(&["status"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("no update in namespace default"), "{text}");

    server.0.apply(UPDATE);
    server.0.kubectl(&[
        "patch",
        "duc",
        "first",
        "--subresource=status",
        "--type=merge",
        "-p",
        STATUS,
    ]);
    server.0.apply(EVENT);
    // The only one needs no name.
    let (code, text) = server.crossfade(&["status"]);
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "first in namespace default, edit 1 of it",
        "Progressing",
        "waits for a worker of new",
        "about 40 s more",
        "the resource's status alone: no pod of the namespace has a container port named crossfade",
        "wanted     25.0 %",
        "observed   24.0 %",
        "3/4",
        "  decode",
        "! 2026-01-02T03:04:05Z  Invalid: the targets cannot be reached",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }

    // A pod that cannot be asked, for there is no kubelet, is named with the reason.
    server.0.kubectl(&["create", "sa", "default"]);
    server.0.apply(POD);
    let running = r#"{"status": {"phase": "Running"}}"#;
    server.0.kubectl(&[
        "patch",
        "pod",
        "frontend-0",
        "--subresource=status",
        "-p",
        running,
    ]);
    let (code, text) = server.crossfade(&["status", "first"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("the resource's status alone: no proxy could be asked"),
        "{text}"
    );
    assert!(text.contains("frontend-0"), "{text}");

    // Nobody can be asked here.
    let (code, text) = server.crossfade(&["set", "first", "--split", "70"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("spec.trafficSplitPercent: 25 -> 70"),
        "{text}"
    );
    assert!(
        text.contains("beware: maxTrafficSplitPercent is 60"),
        "{text}"
    );
    assert!(text.contains("say --yes"), "{text}");
    assert_eq!(server.spec("first")["trafficSplitPercent"], 25);

    let (code, text) = server.crossfade(&["set", "first", "--split", "40", "--yes"]);
    assert_eq!(code, Some(0), "{text}");
    let spec = server.spec("first");
    assert_eq!(
        (&spec["trafficSplitPercent"], &spec["paused"]),
        (&json!(40), &json!(true))
    );
    assert_eq!(spec.get("weights"), None);
    let (_, text) = server.crossfade(&["pause", "first"]);
    assert!(text.contains("is so already"), "{text}");
    let (code, text) = server.crossfade(&["resume", "first", "--yes"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(server.spec("first")["paused"], false);

    // While a person thinks, a controller writes its status, and moves the split: only what was shown must still be so.
    let patch = |patch: &str, more: &[&str]| {
        let args = ["patch", "duc", "first", "--type=merge", "-p", patch];
        server.0.kubectl(&[&args[..], more].concat());
    };
    let status = r#"{"status": {"message": "written meanwhile"}}"#;
    let (code, text) = server.confirmed(&["set", "first", "--split", "30"], || {
        patch(status, &["--subresource=status"]);
    });
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(server.spec("first")["trafficSplitPercent"], 30);
    let edit = r#"{"spec": {"trafficSplitPercent": 31}}"#;
    let (code, text) = server.confirmed(&["set", "first", "--split", "35"], || patch(edit, &[]));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("look again"), "{text}");
    assert_eq!(server.spec("first")["trafficSplitPercent"], 31);
    let edit = r#"{"spec": {"trafficSplitPercent": 32}}"#;
    let (code, text) = server.confirmed(&["resume", "first"], || patch(edit, &[]));
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(server.spec("first")["paused"], false);

    server
        .0
        .apply(&UPDATE.replace("name: first", "name: second"));
    let (_, text) = server.crossfade(&["status"]);
    assert!(text.contains("first") && text.contains("second"), "{text}");
    let (code, text) = server.crossfade(&["status", "third"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("cannot read the update third"), "{text}");
    let (code, text) = server.crossfade(&["status", "--context", "nowhere"]);
    assert_eq!(code, Some(1), "{text}");
}
