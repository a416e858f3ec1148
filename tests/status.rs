//! `crossfade status` and the verbs beside it, through the program: from addresses, and on a real API server.

#[path = "support/cluster.rs"]
mod cluster;
#[path = "support/rig.rs"]
mod rig;
#[path = "support/terminal.rs"]
mod terminal;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use cluster::Cluster;
use rig::proxy::{program, run};
use rig::*;
use serde_json::{Value, json};
use terminal::Terminal;

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
        "2 of 3 proxies, asked by address",
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

    // The address of the page, and the end of a list.
    let page = format!("http://{}/,", one.admin);
    let text = said(&run(&["status", "--proxy", &page]));
    assert!(text.contains("1 proxy, asked by address"), "{text}");
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
        &["status", "--proxy", "127.0.0.1:9", "-n", "name"],
        &["status", "--proxy", "127.0.0.1:9", "--kubeconfig", "file"],
        &["-n", "name", "status", "--proxy", "127.0.0.1:9"],
        &["--context", "name", "crd"],
        &["status", "--proxy", "127.0.0.1"],
        &["status", "--proxy", ","],
        &["status", "--output", "xml"],
        &["status", "--interval", "0"],
        &["set", "name"],
        &["set", "name", "--split", "101"],
        &["completions", "dos"],
    ] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn what_is_typed_beats_what_the_environment_says() {
    let status = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = program();
        command.arg("status").args(args).envs(env.iter().copied());
        command.env("KUBECONFIG", "/does/not/exist");
        said(&command.stdin(Stdio::null()).output().unwrap())
    };
    let nobody = [("CROSSFADE_PROXY", "127.0.0.1:9")];
    assert!(status(&[], &nobody).contains("asked by address"));
    let asked = status(&["--proxy", "127.0.0.1:9"], &[("CROSSFADE_NAMESPACE", "x")]);
    assert!(asked.contains("asked by address"), "{asked}");
    for args in [&["name"][..], &["-n", "x"], &["--context", "x"]] {
        let text = status(args, &nobody);
        assert!(
            text.contains("no kubeconfig can be used"),
            "{args:?}: {text}"
        );
    }
}

#[tokio::test]
async fn a_watch_on_a_terminal_keeps_the_last_good_look_and_tells_what_went_wrong() {
    let server = ApiServer::start().await;
    server.apply(
        "my-update",
        json!({"newFrontendService": "new:8000", "trafficSplitPercent": 25}),
    );
    let watch = |rows| {
        let mut command = program();
        command.args(["status", "--watch", "--interval", "0.05"]);
        Terminal::run(command.envs(server.env()), 100, rows)
    };
    let terminal = watch(60);
    let calm = terminal
        .shows(&[
            "update      my-update in namespace default",
            "wanted     25.0 %",
        ])
        .await;
    assert!(!calm.contains("! "), "{calm}");
    // What one may not see is said, not left out.
    assert!(calm.contains("cannot list the pods"), "{calm}");
    assert!(calm.contains("not known: cannot list the events"), "{calm}");
    let low = watch(5);
    let cut = low.shows(&["more lines: make the terminal higher"]).await;
    assert_eq!(cut.lines().count(), 4, "{cut}");
    assert!(cut.starts_with("update      my-update"), "{cut}");

    server.stop().await;
    let seen = "below is what was seen at";
    terminal
        .shows(&["! ", "cannot list the updates", seen, "wanted     25.0 %"])
        .await;
    // One that begins now has nothing to show yet.
    watch(60)
        .shows(&["cannot list the updates", "nothing was seen before"])
        .await;
    server.restart().await;
    server.apply(
        "my-update",
        json!({"newFrontendService": "new:8000", "trafficSplitPercent": 40}),
    );
    let again = terminal.shows(&["wanted     40.0 %"]).await;
    assert!(!again.contains(seen), "{again}");
}

