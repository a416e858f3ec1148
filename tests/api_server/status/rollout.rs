//! `crossfade rollout` and its subcommands with a real API server.

use super::*;

const ROLLOUT: &str = r#"
apiVersion: nvidia.com/v1alpha1
kind: DynamoRollout
metadata: {name: chat}
spec:
  source: {kind: Deployment, name: chat-v1}
  target: {kind: Deployment, name: chat-v2}
  frontends: {source: chat-v1-frontend, target: chat-v2-frontend, service: chat-v2-frontend}
  clientService: chat
"#;

const STATUS: &str = r#"{"status": {"phase": "Progressing", "message": "growing new", "observedGeneration": 1,
  "step": {"old": 4, "new": 1, "next": 4}, "split": {"percent": 0, "weights": {"old": 1, "new": 0}},
  "waitingFor": [{"what": "new to be ready: 0 of 1 units are ready", "since": "2026-01-02T03:04:05Z"}],
  "source": {"workers": "4/4", "roles": {"worker": {"spec": 4, "ready": 4}}, "openStreams": 12},
  "target": {"workers": "0/1", "roles": {"worker": {"spec": 1, "ready": 0}}},
  "conditions": [{"type": "Reconciling", "status": "True", "reason": "Progressing", "message": "growing new",
    "lastTransitionTime": "2026-01-02T03:04:05Z"}]}}"#;

impl Server {
    fn rollout(&self, name: &str) -> Value {
        self.0.get(&["dro", name])["spec"].take()
    }
}

