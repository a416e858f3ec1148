//! `crossfade status` and the edit commands with a real API server.

mod rollout;

use std::io::Write;
use std::process::Stdio;

use crate::cluster::Cluster;
use crate::rig::proxy::{output_text, program};
use crate::rig::*;
use crate::terminal::Terminal;
use serde_json::{Value, json};

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
        // The server may not yet be ready to store the first update.
        eventually("the resource can be listed", async || {
            server
                .0
                .try_kubectl(&["get", "duc,dro"], "")
                .status
                .success()
        })
        .await;
        server
    }

    /// Merges this into the status of an object, as a controller does.
    fn patch_status(&self, object: &str, patch: &str) {
        let kind = ["--subresource=status", "--type=merge"];
        let args = [&["patch", object], &kind[..], &["-p", patch]].concat();
        self.0.kubectl(&args);
    }

    fn crossfade(&self, args: &[&str]) -> (Option<i32>, String) {
        let kubeconfig = self.0.kubeconfig().unwrap();
        let mut command = program();
        let command = command.args(args).env("KUBECONFIG", kubeconfig);
        let output = command.stdin(Stdio::null()).output().unwrap();
        (output.status.code(), output_text(&output))
    }

    /// Like [`Self::crossfade`], on a terminal. Types these keys at the prompt, after `meanwhile`.
    async fn answered(
        &self,
        args: &[&str],
        keys: &str,
        meanwhile: impl FnOnce(),
    ) -> (Option<i32>, String) {
        let kubeconfig = self.0.kubeconfig().unwrap();
        let mut command = program();
        let command = command.args(args).env("KUBECONFIG", kubeconfig);
        let mut terminal = Terminal::run(command, 80, 24);
        terminal.shows(&["Apply the change? [y/N] "]).await;
        meanwhile();
        terminal.type_in(keys);
        let (status, text) = terminal.end().await;
        (status.code(), text)
    }

    /// A kubeconfig of a service account with this context name.
    fn kubeconfig_of(&self, account: &str, context: &str) -> tempfile::NamedTempFile {
        let config = self.0.kubectl(&["config", "view", "--raw", "-o", "json"]);
        let mut config: Value = serde_json::from_str(&config).unwrap();
        let token = self.0.kubectl(&["create", "token", account]);
        config["users"][0]["user"] = json!({"token": token.trim()});
        config["contexts"][0]["name"] = context.into();
        config["current-context"] = "".into();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(file, "{config}").unwrap();
        file
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

/// A role that may read pods and updates, but nothing else that `status` queries.
const LITTLE: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: little}
rules:
- {apiGroups: [nvidia.com], resources: [dynamoupdateconfigs], verbs: [get, list]}
- {apiGroups: [""], resources: [pods], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: little-of-little}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: little}
subjects: [{kind: ServiceAccount, name: little, namespace: default}]
"#;

#[tokio::test]
async fn missing_parts_of_a_cluster_are_named_with_a_remedy() {
    let cluster = Cluster::api_server();
    let server = Server(cluster);
    for args in [
        &["status"][..],
        &["status", "a"],
        &["set", "a", "--split", "5"],
    ] {
        let (status, text) = server.crossfade(args);
        assert_eq!(status, Some(1), "{args:?}: {text}");
        let expected = "no CRD of updates; install it with `crossfade crd | kubectl apply -f -`";
        assert!(text.contains(expected), "{args:?}: {text}");
        assert!(text.contains(": the cluster https://"), "{args:?}: {text}");
    }
    drop(server);

    let server = Server::start().await;
    let (status, text) = server.crossfade(&["status", "a", "-n", "elsewhere"]);
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("no update a in namespace elsewhere"),
        "{text}"
    );
}