#[tokio::test]
async fn several_updates_are_listed_in_every_form_and_watched() {
    let server = ApiServer::start().await;
    let weights = json!({"old": 3, "new": 1});
    server.apply(
        "one",
        json!({"newFrontendService": "new:8000", "weights": weights}),
    );
    server.apply(
        "two",
        json!({"newFrontendService": "new:8000", "trafficSplitPercent": 5}),
    );
    // The server is of this thread, which must not block.
    let status = async |args: &[&str]| {
        let mut command = program();
        command.arg("status").args(args).envs(server.env());
        let output = tokio::task::spawn_blocking(move || command.stdin(Stdio::null()).output());
        said(&output.await.unwrap().unwrap())
    };
    let text = status(&[]).await;
    assert!(
        text.contains("one                              -               25 %"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&status(&["-o", "json"]).await).unwrap();
    assert_eq!(json["updates"][1]["spec"]["trafficSplitPercent"], 5);
    let yaml = status(&["-o", "yaml"]).await;
    let read: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(read, json);

    let mut command = program();
    command.args(["status", "--watch", "--interval", "0.05"]);
    let terminal = Terminal::run(command.envs(server.env()), 100, 30);
    terminal.shows(&["one", "5 %"]).await;
    server.apply(
        "two",
        json!({"newFrontendService": "new:8000", "trafficSplitPercent": 15}),
    );
    terminal.shows(&["one", "15 %"]).await;
    // When one is left it is shown whole.
    server.delete("one");
    terminal
        .shows(&["update      two in namespace default"])
        .await;
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
        // Each shell that is here reads its own.
        let mut reader = Command::new(shell);
        let Ok(mut reader) = reader.arg("-n").stdin(Stdio::piped()).spawn() else {
            assert_ne!(shell, "bash");
            continue;
        };
        let mut script = reader.stdin.take().unwrap();
        script.write_all(completions.as_bytes()).unwrap();
        drop(script);
        assert!(reader.wait().unwrap().success(), "{shell}");
    }
    assert!(said(&run(&["man"])).contains(".TH crossfade 1"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    assert!(run(&["man", path]).status.success());
    let page = std::fs::read_to_string(directory.path().join("crossfade-status.1")).unwrap();
    let head = format!("\"crossfade {}\"", env!("CARGO_PKG_VERSION"));
    assert!(page.contains(&head), "{page}");
    assert!(page.contains("CROSSFADE_NAMESPACE"), "{page}");

    let mut plugin = program();
    let output = plugin
        .arg0("kubectl-crossfade")
        .args(["status", "--help"])
        .output();
    let help = said(&output.unwrap());
    assert!(help.contains("kubectl crossfade status"), "{help}");
}

#[test]
fn kubectl_is_told_how_to_complete_its_plugin() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("kubectl_complete-crossfade");
    std::fs::write(&program, run(&["completions", "kubectl"]).stdout).unwrap();
    let built = std::path::Path::new(env!("CARGO_BIN_EXE_crossfade"));
    std::os::unix::fs::symlink(built, directory.path().join("crossfade")).unwrap();
    let path = format!(
        "{}:{}",
        directory.path().display(),
        std::env::var("PATH").unwrap()
    );
    let completed = |words: &[&str]| {
        let mut command = Command::new("bash");
        let output = command
            .arg(&program)
            .args(words)
            .env("PATH", &path)
            .output();
        let text = said(&output.unwrap());
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(completed(&["st"]), ["status", ":0"]);
    let flags = completed(&["status", "--na"]);
    assert_eq!(flags, ["--namespace", ":0"]);
    let forms = completed(&["status", "--output", ""]);
    assert_eq!(forms, ["text", "json", "yaml", ":0"]);
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

    /// The same on a terminal, with these keys typed once it asks.
    async fn answered(&self, args: &[&str], keys: &str) -> (Option<i32>, String) {
        let kubeconfig = self.0.kubeconfig().unwrap();
        let mut command = program();
        let command = command.args(args).env("KUBECONFIG", kubeconfig);
        let mut terminal = Terminal::run(command, 80, 24);
        terminal.shows(&["Change it? [y/N] "]).await;
        terminal.type_in(keys);
        let (status, text) = terminal.end().await;
        (status.code(), text)
    }

    /// A kubeconfig of a service account, whose context has this name.
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

/// May see pods and updates, and nothing more of what a status asks for.
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

    // Who may see the pods but not reach into them is told which right is missing.
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
        "no proxy could be asked, for which get of pods/portforward is needed",
        "cannot have its port forwarded: pods \"frontend-0\" is forbidden",
        "not known: cannot list the events: events is forbidden",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("Status {"), "{text}");
    // The roles that are shipped are enough, and no more than enough.
    let looks = server.kubeconfig_of("looks", "theirs");
    let looks = looks.path().to_str().unwrap();
    let theirs = [
        "--kubeconfig",
        looks,
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
        text.contains("paused      a person holds the split"),
        "{text}"
    );
    let (code, _) = server.crossfade(&["resume", "first", "-y"]);
    assert_eq!(code, Some(0));

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

    // On a terminal one is asked; nothing but a yes is one.
    let set = ["set", "first", "--split", "70"];
    for (keys, code, said) in [
        ("n\n", 1, "nothing was changed"),
        ("\n", 1, "nothing was changed"),
        ("\u{4}", 1, "nothing was changed"), // the end of input
        ("Yes\n", 0, "changed"),
    ] {
        let (ended, text) = server.answered(&set, keys).await;
        assert_eq!(ended, Some(code), "{keys:?}: {text}");
        assert!(text.trim_end().ends_with(said), "{keys:?}: {text}");
        let percent = if code == 0 { 70 } else { 25 };
        assert_eq!(
            server.spec("first")["trafficSplitPercent"],
            percent,
            "{keys:?}"
        );
    }
    // What is asked for is more than the cap.
    let (_, text) = server.crossfade(&["status", "first"]);
    assert!(
        text.contains("60.0 %") && text.contains("70 % asked for, capped at 60 %"),
        "{text}"
    );

    // For programs: the same in both forms, without what only kubectl needs.
    let (_, text) = server.crossfade(&["status", "first", "-o", "json"]);
    let mut json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["update"]["spec"]["trafficSplitPercent"], 70);
    assert!(json["secondsSinceEdit"].as_f64().is_some(), "{json}");
    assert_eq!(json["update"]["metadata"].get("managedFields"), None);
    let (_, text) = server.crossfade(&["status", "first", "-o", "yaml"]);
    let mut yaml: Value = serde_saphyr::from_str(&text).unwrap();
    for look in [&mut json, &mut yaml] {
        look["secondsSinceEdit"] = Value::Null;
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
    assert!(text.contains("is so already"), "{text}");
    let (code, text) = server.crossfade(&["resume", "first", "--yes"]);
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
