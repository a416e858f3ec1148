//! A GitOps tool repeatedly applies a manifest that leaves the split to the controller.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use kube::api::{Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::{Value, json};

use super::fixture::{Fixture, pods, server, updates};

/// The field manager of server-side apply, as used by Flux and Argo CD.
const GIT: &str = "git";

/// The manifest in Git, with these additional fields.
fn manifest(fixture: &Fixture, more: Value) -> Value {
    let mut spec = json!({
        "newFrontendService": fixture.new.url(), "sourceDeployment": "old", "targetDeployment": "new",
        "stableSeconds": 0,
    });
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoUpdateConfig",
        "metadata": {"name": "up", "namespace": fixture.namespace}, "spec": spec,
    })
}

async fn server_side_apply(fixture: &Fixture, manifest: &Value) -> Value {
    let params = PatchParams::apply(GIT).force();
    let api = fixture.api(&updates());
    let applied = api.patch("up", &params, &Patch::Apply(manifest)).await;
    serde_json::to_value(applied.unwrap()).unwrap()
}

/// Runs `kubectl` with the manifest as its file. Returns its output and exit status.
async fn kubectl(args: &[&str], manifest: &Value) -> (String, Option<i32>) {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let input = manifest.to_string();
    let running = tokio::task::spawn_blocking(move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        server().try_kubectl(&[&args[..], &["-f", "-"]].concat(), &input)
    });
    let output = running.await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.code())
}

/// Creates the four workers of old and a proxy that follows the existing update.
async fn begin(fixture: &mut Fixture) {
    for i in 0..4 {
        fixture.worker("old", i, "worker").await;
    }
    fixture.proxy("up").await;
}

/// The entries of `metadata.managedFields` for `manager`, without those for the status.
fn owned(object: &Value, manager: &str) -> Vec<Value> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let mut own = entries.clone();
    own.retain(|entry| entry["manager"] == manager && entry["subresource"].is_null());
    own
}

fn fields(entry: &Value) -> BTreeSet<&str> {
    let spec = entry["fieldsV1"]["f:spec"].as_object().unwrap();
    spec.keys().map(String::as_str).collect()
}

const CONTROLLER_FIELDS: [&str; 3] = ["f:oldDraining", "f:trafficSplitPercent", "f:weights"];