#[tokio::test]
async fn status_and_edit_commands_work_against_a_real_api_server() {
    let server = Server::start().await;
    let (code, text) = server.crossfade(&["status"]);
    assert_eq!(code, Some(1));
    assert!(
        text.contains("no update found in namespace default"),
        "{text}"
    );

    server.0.apply(UPDATE);
    server.patch_status("duc/first", STATUS);
    server.0.apply(EVENT);
    // A single update needs no name.
    let (code, text) = server.crossfade(&["status"]);
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "first in namespace default, edit 1",
        "Progressing",
        "waits for a worker of new",
        "about 40 s remaining",
        "the status of the resource only: no pod of the namespace has a container port named crossfade",
        "wanted     25.0%",
        "observed   24.0%",
        "3/4",
        "  decode",
        "! 2026-01-02T03:04:05Z  Invalid: the targets cannot be reached",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }

    // A pod that cannot be queried, because there is no kubelet, is named with the reason.
    server.0.kubectl(&["create", "sa", "default"]);
    server.0.apply(POD);
    let running = r#"{"status": {"phase": "Running"}}"#;
    server.patch_status("pod/frontend-0", running);
    let (code, text) = server.crossfade(&["status", "first"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("the status of the resource only: no proxy could be queried"),
        "{text}"
    );
    assert!(text.contains("frontend-0"), "{text}");

    // A user who may read pods but not port-forward gets the missing permission.
    let roles = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/people");
    server.0.kubectl(&["apply", "-k", roles]);
    server.0.kubectl(&["create", "sa", "little"]);
    for (account, role) in [("looks", "crossfade-viewer"), ("edits", "crossfade-editor")] {
        server.0.kubectl(&["create", "sa", account]);
        let binds = format!("--clusterrole={role}");
        let whom = format!("--serviceaccount=default:{account}");
        server
            .0
            .kubectl(&["create", "rolebinding", account, &binds, &whom]);
    }
    server.0.apply(LITTLE);
    let little = server.kubeconfig_of("little", "theirs");
    let file = little.path().to_str().unwrap();
    let (code, text) = server.crossfade(&[
        "--kubeconfig",
        file,
        "status",
        "first",
        "--context",
        "theirs",
    ]);
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "no proxy could be queried: this needs permission to get pods/portforward",
        "cannot forward its port: pods \"frontend-0\" is forbidden",
        "unknown: cannot list the events: events is forbidden",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("Status {"), "{text}");
    // The shipped roles have the required permissions and no others.
    let viewer = server.kubeconfig_of("looks", "theirs");
    let viewer = viewer.path().to_str().unwrap();
    let theirs = [
        "--kubeconfig",
        viewer,
        "--context",
        "theirs",
        "-n",
        "default",
    ];
    let (code, text) = server.crossfade(&[&theirs[..], &["status", "first"]].concat());
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains("is forbidden"), "{text}");
    assert!(
        text.contains("Invalid: the targets cannot be reached"),
        "{text}"
    );
    let (code, text) = server.crossfade(&[&theirs[..], &["pause", "first", "-y"]].concat());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("cannot change the update first"), "{text}");
    let edits = server.kubeconfig_of("edits", "theirs");
    let edits = edits.path().to_str().unwrap();
    let (code, text) = server.crossfade(&[
        "pause",
        "first",
        "-y",
        "--kubeconfig",
        edits,
        "--context",
        "theirs",
    ]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(server.spec("first")["paused"], true);
    let (_, text) = server.crossfade(&["status", "first"]);
    assert!(
        text.contains("paused      the split is held manually"),
        "{text}"
    );
    let (code, _) = server.crossfade(&["resume", "first", "-y"]);
    assert_eq!(code, Some(0));

    // Without a terminal, there is no prompt.
    let (code, text) = server.crossfade(&["set", "first", "--split", "70"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("spec.trafficSplitPercent: 25 -> 70"),
        "{text}"
    );
    assert!(
        text.contains("warning: maxTrafficSplitPercent is 60"),
        "{text}"
    );
    assert!(text.contains("use --yes"), "{text}");
    assert_eq!(server.spec("first")["trafficSplitPercent"], 25);

    // On a terminal there is a prompt, and only yes confirms.
    let set = ["set", "first", "--split", "70"];
    for (keys, code, expected) in [
        ("n\n", 1, "no changes were made"),
        ("\n", 1, "no changes were made"),
        ("\u{4}", 1, "no changes were made"), // the end of input
        ("Yes\n", 0, "changed"),
    ] {
        let (ended, text) = server.answered(&set, keys, || ()).await;
        assert_eq!(ended, Some(code), "{keys:?}: {text}");
        assert!(text.trim_end().ends_with(expected), "{keys:?}: {text}");
        let percent = if code == 0 { 70 } else { 25 };
        assert_eq!(
            server.spec("first")["trafficSplitPercent"],
            percent,
            "{keys:?}"
        );
    }
    // The requested split exceeds the cap.
    let (_, text) = server.crossfade(&["status", "first"]);
    assert!(
        text.contains("60.0%") && text.contains("70% requested, capped at 60%"),
        "{text}"
    );

    // JSON and YAML for programs have the same content, without the fields that only kubectl needs.
    let (_, text) = server.crossfade(&["status", "first", "-o", "json"]);
    let mut json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["update"]["spec"]["trafficSplitPercent"], 70);
    assert!(json["secondsSinceEdit"].as_f64().is_some(), "{json}");
    assert_eq!(json["update"]["metadata"].get("managedFields"), None);
    let (_, text) = server.crossfade(&["status", "first", "-o", "yaml"]);
    let mut yaml: Value = serde_saphyr::from_str(&text).unwrap();
    for status in [&mut json, &mut yaml] {
        status["secondsSinceEdit"] = Value::Null;
    }
    assert_eq!(yaml, json);

    let (code, text) = server.crossfade(&["set", "first", "--split", "40", "--yes"]);
    assert_eq!(code, Some(0), "{text}");
    let spec = server.spec("first");
    assert_eq!(
        (&spec["trafficSplitPercent"], &spec["paused"]),
        (&json!(40), &json!(true))
    );
    assert_eq!(spec.get("weights"), None);
    let (_, text) = server.crossfade(&["pause", "first"]);
    assert!(text.contains("nothing to change"), "{text}");
    let (code, text) = server.crossfade(&["resume", "first", "--yes"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(server.spec("first")["paused"], false);

    // While the prompt is open, the controller writes the status and the split. Only the displayed fields must be unchanged.
    let patch = |patch: &str, more: &[&str]| {
        let args = ["patch", "duc", "first", "--type=merge", "-p", patch];
        server.0.kubectl(&[&args[..], more].concat());
    };
    let status = r#"{"status": {"message": "written meanwhile"}}"#;
    let set = ["set", "first", "--split", "30"];
    let meanwhile = || patch(status, &["--subresource=status"]);
    let (code, text) = server.answered(&set, "y\n", meanwhile).await;
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(server.spec("first")["trafficSplitPercent"], 30);
    let edit = r#"{"spec": {"trafficSplitPercent": 31}}"#;
    let set = ["set", "first", "--split", "35"];
    let (code, text) = server.answered(&set, "y\n", || patch(edit, &[])).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("run the command again"), "{text}");
    assert_eq!(server.spec("first")["trafficSplitPercent"], 31);
    let edit = r#"{"spec": {"trafficSplitPercent": 32}}"#;
    let meanwhile = || patch(edit, &[]);
    let (code, text) = server
        .answered(&["resume", "first"], "y\n", meanwhile)
        .await;
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(server.spec("first")["paused"], false);

    server
        .0
        .apply(&UPDATE.replace("name: first", "name: second"));
    let (_, text) = server.crossfade(&["status"]);
    assert!(text.contains("first") && text.contains("second"), "{text}");
    let (code, text) = server.crossfade(&["status", "third"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("there is no update third"), "{text}");
    let (code, text) = server.crossfade(&["status", "--context", "nowhere"]);
    assert_eq!(code, Some(1), "{text}");
}