#[tokio::test]
async fn a_rollout_is_shown_with_both_generations_and_what_it_waits_for() {
    let server = Server::start().await;
    let (code, text) = server.crossfade(&["rollout"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("no rollout found in namespace default"),
        "{text}"
    );
    let (code, text) = server.crossfade(&["rollout", "chat", "-n", "elsewhere"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("there is no rollout chat in namespace elsewhere"),
        "{text}"
    );

    server.0.apply(ROLLOUT);
    // A single rollout needs no name.
    let (code, text) = server.crossfade(&["rollout"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("unknown: no controller with --rollouts has written a status"),
        "{text}"
    );
    server.patch_status("dro/chat", STATUS);
    let (code, text) = server.crossfade(&["-n", "default", "rollout", "chat"]);
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "rollout     chat in namespace default, edit 1\n",
        "phase       Progressing\n            growing new\n",
        "step        new 1 unit, old 4; next: new 4\n",
        "waiting for new to be ready: 0 of 1 units are ready, for ",
        "split       0% of the requests go to new\n",
        "old         Deployment/chat-v1",
        "new         Deployment/chat-v2",
        "conditions  Reconciling True (Progressing)\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let (_, text) = server.crossfade(&["rollout", "chat", "-o", "json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["rollout"]["status"]["step"]["new"], 1);
    assert_eq!(json["rollout"]["metadata"]["managedFields"], Value::Null);
    let (_, text) = server.crossfade(&["rollout", "chat", "-o", "yaml"]);
    assert!(text.starts_with("---\nrollout:\n"), "{text}");

    let second = ROLLOUT.replace("name: chat}", "name: other}");
    server.0.apply(&second);
    let (code, text) = server.crossfade(&["rollout"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.starts_with("NAME ") && text.contains("\nother "),
        "{text}"
    );
    assert!(
        text.contains("chat                             Progressing        4/4       0/1      0%"),
        "{text}"
    );

    // The watch continues until its output is closed.
    let kubeconfig = server.0.kubeconfig().unwrap();
    let mut command = program();
    let command = command
        .args(["rollout", "chat", "--watch", "--interval", "0.1"])
        .env("KUBECONFIG", kubeconfig);
    let mut terminal = Terminal::run(command, 100, 30);
    terminal.shows(&["waiting for", "Deployment/chat-v2"]).await;
    server.patch_status("dro/chat", r#"{"status": {"phase": "Complete"}}"#);
    terminal.shows(&["Complete"]).await;
    terminal.type_in("\u{3}");
    terminal.end().await;
}

#[tokio::test]
async fn another_try_of_a_new_generation_that_has_failed_is_an_annotation() {
    let server = Server::start().await;
    server.0.apply(ROLLOUT);
    let retry = ["rollout", "retry", "chat", "--yes"];
    let (code, text) = server.crossfade(&retry);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("nothing to change"), "{text}");
    let failed =
        r#"{"status": {"analysis": {"verdict": "Fail", "message": "new fails all requests"}}}"#;
    server.patch_status("dro/chat", failed);
    let (code, text) = server.crossfade(&retry);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("annotation crossfade/retried-at: none -> "),
        "{text}"
    );
    let rollout = server.0.get(&["dro", "chat"]);
    let at = &rollout["metadata"]["annotations"]["crossfade/retried-at"];
    assert!(at.as_str().is_some_and(|at| at.ends_with('Z')), "{rollout}");
}

#[tokio::test]
async fn each_subcommand_shows_its_change_prompts_and_writes_once() {
    let server = Server::start().await;
    server.0.apply(ROLLOUT);
    // Without a terminal, there is no prompt.
    let (code, text) = server.crossfade(&["rollout", "abort", "chat"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains(
            r#"spec.intent: "Run" -> "Abort"   (the rollout returns to the old generation)"#
        ),
        "{text}"
    );
    assert!(text.contains("use --yes"), "{text}");
    assert_eq!(server.rollout("chat")["intent"], "Run");
    for (keys, code, expected) in [
        ("n\n", 1, "no changes were made"),
        ("\n", 1, "no changes were made"),
        ("y\n", 0, "changed"),
    ] {
        let (ended, text) = server
            .answered(&["rollout", "pause", "chat"], keys, || ())
            .await;
        assert_eq!(ended, Some(code), "{keys:?}: {text}");
        assert!(text.trim_end().ends_with(expected), "{keys:?}: {text}");
        let intent = if code == 0 { "Hold" } else { "Run" };
        assert_eq!(server.rollout("chat")["intent"], intent, "{keys:?}");
    }
    for (verb, intent, undo) in [
        ("resume", "Run", Value::Null),
        ("promote", "Promote", Value::Null),
        ("abort", "Abort", Value::Null),
        ("undo", "Abort", json!(1)),
        ("resume", "Run", Value::Null),
        ("pause", "Hold", Value::Null),
        ("undo", "Run", json!(1)),
    ] {
        let (code, text) = server.crossfade(&["rollout", verb, "chat", "--yes"]);
        assert_eq!(code, Some(0), "{verb}: {text}");
        let spec = server.rollout("chat");
        assert_eq!(
            (&spec["intent"], &spec["undoTo"]),
            (&json!(intent), &undo),
            "{verb}"
        );
        let (code, text) = server.crossfade(&["rollout", verb, "chat", "--yes"]);
        assert_eq!(code, Some(0), "{verb}: {text}");
        assert!(text.contains("nothing to change"), "{verb}: {text}");
    }
    server.crossfade(&["rollout", "resume", "chat", "--yes"]);
    let (code, text) = server.crossfade(&["rollout", "history", "chat"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("no revisions yet"), "{text}");
    let revisions = json!({"status": {"revisions": [
        {"revision": 1, "workers": "Deployment chat-v0", "frontends": "chat-v0-frontend", "exists": false},
        {"revision": 2, "workers": "Deployment chat-v1", "frontends": "chat-v1-frontend", "exists": true, "generation": "old"},
        {"revision": 3, "workers": "Deployment chat-v2", "frontends": "chat-v2-frontend", "exists": true, "generation": "new"},
    ]}})
    .to_string();
    server.patch_status("dro/chat", &revisions);
    let (code, text) = server.crossfade(&["-n", "default", "rollout", "history", "chat"]);
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "REVISION  AGE       GENERATION  FRONTENDS                        WORKERS\n",
        "1         -         deleted     chat-v0-frontend                 Deployment chat-v0\n",
        "3         -         new         chat-v2-frontend                 Deployment chat-v2\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    for (args, undo, expected) in [
        (
            &["--to", "1"][..],
            1,
            "objects of revision 1 have been deleted",
        ),
        (&["--to", "3"], 3, "the rollout goes to the new generation"),
        (&[], 2, "the rollout returns to this revision"),
    ] {
        let (code, text) =
            server.crossfade(&[&["rollout", "undo", "chat", "--yes"], args].concat());
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains(expected), "{text}");
        assert_eq!(server.rollout("chat")["undoTo"], undo);
    }
    server.crossfade(&["rollout", "resume", "chat", "--yes"]);
    assert_eq!(server.rollout("chat")["undoTo"], Value::Null);
    // Writes of the controller meanwhile do not matter, but edits by another user do.
    let write_status = || server.patch_status("dro/chat", STATUS);
    let (code, text) = server
        .answered(&["rollout", "pause", "chat"], "y\n", write_status)
        .await;
    assert_eq!(code, Some(0), "{text}");
    let theirs = || {
        server.0.kubectl(&[
            "patch",
            "dro",
            "chat",
            "--type=merge",
            "-p",
            r#"{"spec": {"intent": "Abort"}}"#,
        ]);
    };
    let (code, text) = server
        .answered(&["rollout", "promote", "chat"], "y\n", theirs)
        .await;
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("chat has been changed in the meantime"),
        "{text}"
    );
    assert_eq!(server.rollout("chat")["intent"], "Abort");

    let (code, text) = server.crossfade(&["rollout", "pause", "none", "--yes"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("there is no rollout none in namespace default"),
        "{text}"
    );
}

#[tokio::test]
async fn the_shipped_roles_have_the_required_permissions_and_no_others() {
    let server = Server::start().await;
    server.0.apply(ROLLOUT);
    let roles = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/people");
    server.0.kubectl(&["apply", "-k", roles]);
    for (account, role) in [("looks", "crossfade-viewer"), ("edits", "crossfade-editor")] {
        server.0.kubectl(&["create", "sa", account]);
        let binds = format!("--clusterrole={role}");
        let whom = format!("--serviceaccount=default:{account}");
        server
            .0
            .kubectl(&["create", "rolebinding", account, &binds, &whom]);
    }
    let viewer = server.kubeconfig_of("looks", "theirs");
    let edits = server.kubeconfig_of("edits", "theirs");
    let as_of = |file: &tempfile::NamedTempFile, args: &[&str]| {
        let file = file.path().to_str().unwrap();
        server.crossfade(&[&["--kubeconfig", file, "--context", "theirs"], args].concat())
    };
    let (code, text) = as_of(&viewer, &["rollout", "chat"]);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = as_of(&viewer, &["rollout", "pause", "chat", "-y"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("cannot change the rollout chat"), "{text}");
    let (code, text) = as_of(&edits, &["rollout", "pause", "chat", "-y"]);
    assert_eq!(code, Some(0), "{text}");
}