#[tokio::test]
async fn server_side_apply_of_a_manifest_without_a_split_changes_nothing_while_the_controller_moves_it()
 {
    let mut fixture = Fixture::start().await;
    let manifest = manifest(&fixture, json!({}));
    let created = server_side_apply(&fixture, &manifest).await;
    begin(&mut fixture).await;
    // The split is not set: everything goes to old, and the status says so.
    let plan: Value = serde_json::from_str(&fixture.proxies[0].plan().await).unwrap();
    assert_eq!(plan["trafficSplitPercent"], 0, "{plan}");
    let remarks = plan["remarks"].to_string();
    assert!(
        remarks.contains("sets no split, and no controller has set one yet"),
        "{plan}"
    );
    assert_eq!(fixture.proxies[0].chat().await.generation(), "old");

    let fixture = Arc::new(fixture);
    let (is_over, syncs) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let syncing = tokio::spawn({
        let (fixture, manifest) = (Arc::clone(&fixture), manifest.clone());
        let (is_over, syncs) = (Arc::clone(&is_over), Arc::clone(&syncs));
        async move {
            while !is_over.load(Ordering::Relaxed) {
                server_side_apply(&fixture, &manifest).await;
                syncs.fetch_add(1, Ordering::Relaxed);
                // The sync interval of the GitOps tool.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    });
    let seeing = tokio::spawn({
        let (fixture, since) = (
            Arc::clone(&fixture),
            created["metadata"]["resourceVersion"].clone(),
        );
        async move { every_version(&fixture, since.as_str().unwrap()).await }
    });
    let _controller = fixture.controller(&[]).await;
    fixture.wait_for_split("up", 1, 0).await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
        fixture
            .wait_for_split("up", 4 / gcd(i + 1), (i + 1) / gcd(i + 1))
            .await;
    }
    fixture.delete_old_workers().await;
    let is_complete = |object: &Value| object["status"]["phase"] == "Complete";
    let object = fixture.until("up", "complete", is_complete).await;
    assert_eq!(object["spec"]["oldDraining"], true);
    let diff = [
        "diff",
        "--server-side",
        "--force-conflicts",
        "--field-manager=git",
    ];
    let (output, code) = kubectl(&diff, &manifest).await;
    assert_eq!((output.as_str(), code), ("", Some(0)));
    // The split stays, however often the manifest is applied.
    let (before, at_end) = (
        object["metadata"]["generation"].clone(),
        syncs.load(Ordering::Relaxed),
    );
    while syncs.load(Ordering::Relaxed) < at_end + 5 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    syncing.await.unwrap();
    let object = fixture.get("up").await;
    assert_eq!(object["metadata"]["generation"], before);
    assert_eq!(
        fields(&owned(&object, "crossfade-controller")[0]),
        CONTROLLER_FIELDS.into()
    );
    fixture.delete(&updates(), "up").await;
    let versions = seeing.await.unwrap();

    // Every version in between has the fields of the controller, and the fields that Git owns never change.
    let git = owned(&created, GIT);
    assert_eq!(
        fields(&git[0])
            .intersection(&CONTROLLER_FIELDS.into())
            .count(),
        0
    );
    let shares = shares(&versions);
    assert!(shares.is_sorted(), "{shares:?}");
    assert_eq!(shares.last(), Some(&100), "{shares:?}");
    for object in &versions {
        assert_eq!(owned(object, GIT), git, "{object}");
    }
    assert_eq!(fixture.events().await.get("SplitContested"), None);
}

fn gcd(of_four: u32) -> u32 {
    [0, 1, 2, 1, 4][of_four as usize]
}

/// Each version of the update since `since`, until it is deleted.
async fn every_version(fixture: &Fixture, since: &str) -> Vec<Value> {
    let api = fixture.api(&updates());
    let params = WatchParams::default()
        .fields("metadata.name=up")
        .timeout(290);
    let mut events = std::pin::pin!(api.watch(&params, since).await.unwrap());
    let mut versions = Vec::new();
    while let Some(event) = events.next().await {
        match event.unwrap() {
            WatchEvent::Modified(object) => versions.push(serde_json::to_value(object).unwrap()),
            WatchEvent::Deleted(_) => break,
            _ => {}
        }
    }
    versions
}

/// The percentages of all versions since the controller's first write. Each must have the percentage and the weights.
fn shares(versions: &[Value]) -> Vec<u64> {
    let is_set = |object: &&Value| object["spec"]["trafficSplitPercent"].is_u64();
    let set = versions.iter().skip_while(|object| !is_set(object));
    let share = |object: &Value| {
        assert!(object["spec"]["weights"].is_object(), "{object}");
        object["spec"]["trafficSplitPercent"].as_u64().unwrap()
    };
    set.map(share).collect()
}

#[tokio::test]
async fn client_side_apply_of_a_manifest_without_a_split_changes_nothing_and_has_no_diff() {
    let mut fixture = Fixture::start().await;
    let manifest = manifest(&fixture, json!({}));
    let (output, code) = kubectl(&["apply"], &manifest).await;
    assert_eq!(code, Some(0), "{output}");
    begin(&mut fixture).await;
    let _controller = fixture.controller(&[]).await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
        fixture
            .wait_for_split("up", 4 / gcd(i + 1), (i + 1) / gcd(i + 1))
            .await;
        let (output, code) = kubectl(&["apply"], &manifest).await;
        assert!(output.contains("up unchanged"), "{output}");
        assert_eq!(code, Some(0), "{output}");
    }
    let (output, code) = kubectl(&["diff"], &manifest).await;
    assert_eq!((output.as_str(), code), ("", Some(0)));
    fixture.wait_for_split("up", 1, 1).await;
    assert_eq!(fixture.events().await.get("SplitContested"), None);
}

#[tokio::test]
async fn a_split_that_is_removed_from_a_manifest_stays_and_is_completed_by_the_controller() {
    let mut fixture = Fixture::start().await;
    let before = manifest(&fixture, json!({"trafficSplitPercent": 0}));
    let (output, code) = kubectl(&["apply"], &before).await;
    assert_eq!(code, Some(0), "{output}");
    begin(&mut fixture).await;
    let mut controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.wait_for_split("up", 4, 1).await;
    // `kubectl apply` removes what it applied before, which is the percentage.
    let left_out = manifest(&fixture, json!({}));
    let (output, code) = kubectl(&["apply"], &left_out).await;
    assert_eq!(code, Some(0), "{output}");
    let object = fixture.wait_for_split_in_full(20).await;
    assert_eq!(
        fields(&owned(&object, "crossfade-controller")[0]),
        CONTROLLER_FIELDS.into()
    );

    // `kubectl replace` removes all of it. Without a controller, the proxies keep the last wanted split.
    controller.kill();
    let (output, code) = kubectl(&["replace"], &left_out).await;
    assert_eq!(code, Some(0), "{output}");
    let object = fixture.get("up").await;
    let spec = &object["spec"];
    assert!(
        spec["weights"].is_null() && spec["trafficSplitPercent"].is_null(),
        "{spec}"
    );
    let edit = format!("\"generation\": {}", object["metadata"]["generation"]);
    let proxy = &fixture.proxies[0];
    crate::rig::eventually("the edit is in force", async || {
        proxy.plan().await.contains(&edit)
    })
    .await;
    let plan: Value = serde_json::from_str(&proxy.plan().await).unwrap();
    assert_eq!(plan["weights"], json!({"old": 4, "new": 1}), "{plan}");
    let _controller = fixture.controller(&[]).await;
    fixture.wait_for_split_in_full(20).await;
    fixture.worker("new", 1, "worker").await;
    fixture.wait_for_split("up", 2, 1).await;
    assert_eq!(fixture.events().await.get("SplitContested"), None);
}

#[tokio::test]
async fn a_split_in_git_needs_a_pause_and_both_forms_of_the_split() {
    let mut fixture = Fixture::start().await;
    let held = |percent: u32| {
        let weights = json!({"old": 100 - percent, "new": percent});
        let split = json!({"paused": true, "trafficSplitPercent": percent, "weights": weights});
        manifest(&fixture, split)
    };
    let (quarter, all, none) = (held(25), held(100), held(0));
    server_side_apply(&fixture, &quarter).await;
    begin(&mut fixture).await;
    fixture.worker("new", 0, "worker").await;
    let _controller = fixture.controller(&[]).await;
    let is_held = |object: &Value| object["status"]["wanted"]["percent"] == 25;
    fixture.until("up", "held", is_held).await;
    server_side_apply(&fixture, &all).await;
    // The controller sets `oldDraining`, and with it writes the current split.
    fixture.delete_old_workers().await;
    let drains = |object: &Value| object["spec"]["oldDraining"] == true;
    fixture.until("up", "draining", drains).await;
    for i in 0..4 {
        fixture.worker("old", i, "worker").await;
    }
    let object = server_side_apply(&fixture, &none).await;
    assert_eq!(object["spec"]["trafficSplitPercent"], 0);
    let is_back = |object: &Value| {
        object["status"]["wanted"]["percent"] == 0 && object["spec"]["oldDraining"] == false
    };
    fixture.until("up", "back on old", is_back).await;
    assert_eq!(fixture.events().await.get("SplitContested"), None);
    fixture.delete(&pods(), "new-worker-0").await;
}

impl Fixture {
    /// Waits until the resource has this percentage and the corresponding weights.
    async fn wait_for_split_in_full(&self, percent: u32) -> Value {
        self.until("up", "whole", |object| {
            object["spec"]["trafficSplitPercent"] == percent
                && object["spec"]["weights"].is_object()
        })
        .await
    }
}
